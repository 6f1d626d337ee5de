"""Sums of products of bytes in int32: ConvInteger and MatMulInteger.

With constant weights they are written as a layer on bytes whose scales are 1, which backends compute in bytes. The zero
points' contribution follows from sums of the weights and of the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx

from toolchain.models.converters import Node, as_operator, converter
from toolchain.models.converters.quantized.grids import Grid, cast, dequantize

_MATRIX, _IMAGE = 2, 4  # dimensions


@converter("ConvInteger")
def conv_integer(node: Node) -> Any:
    """Convolve the integers above the zero points."""
    weights = _constant_weights(node, 1, 3, 0)
    is_plain = str(node.attributes.get("auto_pad", "NOTSET")) == "NOTSET" and int(node.attributes.get("group", 1)) == 1
    if weights is not None and weights.ndim == _IMAGE and is_plain and _is_single(node, node.input(2)):
        return _conv_of_bytes(node, weights)
    data = above_zero(node, node.inputs[0], node.input(2), 0)
    kernel = above_zero(node, node.inputs[1], node.input(3), 0)
    return as_operator(node, "Conv", [data, kernel], node.attributes)


def _conv_of_bytes(node: Node, weights: NDArray[np.int64]) -> Any:
    """Return a convolution in the form that backends compute in bytes; the zero points are subtracted afterwards.

    Padding stands for the zero point, which may be computed: the bytes are padded with it first.
    """
    split = _SplitWeights.of(weights)
    data, zero = node.inputs[0], node.input(2)
    pads = [int(size) for size in node.attributes.get("pads", [0] * 4)]
    if any(pads):
        top, left, bottom, right = pads
        batch, channels, height, width = node.shape_of(data)

        def compute(image: Any, *zeros: Any) -> Any:
            def element(number: Any, channel: Any, row: Any, column: Any) -> Any:
                filler = zeros[0](*[0] * len(zeros[0].shape)) if zeros else tirx.const(0, image.dtype)
                inside = tirx.all(row >= top, row < top + height, column >= left, column < left + width)
                return tirx.if_then_else(inside, image(number, channel, row - top, column - left), filler)

            return te.compute((batch, channels, height + top + bottom, width + left + right), element, name="padded")

        data = node.compute(compute, data, *([] if zero is None else [zero]), name="pad_bytes")
    attributes = {name: value for name, value in node.attributes.items() if name not in {"pads", "auto_pad"}}
    products = as_operator(node, "Conv", [_dequantize_by_one(node, data), split.numbers(node, 0)], attributes)
    return split.integer_sums(node, products, zero, 1)


# TVM's converts constants when the network runs, and computes in 32 bits.
@converter("MatMulInteger")
def matmul_integer(node: Node) -> Any:
    return integer_matmul(node, (0, 2), (1, 3))


def integer_matmul(
    node: Node, left: tuple[int, int], right: tuple[int, int], zero: Any = None, data: Any = None
) -> Any:
    """Return the product of matrices of bytes in int32; a zero is one number, or one for each row or column.

    `left` and `right` are the indices of the inputs with matrices and their zero; `data` and `zero` replace the left
    ones.
    """
    data = node.inputs[left[0]] if data is None else data
    zero = node.input(left[1]) if zero is None else zero
    weights = _constant_weights(node, *right, -1)
    shape = node.shape_of(data)
    if weights is not None and weights.ndim == _MATRIX and len(shape) > 1 and _is_single(node, zero):
        # The form that backends compute in bytes: rows times constant weights.
        split = _SplitWeights.of(weights.T)
        is_matrix = len(shape) == _MATRIX
        rows = data if is_matrix else node.emit(relax.op.reshape(data, (math.prod(shape[:-1]), shape[-1])))
        products = node.emit(relax.op.matmul(_dequantize_by_one(node, rows), split.numbers(node, 1)))
        sums = split.integer_sums(node, products, zero, 1)
        return sums if is_matrix else node.emit(relax.op.reshape(sums, (*shape[:-1], weights.shape[1])))
    rows = above_zero(node, data, zero, -2)
    columns = above_zero(node, node.inputs[right[0]], node.input(right[1]), -1)
    return node.emit(relax.op.matmul(rows, columns, out_dtype="int32"))


def _dequantize_by_one(node: Node, data: Any) -> Any:
    return dequantize(node, data, Grid(relax.const(1.0, "float32")))


def _is_single(node: Node, zero: Any) -> bool:
    return zero is None or math.prod(node.shape_of(zero)) == 1


def _constant_weights(node: Node, weights: int, zero: int, axis: int) -> NDArray[np.int64] | None:
    """Return weights above their zero; None if they are not constant."""
    if not node.is_constant(weights) or (node.input(zero) is not None and not node.is_constant(zero)):
        return None
    constant = above_zero(node, node.inputs[weights], node.input(zero), axis)
    values: NDArray[np.int64] = constant.value.numpy().astype(np.int64)
    return values


# The products with an offset are the offset times the sum of the data.
@dataclass(frozen=True)
class _SplitWeights:
    """Integer weights, outputs first, as int8 plus an offset for each output."""

    weights: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, weights: NDArray[np.int64]) -> _SplitWeights:
        rows, limits = weights.reshape(len(weights), -1), np.iinfo(np.int8)
        fits = (rows.min(axis=1) >= limits.min) & (rows.max(axis=1) <= limits.max)
        return cls(weights, np.where(fits, 0, rows.min(axis=1) - limits.min))

    @property
    def _sums_data(self) -> bool:
        return bool(self.offsets.any())

    def numbers(self, node: Node, outputs: int) -> Any:
        """Return the int8 behind a `dequantize`, outputs on an axis; with offsets, one more output sums the data."""
        shifted = self.weights - self.offsets.reshape(-1, *[1] * (self.weights.ndim - 1))
        if self._sums_data:
            shifted = np.concatenate([shifted, np.ones_like(shifted[:1])])
        constant = relax.const(np.ascontiguousarray(np.moveaxis(shifted, 0, outputs), np.int8), "int8")
        return _dequantize_by_one(node, constant)

    def integer_sums(self, node: Node, products: Any, zero: Any, axis: int) -> Any:
        """Return the products of the int8 in int32, corrected for offsets and the zero of the data."""
        outputs, sums_data = len(self.weights), self._sums_data
        totals = self.weights.reshape(outputs, -1).sum(axis=1)
        terms = [relax.const(term.astype(np.int32), "int32") for term in (totals, self.offsets)]
        shape = list(node.shape_of(products))
        shape[axis] = outputs

        def compute(products: Any, sums: Any, raised: Any, *zeros: Any) -> Any:
            def element(*index: Any) -> Any:
                value = te.round(products(*index)).astype("int32")
                if sums_data:
                    total = te.round(products(*index[:axis], outputs, *index[axis + 1 :])).astype("int32")
                    value = value + total * raised(index[axis])
                if zeros:
                    value = value - zeros[0](*[0] * len(zeros[0].shape)).astype("int32") * sums(index[axis])
                return value

            return te.compute(shape, element, name="whole")

        return node.compute(compute, products, *terms, *([] if zero is None else [zero]), name="integer_products")


def above_zero(node: Node, data: Any, zero: Any, axis: int) -> Any:
    """Return how far bytes lie above their zero, in int32.

    The zero is None, one number, one for each position along `axis` of the data, or a tensor of the data's rank.
    """
    integers = cast(node, data, "int32")
    if zero is None:
        return integers
    rank, shape = len(node.shape_of(data)), node.shape_of(zero)
    if math.prod(shape) == 1:
        shape = ()
    elif len(shape) == 1:
        shape = tuple(-1 if number == axis % rank else 1 for number in range(rank))
    offset = cast(node, zero, "int32")
    if node.is_known(offset):
        offset = relax.const(offset.value.numpy().reshape(shape), "int32")
        if node.is_known(integers):
            return relax.const(integers.value.numpy() - offset.value.numpy(), "int32")
    else:
        offset = node.emit(relax.op.reshape(offset, [zero.ty.shape[0] if size < 0 else size for size in shape]))
    return node.emit(relax.op.subtract(integers, offset))
