"""Between numbers and bytes: QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.

A number is rounded half to even to a multiple of its scale, and limited to what its type holds. Bytes on a grid that is
one for all, or one for each channel, stay Relax's own `quantize` and `dequantize`: backends find those and compute in
integers what lies between. TVM's converters know no blocks, no 16-bit floats, and no zero points that are not of the
same type.
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

INTEGERS = frozenset({"int8", "uint8", "int16", "uint16"})
"""Types that QuantizeLinear can make here; each is of fewer bits than float32 holds exactly."""

_FLOATS = frozenset({"float32", "float16"})
_BYTE = 255.0  # steps of the grid of a byte


@dataclass(frozen=True)
class Grid:
    """What whole numbers stand for: scale * (whole - zero).

    Attributes:
        scale: Expression of a float type: one number, one along `axis`, or with blocks one for each block.
        zero: Expression of the same shape, of the type of the whole numbers; None for 0.
        axis: Axis of scales that are several.
        block: Elements along `axis` that have a scale in common; 0 if each place has its own.
    """

    scale: Any
    zero: Any = None
    axis: int = 1
    block: int = 0


def quantize(node: Node, data: Any, grid: Grid, dtype: str) -> Any:
    """Return numbers on a grid.

    Args:
        node: What is being converted.
        data: The numbers.
        grid: The grid.
        dtype: Type of the result.

    Raises:
        InputError: Nothing here makes that type.
    """
    _check(node, dtype, INTEGERS, "quantized to")
    _check(node, str(data.ty.dtype), _FLOATS | {"int32"}, "quantized from")
    grid = _normal(node, grid, data, dtype)
    if _is_relax(node, data, grid, str(data.ty.dtype)):
        return node.emit(relax.op.quantize(data, grid.scale, grid.zero, axis=grid.axis, out_dtype=dtype))

    def rounded(numbers: Any, scales: Any, zeros: Any) -> Any:
        def element(*place: Any) -> Any:
            one = _place(grid, scales, place)
            whole = te.round(numbers(*place).astype("float32") / scales(*one).astype("float32"))
            shifted = whole + zeros(*one).astype("float32")
            limited = te.max(te.min(shifted, _limit(tirx.max_value(dtype))), _limit(tirx.min_value(dtype)))
            return limited.astype(dtype)

        return te.compute(numbers.shape, element, name="quantized")

    return node.compute(rounded, data, grid.scale, grid.zero, name="quantize_linear")


def dequantize(node: Node, data: Any, grid: Grid, dtype: str = "float32") -> Any:
    """Return the numbers that whole ones stand for; the arguments are as in `quantize`.

    Raises:
        InputError: Nothing here makes or reads that type.
    """
    given = str(data.ty.dtype)
    _check(node, given, INTEGERS | {"int32", "float32"}, "dequantized from")
    _check(node, dtype, _FLOATS, "dequantized to")
    grid = _normal(node, grid, data, given)
    if _is_relax(node, data, grid, dtype) and given != "float32":
        return node.emit(relax.op.dequantize(data, grid.scale, grid.zero, axis=grid.axis, out_dtype=dtype))
    if all(map(node.is_known, (data, grid.scale, grid.zero))):
        return relax.const(_dequantized(data, grid).astype(dtype), dtype)
    wide = "float32" if given == "float32" else "int32"

    def scaled(whole: Any, scales: Any, zeros: Any) -> Any:
        def element(*place: Any) -> Any:
            one = _place(grid, scales, place)
            above = (whole(*place).astype(wide) - zeros(*one).astype(wide)).astype("float32")
            return (above * scales(*one).astype("float32")).astype(dtype)

        return te.compute(whole.shape, element, name="dequantized")

    return node.compute(scaled, data, grid.scale, grid.zero, name="dequantize_linear")


def _dequantized(data: Any, grid: Grid) -> NDArray[np.float32]:
    """Return the numbers that a constant on a grid of several dimensions stands for."""
    whole, scale, zero = (one.value.numpy().astype(np.float32) for one in (data, grid.scale, grid.zero))
    if grid.block:
        size = whole.shape[grid.axis]
        scale, zero = (one.repeat(grid.block, grid.axis).take(np.arange(size), grid.axis) for one in (scale, zero))
    elif scale.ndim == 1:
        along = [-1 if axis == grid.axis else 1 for axis in range(whole.ndim)]
        scale, zero = scale.reshape(along), zero.reshape(along)
    numbers: NDArray[np.float32] = (whole - zero) * scale
    return numbers


def grid_at(node: Node, first: int, axis: int = 1) -> Grid:
    """Return the grid whose scale is an input of a node, with its zero as the input after that."""
    return Grid(as_float32(node, node.inputs[first]), node.input(first + 1), axis)


def as_float32(node: Node, value: Any) -> Any:
    """Return an expression as float32."""
    return value if str(value.ty.dtype) == "float32" else cast(node, value, "float32")


def cast(node: Node, value: Any, dtype: str) -> Any:
    """Return an expression in another type; a constant as a constant."""
    if node.is_known(value):
        return relax.const(value.value.numpy().astype(dtype), dtype)
    return node.emit(relax.op.astype(value, dtype))


def _limit(value: Any) -> Any:
    return tirx.const(float(value.value), "float32")


def _check(node: Node, dtype: str, known: frozenset[str], word: str) -> None:
    if dtype not in known:
        raise node.refusal(f"there is no kernel for tensors {word} {dtype}; {', '.join(sorted(known))} can be")


def _normal(node: Node, grid: Grid, data: Any, whole: str) -> Grid:
    """Return a grid with its zero, with numbers of one element without dimensions, and an axis that is not negative."""
    rank, scale, zero = len(node.shape_of(data)), grid.scale, grid.zero
    if zero is None:
        zero = relax.const(np.zeros(node.shape_of(scale), whole), whole)
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


def _is_relax(node: Node, data: Any, grid: Grid, dtype: str) -> bool:
    """Whether Relax's own operators compute it: on float32, with scales along one axis."""
    along = len(node.shape_of(grid.scale)) <= 1 and not grid.block and len(node.shape_of(data)) > 0
    return along and dtype == str(grid.scale.ty.dtype) == "float32"


def _place(grid: Grid, scales: Any, place: Sequence[Any]) -> list[Any]:
    """Return where the scale of an element stands."""
    rank = len(scales.shape)
    if rank == 0:
        return []
    if grid.block:
        return [one // grid.block if axis == grid.axis else one for axis, one in enumerate(place)]
    if rank == 1:
        return [place[grid.axis]]
    return [0 if int(size) == 1 else one for size, one in zip(scales.shape, place, strict=True)]


@converter("QuantizeLinear", "com.microsoft.QuantizeLinear")
def _quantize_linear(node: Node) -> Any:
    """TVM's refuses blocks, and has a zero point as a 16-bit float where the data is one."""
    zero, given = node.input(2), int(node.attributes.get("output_dtype", 0))
    dtype = str(zero.ty.dtype) if zero is not None else _name(given or TensorProto.UINT8)
    return quantize(node, node.inputs[0], _linear_grid(node), dtype)


@converter("DequantizeLinear", "com.microsoft.DequantizeLinear")
def _dequantize_linear(node: Node) -> Any:
    """TVM's refuses blocks, and whole numbers that came as float32 because they were of an 8-bit float."""
    given = int(node.attributes.get("output_dtype", 0))
    dtype = _name(given) if given else node.dtype(1)
    return dequantize(node, node.inputs[0], _linear_grid(node), dtype)


def _linear_grid(node: Node) -> Grid:
    axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))
    return Grid(node.inputs[1], node.input(2), axis, block)


def _name(number: int) -> str:
    return str(helper.tensor_dtype_to_np_dtype(number))


@converter("DynamicQuantizeLinear")
def _dynamic_quantize_linear(node: Node) -> list[Any]:
    """TVM's divides by zero where all numbers are 0."""
    return list(on_own_grid(node, node.inputs[0]))


def on_own_grid(node: Node, data: Any) -> tuple[Any, Any, Any]:
    """Return numbers as uint8 on the grid that fits them, its scale, and its zero: DynamicQuantizeLinear."""
    least, greatest = (node.emit(reduce(data)) for reduce in (relax.op.min, relax.op.max))

    def scale(low: Any, high: Any) -> Any:
        span = te.max(high(), 0.0) - te.min(low(), 0.0)
        return te.compute((), lambda: tirx.Select(span > 0, span / _BYTE, 1.0), name="scale")

    def zero(low: Any, step: Any) -> Any:
        above = te.max(te.min(-te.min(low(), 0.0) / step(), _BYTE), 0.0)
        return te.compute((), lambda: te.round(above).astype("uint8"), name="zero")

    step = node.compute(scale, least, greatest, name="dynamic_scale")
    offset = node.compute(zero, least, step, name="dynamic_zero")
    return quantize(node, data, Grid(step, offset), "uint8"), step, offset
