"""Sequences of tensors: tuples whose length and positions are known when the network is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node


@converter("SequenceEmpty", "SequenceConstruct")
def sequence_of(node: Node) -> Any:
    """Convert SequenceConstruct: all that is given, in its order."""
    return relax.Tuple(list(node.inputs))


@converter("SequenceInsert")
def inserted(node: Node) -> Any:
    """Convert SequenceInsert: TVM counts positions below zero from behind the end, and ONNX from the end."""
    items = _items(node)
    at = _position(node, 2, len(items), len(items))
    return relax.Tuple([*items[:at], node.input(1), *items[at:]])


@converter("SequenceErase")
def erased(node: Node) -> Any:
    """Convert SequenceErase."""
    items = _items(node)
    at = _position(node, 1, len(items), len(items) - 1)
    return relax.Tuple([*items[:at], *items[at + 1 :]])


@converter("SequenceAt")
def taken(node: Node) -> Any:
    """Convert SequenceAt."""
    items = _items(node)
    return items[_position(node, 1, len(items), len(items) - 1)]


@converter("SequenceLength")
def length(node: Node) -> Any:
    """Convert SequenceLength: a constant."""
    return relax.const(len(_items(node)), "int64")


@converter("ConcatFromSequence")
def joined(node: Node) -> Any:
    """Convert ConcatFromSequence: along an axis, or along a new one."""
    items, axis = _items(node), int(node.attributes["axis"])
    if not items:
        raise node.refusal("its sequence is empty")
    if node.attributes.get("new_axis", 0):
        items = [node.emit(relax.op.expand_dims(item, axis)) for item in items]
    return relax.op.concat(items, axis)


@converter("SplitToSequence")
def parted(node: Node) -> Any:
    """Convert SplitToSequence: TVM divides evenly what ONNX divides into parts of one size and a smaller last one."""
    shape, axis = node.shape(0), int(node.attributes.get("axis", 0))
    if not -len(shape) <= axis < len(shape):
        raise node.refusal(f"it splits axis {axis} of a tensor with {len(shape)} axes")
    axis %= len(shape)
    sizes, start, items = _sizes(node, shape[axis]), 0, []
    for size in sizes:
        items.append(node.emit(relax.op.strided_slice(node.input(0), [axis], [start], [start + size])))
        start += size
    if node.input(1) is None and not node.attributes.get("keepdims", 1):
        items = [node.emit(relax.op.squeeze(item, [axis])) for item in items]
    return relax.Tuple(items)


def _sizes(node: Node, whole: int) -> Sequence[int]:
    """Return the sizes of the parts along the axis that is split, whose size is `whole`."""
    given = node.constant(1)
    if given is None:
        return [1] * whole
    if given.ndim == 0:
        part = int(given)
        if part <= 0:
            raise node.refusal(f"its parts have a size of {part}")
        return [min(part, whole - start) for start in range(0, whole, part)]
    sizes = [int(size) for size in given]
    if sum(sizes) != whole or min(sizes, default=0) < 0:
        raise node.refusal(f"its parts of {sizes} do not make up {whole}")
    return sizes


def _items(node: Node) -> list[Any]:
    """Return the tensors of the sequence that is the first input."""
    value = node.inputs[0]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [node.emit(relax.TupleGetItem(value, index)) for index in range(len(value.ty.fields))]


def _position(node: Node, index: int, count: int, last: int) -> int:
    """Return the place that an input names in a sequence, counted from its begin.

    Args:
        node: The node.
        index: Which of its inputs; `last` is meant where it is left out.
        count: Length of the sequence.
        last: The greatest place.
    """
    given = node.constant(index)
    at = last if given is None else int(given.reshape(()))
    if at < -count or at > last:
        raise node.refusal(f"position {at} is outside of its sequence of {count}")
    return at if at >= 0 else at + count
