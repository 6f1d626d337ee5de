"""Operators on bytes (ONNX Runtime's QOperator form), each as the same operator on numbers between grids.

This is the form of files with QuantizeLinear and DequantizeLinear around each operator, in which backends find what to
compute in integers. ConvInteger and MatMulInteger are sums of products in int32: with constant weights they are written
as a layer on bytes whose scales are 1, and the zero points' contribution follows from sums of the weights and the data.
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
from toolchain.models.converters.quantized.grids import (
    Grid,
    as_float32,
    cast,
    dequantize,
    input_grid,
    quantize,
    quantize_dynamically,
)

_MATRIX, _IMAGE = 2, 4  # dimensions

_STEP = 3  # a tensor of bytes, its scale, and its zero


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


def _dequantize_input(node: Node, first: int, axis: int = 1) -> Any:
    """Return the numbers of an input of bytes, whose scale and zero are the next inputs."""
    return dequantize(node, node.inputs[first], input_grid(node, first + 1, axis))


def _quantize_output(node: Node, numbers: Any, first: int, like: int = 0) -> Any:
    """Return numbers on the grid whose scale is an input; without a zero, in the element type of input `like`."""
    grid = input_grid(node, first)
    dtype = node.dtype(like) if grid.zero is None else str(grid.zero.ty.dtype)
    return quantize(node, numbers, grid, dtype)


# The unit of its bias is the product of the scales of data and weights.
@converter("QLinearConv")
def qlinear_conv(node: Node) -> Any:
    inputs = [_dequantize_input(node, 0), _dequantize_input(node, 3, axis=0)]
    if node.input(8) is not None:
        (channels,) = node.shape(8)
        unit = _scale_product(node, [node.inputs[1], node.inputs[4]], channels)
        inputs.append(dequantize(node, node.inputs[8], Grid(unit, axis=0)))
    return _quantize_output(node, as_operator(node, "Conv", inputs, node.attributes), 6)


def _scale_product(node: Node, scales: Sequence[Any], channels: int) -> Any:
    """Return the product of scales: a scalar, or one element for each channel."""
    scales = [as_float32(node, scale) for scale in scales]
    if all(map(node.is_known, scales)):
        product = scales[0].value.numpy().reshape(-1)
        for scale in scales[1:]:
            product = product * scale.value.numpy().reshape(-1)
        return relax.const(product, "float32")
    product = relax.const(1.0, "float32")
    for scale in scales:
        sizes = node.shape_of(scale)
        flat = node.emit(relax.op.reshape(scale, (channels if channels in sizes else 1,)))
        product = node.emit(relax.op.multiply(product, flat))
    return product


# The left may have a scale for each row, the right one for each column.
@converter("QLinearMatMul")
def qlinear_matmul(node: Node) -> Any:
    left, right = _dequantize_input(node, 0, axis=-2), _dequantize_input(node, 3, axis=-1)
    return _quantize_output(node, node.emit(relax.op.matmul(left, right)), 6)


# The unit of its bias includes `alpha`; without an output scale its result is float.
@converter("com.microsoft.QGemm")
def qgemm(node: Node) -> Any:
    is_transposed = bool(node.attributes.get("transB", 0))
    inputs = [_dequantize_input(node, 0), _dequantize_input(node, 3, axis=0 if is_transposed else 1)]
    attributes = {name: node.attributes[name] for name in ("transA", "transB", "alpha") if name in node.attributes}
    product = as_operator(node, "Gemm", inputs, attributes)
    bias = node.input(6)
    if bias is not None:
        alpha = relax.const(float(node.attributes.get("alpha", 1.0)), "float32")
        unit = _scale_product(node, [node.inputs[1], node.inputs[4], alpha], node.shape_of(product)[-1])
        product = node.emit(relax.op.add(product, dequantize(node, bias, Grid(unit, axis=-1))))
    return product if node.input(7) is None else _quantize_output(node, product, 7)


@converter("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul")
def qlinear_binary(node: Node) -> Any:
    operator = node.operator.removeprefix("com.microsoft.QLinear")
    return _quantize_output(
        node, as_operator(node, operator, [_dequantize_input(node, 0), _dequantize_input(node, _STEP)], {}), 6
    )


# Inputs: data, scale, zero, and the scale and zero of the result.
@converter("com.microsoft.QLinearSigmoid", "com.microsoft.QLinearLeakyRelu")
def qlinear_function(node: Node) -> Any:
    operator = node.operator.removeprefix("com.microsoft.QLinear")
    return _quantize_output(node, as_operator(node, operator, [_dequantize_input(node, 0)], node.attributes), _STEP)


# It is that of the opset that an attribute names.
@converter("com.microsoft.QLinearSoftmax")
def qlinear_softmax(node: Node) -> Any:
    axis = {"axis": node.attributes["axis"]} if "axis" in node.attributes else {}
    probabilities = as_operator(
        node, "Softmax", [_dequantize_input(node, 0)], axis, opset=int(node.attributes.get("opset", 0))
    )
    return _quantize_output(node, probabilities, _STEP)


# The channels may be the last axis.
@converter("com.microsoft.QLinearGlobalAveragePool", "com.microsoft.QLinearAveragePool")
def qlinear_pool(node: Node) -> Any:
    operator = node.operator.removeprefix("com.microsoft.QLinear")
    attributes = {name: value for name, value in node.attributes.items() if name != "channels_last"}
    numbers, rank = _dequantize_input(node, 0), len(node.shape(0))
    last = bool(node.attributes.get("channels_last", 0))
    if last:
        numbers = node.emit(relax.op.permute_dims(numbers, [0, rank - 1, *range(1, rank - 1)]))
    pooled = as_operator(node, operator, [numbers], attributes)
    if last:
        pooled = node.emit(relax.op.permute_dims(pooled, [0, *range(2, rank), 1]))
    return _quantize_output(node, pooled, _STEP)


# The grid of the result comes first.
@converter("com.microsoft.QLinearConcat")
def qlinear_concat(node: Node) -> Any:
    tensors = [_dequantize_input(node, first) for first in range(2, len(node.inputs), _STEP)]
    return _quantize_output(node, as_operator(node, "Concat", tensors, node.attributes), 0, like=2)


@converter("com.microsoft.QLinearWhere")
def qlinear_where(node: Node) -> Any:
    tensors = [_dequantize_input(node, 1), _dequantize_input(node, 4)]
    return _quantize_output(node, as_operator(node, "Where", [node.inputs[0], *tensors], {}), 7, like=1)


# Inputs: left, right, their scales, their zeros, and a bias of numbers.
@converter("com.microsoft.MatMulIntegerToFloat")
def matmul_integer_to_float(node: Node) -> Any:
    sums = integer_matmul(node, (0, 4), (1, 5))
    return _rescale(node, sums, node.inputs[2:4], node.input(6))


# Inputs: numbers, a matrix of bytes, its scale, its zero, and a bias of numbers.
@converter("com.microsoft.DynamicQuantizeMatMul")
def dynamic_quantize_matmul(node: Node) -> Any:
    left, scale, zero = quantize_dynamically(node, node.inputs[0])
    sums = integer_matmul(node, (0, 0), (1, 3), zero, left)
    return _rescale(node, sums, [scale, node.inputs[2]], node.input(4))


def _rescale(node: Node, sums: Any, scales: Sequence[Any], bias: Any) -> Any:
    """Return sums of products as numbers: times the scales, plus a bias."""
    unit = _scale_product(node, scales, node.shape_of(sums)[-1])
    numbers = node.emit(relax.op.multiply(cast(node, sums, "float32"), unit))
    return numbers if bias is None else node.emit(relax.op.add(numbers, bias))
