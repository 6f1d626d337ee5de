"""Gathering, scattering and selecting elements by index."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from toolchain.models.converters import converter
from toolchain.models.converters.tensor.casts import converted, named
from toolchain.models.converters.node import Node


def _from_the_front(node: Node, index: int, size: Any) -> Any:
    """Return indices, those that count from an axis' end as such that count from its front."""
    indices, dtype = node.inputs[index], node.dtype(index)
    if dtype.startswith("uint"):
        return indices
    below = relax.op.less(indices, relax.const(0, dtype))
    return node.emit(relax.op.where(below, relax.op.add(indices, relax.const(size, dtype)), indices))


@converter("Gather")
def gather(node: Node) -> Any:
    """Convert Gather. TVM's reads wherever an index leads, also outside of the tensor, and warns of it at each build.

    An index beyond the axis, which the standard does not allow, is taken modulo its size, as one that counts from its
    end is.
    """
    return relax.op.take(node.inputs[0], node.inputs[1], node.attributes.get("axis", 0), mode="wrap")


@converter("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> Any:
    """Convert ScatterElements. TVM's writes outside of the tensor where an index is negative."""
    axis = node.attributes.get("axis", 0) % len(node.shape(0))
    indices = _from_the_front(node, 1, node.shape(0)[axis])
    return relax.op.scatter_elements(node.inputs[0], indices, node.inputs[2], axis, _reduction(node))


@converter("ScatterND")
def scatter_slices(node: Node) -> Any:
    """Convert ScatterND; as `scatter_elements`."""
    depth = node.shape(1)[-1]
    indices = _from_the_front(node, 1, [int(size) for size in node.shape(0)[:depth]])
    return relax.op.scatter_nd(node.inputs[0], indices, node.inputs[2], _reduction(node))


def _reduction(node: Node) -> str:
    name = str(node.attributes.get("reduction", "none"))
    return "update" if name == "none" else name


@converter("OneHot")
def one_hot(node: Node) -> Any:
    """Convert OneHot. TVM's takes the two values for 32-bit floats, and wants them to be constants.

    An index outside of the range sets nothing.
    """
    (depth,) = node.integers(1, "depth") or []
    shape = node.shape(0)
    axis = node.attributes.get("axis", -1) % (len(shape) + 1)

    def hot(indices: te.Tensor, values: te.Tensor) -> te.Tensor:
        def one(*at: Any) -> Any:
            given = indices(*at[:axis], *at[axis + 1 :]).astype("int64")
            place = tirx.Select(given < 0, given + depth, given)
            return tirx.Select(place == at[axis].astype("int64"), values(1), values(0))

        return te.compute((*shape[:axis], depth, *shape[axis:]), one, "one_hot")

    return node.compute(hot, node.inputs[0], node.inputs[2], name="one_hot")


@converter("TopK")
def largest(node: Node) -> Any:
    """Convert TopK. TVM's refuses what need not be sorted, and has no small or unsigned integers."""
    data, own = node.inputs[0], node.dtype(0)
    (count,) = node.integers(1, "k") or [1]
    axis = node.attributes.get("axis", -1) % len(node.shape(0))
    wide = {"float16": "float32", "bfloat16": "float32"}.get(own, own)
    if own.startswith(("int", "uint")) and own not in {"int32", "int64"}:
        wide = "int64"
    if own == "uint64":  # the order is kept if the highest bit is turned around
        data = node.emit(relax.op.bitwise_xor(data, relax.const(1 << 63, own)))
        data = node.compute(
            lambda tensor: te.compute(tensor.shape, lambda *at: tirx.reinterpret("int64", tensor(*at))),
            data,
            name="bits",
        )
    descends = bool(node.attributes.get("largest", 1))
    found = node.emit(relax.op.topk(converted(node, data, wide), count, axis, "both", largest=descends, dtype="int64"))
    if own == "uint64":
        return [_along(node, node.inputs[0], found[1], axis), found[1]]
    return [converted(node, node.emit(found[0]), own), found[1]]


def _along(node: Node, data: Any, indices: Any, axis: int) -> Any:
    return relax.op.gather_elements(data, node.emit(indices), axis)


@converter("ReverseSequence")
def reversed_sequences(node: Node) -> Any:
    """Convert ReverseSequence: the first elements of each sequence in reverse."""
    batch, time = (node.attributes.get(name, at) for name, at in (("batch_axis", 1), ("time_axis", 0)))

    def turned(data: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def one(*at: Any) -> Any:
            length, place = lengths(at[batch]).astype("int64"), at[time].astype("int64")
            there = list(at)
            there[time] = tirx.Select(place < length, length - 1 - place, place)
            return data(*there)

        return te.compute(data.shape, one, "reversed")

    return node.compute(turned, *node.inputs[:2], name="reverse_sequence")


@converter("TensorScatter")
def written_into(node: Node) -> Any:
    """Convert TensorScatter: updates of a cache of keys or values, from a place of each batch on."""
    axis = node.attributes.get("axis", -2) % len(node.shape(0))
    length, size = node.shape(0)[axis], node.shape(1)[axis]
    wraps = node.attributes.get("mode", "linear") == "circular"
    places = node.input(2)
    places = relax.const([0] * node.shape(0)[0], "int64") if places is None else places

    def updated(cache: te.Tensor, update: te.Tensor, starts: te.Tensor) -> te.Tensor:
        def one(*at: Any) -> Any:
            offset = at[axis].astype("int64") - starts(at[0]).astype("int64")
            offset = tirx.floormod(offset, length) if wraps else offset
            there = [*at[:axis], offset, *at[axis + 1 :]]
            return tirx.if_then_else(tirx.all(offset >= 0, offset < size), update(*there), cache(*at))

        return te.compute(cache.shape, one, "updated")

    return node.compute(updated, *node.inputs[:2], places, name="tensor_scatter")


@converter("Trilu")
def triangle(node: Node) -> Any:
    """Convert Trilu; TVM's has no truth values."""
    (offset,) = node.integers(1, "k") or [0]
    is_kept: Callable[[Any, Any], Any] = (
        (lambda row, column: column - row >= offset)
        if node.attributes.get("upper", 1)
        else (lambda row, column: column - row <= offset)
    )
    dtype = node.dtype(0)

    def cut(data: te.Tensor) -> te.Tensor:
        return te.compute(
            data.shape,
            lambda *at: tirx.Select(
                is_kept(at[-2].astype("int64"), at[-1].astype("int64")), data(*at), tirx.const(0, dtype)
            ),
            "triangle",
        )

    return node.compute(cut, node.inputs[0], name="trilu")


@converter("EyeLike")
def eye(node: Node) -> Any:
    """Convert EyeLike; TVM's makes no other element type than the input's."""
    dtype = named(node, node.attributes["dtype"]) if "dtype" in node.attributes else node.dtype(0)
    return relax.op.eye(*node.shape(0), node.attributes.get("k", 0), dtype)


@converter("Size")
def size(node: Node) -> Any:
    """Convert Size, which is known before anything runs."""
    return relax.const(math.prod(node.shape(0)), "int64")


@converter("Shape")
def shape(node: Node) -> Any:
    """Convert Shape; as `size`."""
    begin, end = node.attributes.get("start", 0), node.attributes.get("end")
    return relax.const([int(one) for one in node.shape(0)][begin:end], "int64")
