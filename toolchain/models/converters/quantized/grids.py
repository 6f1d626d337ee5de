"""Quantized tensors: QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.

A number is rounded half to even to a multiple of its scale, and limited to the range of its type. With one scale, or
one for each channel, these stay Relax's `quantize` and `dequantize`: backends find those and compute in integers
between them. TVM's converters support no blocks, no 16-bit floats, and no zero points of another type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.models.converters.quantized.packed import PackedWeights
from toolchain.models.converters.quantized.packed import emit as emit_packed
from toolchain.models.converters.quantized.packed import of_blocks as packed_of_blocks

INTEGERS = frozenset({"int8", "uint8", "int16", "uint16"})
"""Types that QuantizeLinear can make here; each is of fewer bits than float32 holds exactly."""

_FLOATS = frozenset({"float32", "float16"})
_BYTE = 255.0  # steps of the grid of a byte


@dataclass(frozen=True)
class Grid:
    """The numbers that integers stand for: scale * (integer - zero).

    Attributes:
        scale: Expression of a float type: a scalar, a vector along `axis`, or with blocks one element for each block.
        zero: Expression of the same shape, of the type of the integers; None for 0.
        axis: Axis of scales that are several.
        block: Elements along `axis` that share a scale; 0 if each has its own.
    """

    scale: Any
    zero: Any = None
    axis: int = 1
    block: int = 0


def quantize(node: Node, data: Any, grid: Grid, dtype: str) -> Any:
    _check_dtype(node, dtype, INTEGERS, "quantized to")
    _check_dtype(node, str(data.ty.dtype), _FLOATS | {"int32"}, "quantized from")
    grid = _normalize_grid(node, grid, data, dtype)
    if _suits_relax(node, data, grid, str(data.ty.dtype)):
        return node.emit(relax.op.quantize(data, grid.scale, grid.zero, axis=grid.axis, out_dtype=dtype))

    def rounded(numbers: Any, scales: Any, zeros: Any) -> Any:
        def element(*index: Any) -> Any:
            scale_index = _scale_index(grid, scales, index)
            whole = te.round(numbers(*index).astype("float32") / scales(*scale_index).astype("float32"))
            shifted = whole + zeros(*scale_index).astype("float32")
            # Limited as floats: the conversion of a float beyond the type's range is undefined.
            limited = te.max(te.min(shifted, _float_limit(tirx.max_value(dtype))), _float_limit(tirx.min_value(dtype)))
            return limited.astype(dtype)

        return te.compute(numbers.shape, element, name="quantized")

    return node.compute(rounded, data, grid.scale, grid.zero, name="quantize_linear")


def dequantize(node: Node, data: Any, grid: Grid, dtype: str = "float32") -> Any:
    """Return the numbers that integers stand for."""
    input_dtype = str(data.ty.dtype)
    _check_dtype(node, input_dtype, INTEGERS | {"int32", "float32"}, "dequantized from")
    _check_dtype(node, dtype, _FLOATS, "dequantized to")
    grid = _normalize_grid(node, grid, data, input_dtype)
    if _suits_relax(node, data, grid, dtype) and input_dtype != "float32":
        return node.emit(relax.op.dequantize(data, grid.scale, grid.zero, axis=grid.axis, out_dtype=dtype))
    if all(map(node.is_known, (data, grid.scale, grid.zero))):
        packed = _packed(data, grid) if grid.block and dtype == "float32" else None
        if packed is not None:
            unpacked, shape = emit_packed(node, packed), [int(size) for size in data.ty.shape]
            if len(shape) > len(packed.numbers.shape):
                return node.emit(relax.op.reshape(unpacked, shape))
            return node.emit(relax.op.permute_dims(unpacked)) if grid.axis == 0 else unpacked
        return relax.const(_dequantize_constant(data, grid).astype(dtype), dtype)
    wide = "float32" if input_dtype == "float32" else "int32"

    def scaled(whole: Any, scales: Any, zeros: Any) -> Any:
        def element(*index: Any) -> Any:
            scale_index = _scale_index(grid, scales, index)
            above = (whole(*index).astype(wide) - zeros(*scale_index).astype(wide)).astype("float32")
            return (above * scales(*scale_index).astype("float32")).astype(dtype)

        return te.compute(whole.shape, element, name="dequantized")

    return node.compute(scaled, data, grid.scale, grid.zero, name="dequantize_linear")


def _packed(data: Any, grid: Grid) -> PackedWeights | None:
    whole, scale, zero = (value.value.numpy() for value in (data, grid.scale, grid.zero))
    return packed_of_blocks(whole, scale, zero, grid.axis, grid.block)


def _dequantize_constant(data: Any, grid: Grid) -> NDArray[np.float32]:
    """Return the numbers that constant integers on a grid of several dimensions stand for."""
    whole, scale, zero = (value.value.numpy().astype(np.float32) for value in (data, grid.scale, grid.zero))
    if grid.block:
        size = whole.shape[grid.axis]
        scale, zero = (value.repeat(grid.block, grid.axis).take(np.arange(size), grid.axis) for value in (scale, zero))
    elif scale.ndim == 1:
        shape = [-1 if axis == grid.axis else 1 for axis in range(whole.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    numbers: NDArray[np.float32] = (whole - zero) * scale
    return numbers


def input_grid(node: Node, first: int, axis: int = 1) -> Grid:
    """Return the grid whose scale is an input of a node, and whose zero is the next input."""
    return Grid(as_float32(node, node.inputs[first]), node.input(first + 1), axis)


def as_float32(node: Node, value: Any) -> Any:
    return value if str(value.ty.dtype) == "float32" else cast(node, value, "float32")


def cast(node: Node, value: Any, dtype: str) -> Any:
    """Return an expression in another type; a constant stays one."""
    if node.is_known(value):
        return relax.const(value.value.numpy().astype(dtype), dtype)
    return node.emit(relax.op.astype(value, dtype))


def _float_limit(value: Any) -> Any:
    return tirx.const(float(value.value), "float32")


def _check_dtype(node: Node, dtype: str, supported: frozenset[str], purpose: str) -> None:
    if dtype not in supported:
        raise node.refusal(f"there is no kernel for tensors {purpose} {dtype}; {', '.join(sorted(supported))} can be")


def _normalize_grid(node: Node, grid: Grid, data: Any, zero_dtype: str) -> Grid:
    """Return a grid with a zero, with scalars for single elements, and a non-negative axis."""
    rank, scale, zero = len(node.shape_of(data)), grid.scale, grid.zero
    if zero is None:
        zero = relax.const(np.zeros(node.shape_of(scale), zero_dtype), zero_dtype)
    if math.prod(node.shape_of(scale)) == 1:
        scale, zero = _scalar(node, scale), _scalar(node, zero)
        return Grid(scale, zero, max(rank - 1, 0))
    if not -rank <= grid.axis < rank:
        raise node.refusal(f"axis {grid.axis} is not one of the {rank} axes of its data")
    return Grid(scale, zero, grid.axis % rank, grid.block)


def _scalar(node: Node, value: Any) -> Any:
    if not node.shape_of(value):
        return value
    if node.is_known(value):
        array = value.value.numpy()
        return relax.const(array.reshape(()), str(array.dtype))
    return node.emit(relax.op.reshape(value, ()))


def _suits_relax(node: Node, data: Any, grid: Grid, dtype: str) -> bool:
    """Whether Relax's own operators compute it: on float32, with scales along one axis."""
    has_one_axis = len(node.shape_of(grid.scale)) <= 1 and not grid.block and len(node.shape_of(data)) > 0
    return has_one_axis and dtype == str(grid.scale.ty.dtype) == "float32"


def _scale_index(grid: Grid, scales: Any, index: Sequence[Any]) -> list[Any]:
    rank = len(scales.shape)
    if rank == 0:
        return []
    if grid.block:
        return [position // grid.block if axis == grid.axis else position for axis, position in enumerate(index)]
    if rank == 1:
        return [index[grid.axis]]
    return [0 if int(size) == 1 else position for size, position in zip(scales.shape, index, strict=True)]


# TVM's refuses blocks, and has a 16-bit float as zero point if the data is one.
@converter("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize_linear(node: Node) -> Any:
    zero, output_dtype = node.input(2), int(node.attributes.get("output_dtype", 0))
    dtype = str(zero.ty.dtype) if zero is not None else _dtype_name(output_dtype or TensorProto.UINT8)
    return quantize(node, node.inputs[0], _linear_grid(node), dtype)


# TVM's refuses blocks, and the float32 that takes the place of an 8-bit float.
@converter("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_linear(node: Node) -> Any:
    output_dtype = int(node.attributes.get("output_dtype", 0))
    dtype = _dtype_name(output_dtype) if output_dtype else node.dtype(1)
    return dequantize(node, node.inputs[0], _linear_grid(node), dtype)


def _linear_grid(node: Node) -> Grid:
    axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))
    return Grid(node.inputs[1], node.input(2), axis, block)


def _dtype_name(number: int) -> str:
    return str(helper.tensor_dtype_to_np_dtype(number))


# TVM's divides by zero if all numbers are 0.
@converter("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node) -> list[Any]:
    return list(quantize_dynamically(node, node.inputs[0]))


def quantize_dynamically(node: Node, data: Any) -> tuple[Any, Any, Any]:
    """Return numbers as uint8 on the grid that fits them, its scale, and its zero: DynamicQuantizeLinear."""
    lowest, highest = (node.emit(reduce(data)) for reduce in (relax.op.min, relax.op.max))

    def scale(low: Any, high: Any) -> Any:
        span = te.max(high(), 0.0) - te.min(low(), 0.0)  # 0 must lie on the grid
        return te.compute((), lambda: tirx.Select(span > 0, span / _BYTE, 1.0), name="scale")

    def zero(low: Any, step: Any) -> Any:
        above = te.max(te.min(-te.min(low(), 0.0) / step(), _BYTE), 0.0)
        return te.compute((), lambda: te.round(above).astype("uint8"), name="zero")

    step = node.compute(scale, lowest, highest, name="dynamic_scale")
    offset = node.compute(zero, lowest, step, name="dynamic_zero")
    return quantize(node, data, Grid(step, offset), "uint8"), step, offset
