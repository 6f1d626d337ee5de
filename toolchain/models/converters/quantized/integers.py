"""Sums of products of bytes in int32: ConvInteger and MatMulInteger.

With weights that are known they are written as a layer on bytes whose scales are 1, which backends compute in bytes:
what the zero points add to each sum follows from sums of the weights and of the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx

from toolchain.models.converters import Node, as_operator, converter
from toolchain.models.converters.quantized.grids import Grid, cast, dequantize

_MATRIX, _IMAGE = 2, 4  # dimensions


@converter("ConvInteger")
def _conv_integer(node: Node) -> Any:
    """A convolution of the whole numbers above the zero points."""
    weights = _known_weights(node, 1, 3, 0)
    plain = str(node.attributes.get("auto_pad", "NOTSET")) == "NOTSET" and int(node.attributes.get("group", 1)) == 1
    if weights is not None and weights.ndim == _IMAGE and plain and _is_one(node, node.input(2)):
        return _conv_of_bytes(node, weights)
    data = above_zero(node, node.inputs[0], node.input(2), 0)
    whole = above_zero(node, node.inputs[1], node.input(3), 0)
    return as_operator(node, "Conv", [data, whole], node.attributes)


def _conv_of_bytes(node: Node, weights: NDArray[np.int64]) -> Any:
    """Return a convolution in the form that backends compute in bytes: of the bytes as they are, then without zeros.

    Padding stands for the zero point, which only a run knows: the bytes are padded with it beforehand.
    """
    split = _Split.of(weights)
    data, zero = node.inputs[0], node.input(2)
    pads = [int(size) for size in node.attributes.get("pads", [0] * 4)]
    if any(pads):
        data = _padded(node, data, zero, pads)
    given = {name: value for name, value in node.attributes.items() if name not in {"pads", "auto_pad"}}
    products = as_operator(node, "Conv", [_as_numbers(node, data), split.numbers(node, 0)], given)
    return split.whole(node, products, zero, 1)


def _padded(node: Node, data: Any, zero: Any, pads: Sequence[int]) -> Any:
    """Return images of bytes with their zero at the top, left, bottom and right."""
    top, left, bottom, right = pads
    batch, channels, height, width = node.shape_of(data)

    def padded(image: Any, *zeros: Any) -> Any:
        def element(number: Any, channel: Any, row: Any, column: Any) -> Any:
            filler = zeros[0](*[0] * len(zeros[0].shape)) if zeros else tirx.const(0, image.dtype)
            inside = tirx.all(row >= top, row < top + height, column >= left, column < left + width)
            return tirx.if_then_else(inside, image(number, channel, row - top, column - left), filler)

        return te.compute((batch, channels, height + top + bottom, width + left + right), element, name="padded")

    return node.compute(padded, data, *([] if zero is None else [zero]), name="pad_bytes")


@converter("MatMulInteger")
def _matmul_integer(node: Node) -> Any:
    """TVM's converts constants when the network runs, and computes in 32 bits alone."""
    return integer_matmul(node, (0, 2), (1, 3))


def integer_matmul(
    node: Node, left: tuple[int, int], right: tuple[int, int], zero: Any = None, data: Any = None
) -> Any:
    """Return the product of matrices of bytes in int32; a zero is one number, or one for each row or column.

    Args:
        node: What is converted.
        left: Which inputs are the left matrices and their zero.
        right: Which inputs are the right ones and their zero.
        data: The left matrices, if they are no input.
        zero: Their zero.
    """
    data = node.inputs[left[0]] if data is None else data
    zero = node.input(left[1]) if zero is None else zero
    weights = _known_weights(node, *right, -1)
    if weights is not None and weights.ndim == _MATRIX and len(node.shape_of(data)) > 1 and _is_one(node, zero):
        return _product_of_bytes(node, data, zero, weights)
    rows = above_zero(node, data, zero, -2)
    columns = above_zero(node, node.inputs[right[0]], node.input(right[1]), -1)
    return node.emit(relax.op.matmul(rows, columns, out_dtype="int32"))


def _product_of_bytes(node: Node, data: Any, zero: Any, weights: NDArray[np.int64]) -> Any:
    """Return a product of matrices in the form that backends compute in bytes."""
    split, shape = _Split.of(weights.T), node.shape_of(data)
    rows = data if len(shape) == _MATRIX else node.emit(relax.op.reshape(data, (math.prod(shape[:-1]), shape[-1])))
    products = node.emit(relax.op.matmul(_as_numbers(node, rows), split.numbers(node, 1)))
    whole = split.whole(node, products, zero, 1)
    if len(shape) == _MATRIX:
        return whole
    return node.emit(relax.op.reshape(whole, (*shape[:-1], weights.shape[1])))


def _as_numbers(node: Node, data: Any) -> Any:
    return dequantize(node, data, Grid(relax.const(1.0, "float32")))


def _is_one(node: Node, zero: Any) -> bool:
    return zero is None or math.prod(node.shape_of(zero)) == 1


def _known_weights(node: Node, weights: int, zero: int, axis: int) -> NDArray[np.int64] | None:
    """Return weights above their zero; None if the network computes them, or they are several matrices."""
    if not node.is_constant(weights) or (node.input(zero) is not None and not node.is_constant(zero)):
        return None
    known = above_zero(node, node.inputs[weights], node.input(zero), axis)
    found: NDArray[np.int64] = known.value.numpy().astype(np.int64)
    return found


@dataclass(frozen=True)
class _Split:
    """Weights as int8 and offsets: the products with an offset are it times the sum of the data.

    Attributes:
        weights: Whole numbers, the outputs first.
        offsets: By what each output's int8 are to be raised.
    """

    weights: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, weights: NDArray[np.int64]) -> _Split:
        rows, limits = weights.reshape(len(weights), -1), np.iinfo(np.int8)
        fits = (rows.min(axis=1) >= limits.min) & (rows.max(axis=1) <= limits.max)
        return cls(weights, np.where(fits, 0, rows.min(axis=1) - limits.min))

    @property
    def _sums_data(self) -> bool:
        return bool(self.offsets.any())

    def numbers(self, node: Node, outputs: int) -> Any:
        """Return the int8 behind a `dequantize`, outputs on an axis; with offsets, one output more sums the data."""
        low = self.weights - self.offsets.reshape(-1, *[1] * (self.weights.ndim - 1))
        if self._sums_data:
            low = np.concatenate([low, np.ones_like(low[:1])])
        whole = relax.const(np.ascontiguousarray(np.moveaxis(low, 0, outputs), np.int8), "int8")
        return _as_numbers(node, whole)

    def whole(self, node: Node, products: Any, zero: Any, axis: int) -> Any:
        """Return the products of the int8 as what they would be of the weights, with data above its zero, in int32."""
        outputs, sums_data = len(self.weights), self._sums_data
        totals = self.weights.reshape(outputs, -1).sum(axis=1)
        terms = [relax.const(one.astype(np.int32), "int32") for one in (totals, self.offsets)]
        shape = list(node.shape_of(products))
        shape[axis] = outputs

        def finished(made: Any, sums: Any, raised: Any, *zeros: Any) -> Any:
            def element(*place: Any) -> Any:
                value = te.round(made(*place)).astype("int32")
                if sums_data:
                    total = te.round(made(*place[:axis], outputs, *place[axis + 1 :])).astype("int32")
                    value = value + total * raised(place[axis])
                if zeros:
                    value = value - zeros[0](*[0] * len(zeros[0].shape)).astype("int32") * sums(place[axis])
                return value

            return te.compute(shape, element, name="whole")

        return node.compute(finished, products, *terms, *([] if zero is None else [zero]), name="integer_products")


def above_zero(node: Node, data: Any, zero: Any, axis: int) -> Any:
    """Return by how much bytes lie above their zero, in int32.

    Args:
        node: What is being converted.
        data: The bytes.
        zero: None, one number, one for each place along `axis`, or as many dimensions as the data.
        axis: An axis of the data.
    """
    whole = cast(node, data, "int32")
    if zero is None:
        return whole
    rank, shape = len(node.shape_of(data)), node.shape_of(zero)
    if math.prod(shape) == 1:
        shape = ()
    elif len(shape) == 1:
        shape = tuple(-1 if number == axis % rank else 1 for number in range(rank))
    offset = cast(node, zero, "int32")
    if node.is_known(offset):
        offset = relax.const(offset.value.numpy().reshape(shape), "int32")
        if node.is_known(whole):
            return relax.const(whole.value.numpy() - offset.value.numpy(), "int32")
    else:
        offset = node.emit(relax.op.reshape(offset, [zero.ty.shape[0] if size < 0 else size for size in shape]))
    return node.emit(relax.op.subtract(whole, offset))
