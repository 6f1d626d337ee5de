"""Reductions: sums, means, norms and running sums along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from toolchain.models.converters import converter
from toolchain.models.converters.tensor.arithmetic import is_integer
from toolchain.models.converters.tensor.casts import converted
from toolchain.models.converters.node import Node

Reduction = Callable[[Any, Sequence[int], bool], Any]


def reduced(function: Reduction, data: Any, axes: Sequence[int], *, keep: bool = True) -> Any:
    """Reduce along axes; along none, nothing changes."""
    return function(data, list(axes), keep) if axes else data


def reduction_axes(node: Node) -> list[int]:
    """Return the axes to reduce along, none of them negative.

    TVM's converters skip the function itself, such as the absolute value of ReduceL1, where there are none.
    """
    rank = len(node.shape(0))
    if 0 in node.shape(0):
        raise node.refusal("its input has no elements")
    given = node.integers(1, "axes")
    if given:
        return sorted({axis % rank for axis in given})
    return [] if node.attributes.get("noop_with_empty_axes", 0) else list(range(rank))


def widened(node: Node) -> tuple[Any, str]:
    """Return the input as an element type whose sums are exact enough, and that."""
    dtype = node.dtype(0)
    wide = {"float16": "float32", "bfloat16": "float32", "bool": "uint8"}.get(dtype, dtype)
    return node.emit(converted(node, node.inputs[0], wide)), wide


def _of_floats(node: Node) -> tuple[Any, str]:
    """Return the input as floats, and their type: 64 bits of integers, as the reference does."""
    data, dtype = widened(node)
    wide = "float64" if is_integer(dtype) else dtype
    return node.emit(converted(node, data, wide)), wide


def finished(node: Node, value: Any) -> Any:
    """Return a result in the element type of the node's input."""
    return converted(node, node.emit(value), node.dtype(0))


def keeps(node: Node) -> bool:
    """Whether axes that are reduced keep a size of 1."""
    return bool(node.attributes.get("keepdims", 1))


def simple(node: Node, function: Reduction, before: Callable[[Any], Any] = lambda x: x) -> Any:
    """Convert a node by a function that reduces, and one that comes before it."""
    data, _ = widened(node)
    return finished(node, reduced(function, node.emit(before(data)), reduction_axes(node), keep=keeps(node)))


@converter("ReduceSum")
def total(node: Node) -> Any:
    """Convert ReduceSum; of 16-bit floats as of 32-bit ones."""
    return simple(node, relax.op.sum)


@converter("ReduceProd")
def product(node: Node) -> Any:
    """Convert ReduceProd."""
    return simple(node, relax.op.prod)


@converter("ReduceL1")
def sum_of_magnitudes(node: Node) -> Any:
    """Convert ReduceL1."""
    return simple(node, relax.op.sum, relax.op.abs)


@converter("ReduceSumSquare")
def sum_of_squares(node: Node) -> Any:
    """Convert ReduceSumSquare."""
    return simple(node, relax.op.sum, lambda x: relax.op.multiply(x, x))


@converter("ReduceMean")
def mean(node: Node) -> Any:
    """Convert ReduceMean; TVM's divides integers as if they were floats, rounding down."""
    data, dtype = widened(node)
    axes = reduction_axes(node)
    if not is_integer(dtype):
        return finished(node, reduced(relax.op.mean, data, axes, keep=keeps(node)))
    count = 1
    for axis in axes:
        count *= node.shape(0)[axis]
    sums = node.emit(reduced(relax.op.sum, data, axes, keep=keeps(node)))

    def quotient(sums: te.Tensor) -> te.Tensor:
        divisor = tirx.const(count, dtype)
        return te.compute(sums.shape, lambda *at: tirx.truncdiv(sums(*at), divisor), "mean")

    return node.compute(quotient, sums, name="mean")


@converter("ReduceL2")
def norm(node: Node) -> Any:
    """Convert ReduceL2."""
    data, _ = _of_floats(node)
    squares = node.emit(relax.op.multiply(data, data))
    return finished(node, relax.op.sqrt(reduced(relax.op.sum, squares, reduction_axes(node), keep=keeps(node))))


@converter("ReduceLogSum")
def logarithm(node: Node) -> Any:
    """Convert ReduceLogSum."""
    data, _ = _of_floats(node)
    return finished(node, relax.op.log(reduced(relax.op.sum, data, reduction_axes(node), keep=keeps(node))))


@converter("ReduceLogSumExp")
def logarithm_of_exponentials(node: Node) -> Any:
    """Convert ReduceLogSumExp: the greatest is taken out, lest the exponentials overflow."""
    data, dtype = _of_floats(node)
    axes = reduction_axes(node)
    most = node.emit(reduced(relax.op.max, data, axes))
    most = node.emit(relax.op.where(relax.op.isfinite(most), most, relax.const(0, dtype)))
    powers = node.emit(relax.op.exp(relax.op.subtract(data, most)))
    result = node.emit(relax.op.add(relax.op.log(reduced(relax.op.sum, powers, axes)), most))
    return finished(node, result if keeps(node) or not axes else relax.op.squeeze(result, axes))


@converter("CumSum")
def running_sum(node: Node) -> Any:
    """Convert CumSum."""
    return _running(node, relax.op.cumsum)


@converter("CumProd")
def running_product(node: Node) -> Any:
    """Convert CumProd."""
    return _running(node, relax.op.cumprod)


def _running(node: Node, function: Callable[..., Any]) -> Any:
    (axis,) = (given % len(node.shape(0)) for given in node.integers(1, "axis") or [])
    data, wide = widened(node)
    if node.attributes.get("reverse", 0):
        data = node.emit(relax.op.flip(data, axis))
    data = node.emit(function(data, axis, dtype=wide, exclusive=bool(node.attributes.get("exclusive", 0))))
    if node.attributes.get("reverse", 0):
        data = node.emit(relax.op.flip(data, axis))
    return converted(node, data, node.dtype(0))
