"""Operators on bytes (ONNX Runtime's QOperator form), each as the same operator on numbers between grids.

This is the form of files with QuantizeLinear and DequantizeLinear around each operator, in which backends find what to
compute in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

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
from toolchain.models.converters.quantized.integers import integer_matmul

_STEP = 3  # a tensor of bytes, its scale, and its zero


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
