"""Sequences of tensors: tuples whose length and positions are known when the network is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from toolchain.models.converters import Node, converter


@converter("SequenceEmpty", "SequenceConstruct")
def sequence_of(node: Node) -> Any:
    return relax.Tuple(list(node.inputs))


# TVM counts negative positions from behind the end, ONNX from the end.
@converter("SequenceInsert")
def inserted(node: Node) -> Any:
    items = _items(node)
    position = _position(node, 2, len(items), len(items))
    return relax.Tuple([*items[:position], node.input(1), *items[position:]])


@converter("SequenceErase")
def erased(node: Node) -> Any:
    items = _items(node)
    position = _position(node, 1, len(items), len(items) - 1)
    return relax.Tuple([*items[:position], *items[position + 1 :]])


@converter("SequenceAt")
def element_at(node: Node) -> Any:
    items = _items(node)
    return items[_position(node, 1, len(items), len(items) - 1)]


@converter("SequenceLength")
def length(node: Node) -> Any:
    return relax.const(len(_items(node)), "int64")


@converter("ConcatFromSequence")
def concatenate(node: Node) -> Any:
    items, axis = _items(node), int(node.attributes["axis"])
    if not items:
        raise node.refusal("its sequence is empty")
    if node.attributes.get("new_axis", 0):
        items = [node.emit(relax.op.expand_dims(item, axis)) for item in items]
    return relax.op.concat(items, axis)


# TVM divides evenly where ONNX has parts of one size and a smaller last one.
@converter("SplitToSequence")
def split(node: Node) -> Any:
    shape, axis = node.shape(0), int(node.attributes.get("axis", 0))
    if not -len(shape) <= axis < len(shape):
        raise node.refusal(f"it splits axis {axis} of a tensor with {len(shape)} axes")
    axis %= len(shape)
    sizes, start, items = _part_sizes(node, shape[axis]), 0, []
    for size in sizes:
        items.append(node.emit(relax.op.strided_slice(node.input(0), [axis], [start], [start + size])))
        start += size
    # By the standard, keepdims has no effect where sizes are named.
    if node.input(1) is None and not node.attributes.get("keepdims", 1):
        items = [node.emit(relax.op.squeeze(item, [axis])) for item in items]
    return relax.Tuple(items)


def _part_sizes(node: Node, total: int) -> Sequence[int]:
    sizes_input = node.constant(1)
    if sizes_input is None:
        return [1] * total
    if sizes_input.ndim == 0:
        size = int(sizes_input)
        if size <= 0:
            raise node.refusal(f"its parts have a size of {size}")
        return [min(size, total - start) for start in range(0, total, size)]
    sizes = [int(size) for size in sizes_input]
    if sum(sizes) != total or min(sizes, default=0) < 0:
        raise node.refusal(f"its parts of {sizes} do not make up {total}")
    return sizes


def _items(node: Node) -> list[Any]:
    """Return the tensors of the sequence that is the first input."""
    value = node.inputs[0]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [node.emit(relax.TupleGetItem(value, index)) for index in range(len(value.ty.fields))]


def _position(node: Node, index: int, count: int, last: int) -> int:
    """Return the position in a sequence of `count` tensors that an input names; without the input, `last`."""
    constant = node.constant(index)
    position = last if constant is None else int(constant.reshape(()))
    if position < -count or position > last:
        raise node.refusal(f"position {position} is outside of its sequence of {count}")
    return position if position >= 0 else position + count
