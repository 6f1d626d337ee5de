"""Reductions along axes: sums, means, norms, extremes and their indices, and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.models.converters.tensor.arithmetic import is_integer
from toolchain.models.converters.tensor.casts import cast_to

Reduction = Callable[[Any, Sequence[int], bool], Any]


def reduce_along(function: Reduction, data: Any, axes: Sequence[int], *, keep: bool = True) -> Any:
    """Reduce along axes; without axes nothing changes."""
    return function(data, list(axes), keep) if axes else data


def reduction_axes(node: Node) -> list[int]:
    """Return the axes to reduce along, none of them negative."""
    rank = len(node.shape(0))
    if 0 in node.shape(0):
        raise node.refusal("its input has no elements")
    axes = node.integers(1, "axes")
    if axes:
        return sorted({axis % rank for axis in axes})
    # Without axes, TVM's converters skip the function itself, such as the absolute value of ReduceL1.
    return [] if node.attributes.get("noop_with_empty_axes", 0) else list(range(rank))


def widen(node: Node) -> tuple[Any, str]:
    """Return the input in an element type that is wide enough for its sums, and that type."""
    dtype = node.dtype(0)
    wide = {"float16": "float32", "bfloat16": "float32", "bool": "uint8"}.get(dtype, dtype)
    return node.emit(cast_to(node, node.inputs[0], wide)), wide


def _as_floats(node: Node) -> tuple[Any, str]:
    """Return the input as floats, and their type: float64 for integers, as the reference does."""
    data, dtype = widen(node)
    wide = "float64" if is_integer(dtype) else dtype
    return node.emit(cast_to(node, data, wide)), wide


def as_input_dtype(node: Node, value: Any) -> Any:
    return cast_to(node, node.emit(value), node.dtype(0))


def keeps_axes(node: Node) -> bool:
    return bool(node.attributes.get("keepdims", 1))


# How each operator reduces, and the function that it applies before.
_REDUCTIONS: dict[str, tuple[Reduction, Callable[[Any], Any]]] = {
    "ReduceSum": (relax.op.sum, lambda x: x),
    "ReduceProd": (relax.op.prod, lambda x: x),
    "ReduceL1": (relax.op.sum, relax.op.abs),
    "ReduceSumSquare": (relax.op.sum, lambda x: relax.op.multiply(x, x)),
    "ReduceMax": (relax.op.max, lambda x: x),
    "ReduceMin": (relax.op.min, lambda x: x),
}


# TVM's have no truth values, and too narrow sums of 16-bit floats.
@converter(*_REDUCTIONS)
def reduction(node: Node) -> Any:
    function, before = _REDUCTIONS[node.operator]
    data, _ = widen(node)
    axes, keep = reduction_axes(node), keeps_axes(node)
    return as_input_dtype(node, reduce_along(function, node.emit(before(data)), axes, keep=keep))


# TVM's divides integers as if they were floats, rounding down.
@converter("ReduceMean")
def mean(node: Node) -> Any:
    data, dtype = widen(node)
    axes = reduction_axes(node)
    if not is_integer(dtype):
        return as_input_dtype(node, reduce_along(relax.op.mean, data, axes, keep=keeps_axes(node)))
    count = 1
    for axis in axes:
        count *= node.shape(0)[axis]
    sums = node.emit(reduce_along(relax.op.sum, data, axes, keep=keeps_axes(node)))

    def quotient(sums: te.Tensor) -> te.Tensor:
        divisor = tirx.const(count, dtype)
        return te.compute(sums.shape, lambda *index: tirx.truncdiv(sums(*index), divisor), "mean")

    return node.compute(quotient, sums, name="mean")


@converter("ReduceL2")
def norm(node: Node) -> Any:
    data, _ = _as_floats(node)
    squares = node.emit(relax.op.multiply(data, data))
    sums = reduce_along(relax.op.sum, squares, reduction_axes(node), keep=keeps_axes(node))
    return as_input_dtype(node, relax.op.sqrt(sums))


@converter("ReduceLogSum")
def logarithm(node: Node) -> Any:
    data, _ = _as_floats(node)
    sums = reduce_along(relax.op.sum, data, reduction_axes(node), keep=keeps_axes(node))
    return as_input_dtype(node, relax.op.log(sums))


# The greatest element is subtracted first, so that no exponential overflows.
@converter("ReduceLogSumExp")
def logarithm_of_exponentials(node: Node) -> Any:
    data, dtype = _as_floats(node)
    axes = reduction_axes(node)
    greatest = node.emit(reduce_along(relax.op.max, data, axes))
    greatest = node.emit(relax.op.where(relax.op.isfinite(greatest), greatest, relax.const(0, dtype)))
    powers = node.emit(relax.op.exp(relax.op.subtract(data, greatest)))
    result = node.emit(relax.op.add(relax.op.log(reduce_along(relax.op.sum, powers, axes)), greatest))
    return as_input_dtype(node, result if keeps_axes(node) or not axes else relax.op.squeeze(result, axes))


@converter("CumSum", "CumProd")
def cumulate(node: Node) -> Any:
    function = relax.op.cumsum if node.operator == "CumSum" else relax.op.cumprod
    (axis,) = (axis % len(node.shape(0)) for axis in node.integers(1, "axis") or [])
    data, wide = widen(node)
    if node.attributes.get("reverse", 0):
        data = node.emit(relax.op.flip(data, axis))
    data = node.emit(function(data, axis, dtype=wide, exclusive=bool(node.attributes.get("exclusive", 0))))
    if node.attributes.get("reverse", 0):
        data = node.emit(relax.op.flip(data, axis))
    return cast_to(node, data, node.dtype(0))


@converter("ArgMax", "ArgMin")
def index_of_extreme(node: Node) -> Any:
    search = relax.op.argmax if node.operator == "ArgMax" else relax.op.argmin
    return _extreme_index(node, search, _axis(node, 0), keep=keeps_axes(node))


@converter("Hardmax")
def hardmax(node: Node) -> Any:
    """Return 1 where the first of the greatest elements is, else 0."""
    data, shape, axis = node.inputs[0], node.shape(0), _axis(node, -1)
    index = node.emit(_extreme_index(node, relax.op.argmax, axis, keep=True))
    numbers = relax.const(np.arange(shape[axis], dtype="int64").reshape(-1, *[1] * (len(shape) - axis - 1)))
    return relax.op.astype(node.emit(relax.op.equal(index, numbers)), data.ty.dtype)


def _axis(node: Node, default: int) -> int:
    return int(node.attributes.get("axis", default)) % max(len(node.shape(0)), 1)


def _extreme_index(node: Node, search: Callable[..., Any], axis: int, *, keep: bool) -> Any:
    # TVM's converters refuse negative axes of old operators.
    shape = node.shape(0)
    if not shape:
        return relax.const(0, "int64")
    data, _ = widen(node)
    last = bool(node.attributes.get("select_last_index", 0))
    if last:
        data = node.emit(relax.op.flip(data, axis))
    # It is -1 where nothing is better than the worst there is: in a row that is infinite, or not a number.
    index = node.emit(relax.op.maximum(search(data, axis, keep), relax.const(0, "int64")))
    return relax.op.subtract(relax.const(shape[axis] - 1, "int64"), index) if last else index
