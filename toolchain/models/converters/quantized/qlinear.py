"""Operators on bytes (ONNX Runtime's QOperator form), each as the same operator on numbers between grids.

That is the form in which the file of a quantized network has QuantizeLinear and DequantizeLinear around each operator:
backends know what of it to compute in integers, whichever form the file has.
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
    grid_at,
    on_own_grid,
    quantize,
)
from toolchain.models.converters.quantized.integers import integer_matmul

_TRIPLE = 3  # a tensor of bytes, its scale, and its zero


def _numbers(node: Node, first: int, axis: int = 1) -> Any:
    """Return the numbers of a tensor of bytes that is an input, with its scale and zero behind it."""
    return dequantize(node, node.inputs[first], grid_at(node, first + 1, axis))


def _rounded(node: Node, numbers: Any, first: int, like: int = 0) -> Any:
    """Return numbers on the grid whose scale is an input; without a zero they have the type of another input."""
    grid = grid_at(node, first)
    dtype = node.dtype(like) if grid.zero is None else str(grid.zero.ty.dtype)
    return quantize(node, numbers, grid, dtype)


@converter("QLinearConv")
def _conv(node: Node) -> Any:
    """A bias is in the unit of a product: the scale of the data times that of the weights."""
    inputs = [_numbers(node, 0), _numbers(node, 3, axis=0)]
    if node.input(8) is not None:
        inputs.append(_in_products(node, node.inputs[8], node.inputs[1], node.inputs[4]))
    return _rounded(node, as_operator(node, "Conv", inputs, node.attributes), 6)


def _in_products(node: Node, bias: Any, *scales: Any) -> Any:
    """Return the numbers of a bias in int32, whose unit is the product of scales."""
    (channels,) = node.shape_of(bias)
    return dequantize(node, bias, Grid(_product(node, scales, channels), axis=0))


def _product(node: Node, scales: Sequence[Any], channels: int) -> Any:
    """Return a product of scales: one number, or one for each channel."""
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


@converter("QLinearMatMul")
def _matmul(node: Node) -> Any:
    """The left may have a scale for each row, the right one for each column."""
    left, right = _numbers(node, 0, axis=-2), _numbers(node, 3, axis=-1)
    return _rounded(node, node.emit(relax.op.matmul(left, right)), 6)


@converter("com.microsoft.QGemm")
def _gemm(node: Node) -> Any:
    """The bias is in the unit of a product, `alpha` included; without a scale the result is numbers."""
    turned = bool(node.attributes.get("transB", 0))
    inputs = [_numbers(node, 0), _numbers(node, 3, axis=0 if turned else 1)]
    attributes = {name: node.attributes[name] for name in ("transA", "transB", "alpha") if name in node.attributes}
    product = as_operator(node, "Gemm", inputs, attributes)
    bias = node.input(6)
    if bias is not None:
        alpha = relax.const(float(node.attributes.get("alpha", 1.0)), "float32")
        unit = _product(node, [node.inputs[1], node.inputs[4], alpha], node.shape_of(product)[-1])
        product = node.emit(relax.op.add(product, dequantize(node, bias, Grid(unit, axis=-1))))
    return product if node.input(7) is None else _rounded(node, product, 7)


@converter("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul")
def _pair(node: Node) -> Any:
    operator = node.operator.removeprefix("com.microsoft.QLinear")
    return _rounded(node, as_operator(node, operator, [_numbers(node, 0), _numbers(node, _TRIPLE)], {}), 6)


@converter("com.microsoft.QLinearSigmoid", "com.microsoft.QLinearLeakyRelu")
def _function(node: Node) -> Any:
    """Data, scale, zero, and the scale and zero of the result."""
    operator = node.operator.removeprefix("com.microsoft.QLinear")
    return _rounded(node, as_operator(node, operator, [_numbers(node, 0)], node.attributes), _TRIPLE)


@converter("com.microsoft.QLinearSoftmax")
def _softmax(node: Node) -> Any:
    """It is that of the version of the standard that an attribute names."""
    axis = {"axis": node.attributes["axis"]} if "axis" in node.attributes else {}
    made = as_operator(node, "Softmax", [_numbers(node, 0)], axis, opset=int(node.attributes.get("opset", 0)))
    return _rounded(node, made, _TRIPLE)


@converter("com.microsoft.QLinearGlobalAveragePool", "com.microsoft.QLinearAveragePool")
def _pool(node: Node) -> Any:
    """The channels may be the last axis."""
    operator = node.operator.removeprefix("com.microsoft.QLinear")
    given = {name: value for name, value in node.attributes.items() if name != "channels_last"}
    numbers, rank = _numbers(node, 0), len(node.shape(0))
    last = bool(node.attributes.get("channels_last", 0))
    if last:
        numbers = node.emit(relax.op.permute_dims(numbers, [0, rank - 1, *range(1, rank - 1)]))
    pooled = as_operator(node, operator, [numbers], given)
    if last:
        pooled = node.emit(relax.op.permute_dims(pooled, [0, *range(2, rank), 1]))
    return _rounded(node, pooled, _TRIPLE)


@converter("com.microsoft.QLinearConcat")
def _concat(node: Node) -> Any:
    """The grid of the result comes first."""
    parts = [_numbers(node, first) for first in range(2, len(node.inputs), _TRIPLE)]
    return _rounded(node, as_operator(node, "Concat", parts, node.attributes), 0, like=2)


@converter("com.microsoft.QLinearWhere")
def _where(node: Node) -> Any:
    parts = [_numbers(node, 1), _numbers(node, 4)]
    return _rounded(node, as_operator(node, "Where", [node.inputs[0], *parts], {}), 7, like=1)


@converter("com.microsoft.MatMulIntegerToFloat")
def _matmul_to_float(node: Node) -> Any:
    """Left, right, their scales, their zeros, and a bias of numbers."""
    whole = integer_matmul(node, (0, 4), (1, 5))
    return _scaled(node, whole, node.inputs[2:4], node.input(6))


@converter("com.microsoft.DynamicQuantizeMatMul")
def _dynamic_matmul(node: Node) -> Any:
    """Numbers, a matrix of bytes, its scale, its zero, and a bias of numbers."""
    left, scale, zero = on_own_grid(node, node.inputs[0])
    whole = integer_matmul(node, (0, 0), (1, 3), zero, left)
    return _scaled(node, whole, [scale, node.inputs[2]], node.input(4))


def _scaled(node: Node, whole: Any, scales: Sequence[Any], bias: Any) -> Any:
    """Return sums of products as numbers: times the scales, plus a bias."""
    unit = _product(node, scales, node.shape_of(whole)[-1])
    numbers = node.emit(relax.op.multiply(cast(node, whole, "float32"), unit))
    return numbers if bias is None else node.emit(relax.op.add(numbers, bias))
