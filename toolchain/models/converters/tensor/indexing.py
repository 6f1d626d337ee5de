"""Gathering, scattering and selecting elements, by index or as many as the data say (`toolchain.models.tails`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.models.converters.tensor.casts import cast_to, dtype_name
from toolchain.models.tails.graph import PREFIX

TENSOR_SCATTER = "toolchain_tensor_scatter"
"""Attribute of TensorScatter's kernel: its axis, and 1 if positions begin again behind the end of it, else 0."""

_SIZE_DEPENDS_ON_DATA = "the number of selected elements depends on the data, but other nodes use them"


def _non_negative(node: Node, index: int, size: Any) -> Any:
    """Return indices that all count from the start of an axis."""
    indices, dtype = node.inputs[index], node.dtype(index)
    if dtype.startswith("uint"):
        return indices
    below = relax.op.less(indices, relax.const(0, dtype))
    return node.emit(relax.op.where(below, relax.op.add(indices, relax.const(size, dtype)), indices))


# TVM's reads outside of the tensor if an index leads there, and warns of it at each build. An index beyond the axis,
# which the standard forbids, is taken modulo its size, as one that counts from the end is.
@converter("Gather")
def gather(node: Node) -> Any:
    return relax.op.take(node.inputs[0], node.inputs[1], node.attributes.get("axis", 0), mode="wrap")


# TVM's writes outside of the tensor where an index is negative.
@converter("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> Any:
    axis = node.attributes.get("axis", 0) % len(node.shape(0))
    indices = _non_negative(node, 1, node.shape(0)[axis])
    return relax.op.scatter_elements(node.inputs[0], indices, node.inputs[2], axis, _reduction(node))


# As `scatter_elements`.
@converter("ScatterND")
def scatter_slices(node: Node) -> Any:
    depth = node.shape(1)[-1]
    indices = _non_negative(node, 1, [int(size) for size in node.shape(0)[:depth]])
    return relax.op.scatter_nd(node.inputs[0], indices, node.inputs[2], _reduction(node))


def _reduction(node: Node) -> str:
    name = str(node.attributes.get("reduction", "none"))
    return "update" if name == "none" else name


# TVM's supports two constant 32-bit floats as values only. An index outside of the range sets nothing.
@converter("OneHot")
def one_hot(node: Node) -> Any:
    (depth,) = node.integers(1, "depth") or []
    shape = node.shape(0)
    axis = node.attributes.get("axis", -1) % (len(shape) + 1)

    def compute(indices: te.Tensor, values: te.Tensor) -> te.Tensor:
        def element(*place: Any) -> Any:
            index = indices(*place[:axis], *place[axis + 1 :]).astype("int64")
            position = tirx.Select(index < 0, index + depth, index)
            return tirx.Select(position == place[axis].astype("int64"), values(1), values(0))

        return te.compute((*shape[:axis], depth, *shape[axis:]), element, "one_hot")

    return node.compute(compute, node.inputs[0], node.inputs[2], name="one_hot")


# TVM's refuses unsorted results, and has no small or unsigned integers.
@converter("TopK")
def largest(node: Node) -> Any:
    data, dtype = node.inputs[0], node.dtype(0)
    (count,) = node.integers(1, "k") or [1]
    axis = node.attributes.get("axis", -1) % len(node.shape(0))
    wide = {"float16": "float32", "bfloat16": "float32"}.get(dtype, dtype)
    if dtype.startswith(("int", "uint")) and dtype not in {"int32", "int64"}:
        wide = "int64"
    if dtype == "uint64":  # with the highest bit flipped, signed integers have the same order
        data = node.emit(relax.op.bitwise_xor(data, relax.const(1 << 63, dtype)))
        data = node.compute(
            lambda tensor: te.compute(tensor.shape, lambda *index: tirx.reinterpret("int64", tensor(*index))),
            data,
            name="bits",
        )
    descends = bool(node.attributes.get("largest", 1))
    pairs = node.emit(relax.op.topk(cast_to(node, data, wide), count, axis, "both", largest=descends, dtype="int64"))
    if dtype == "uint64":
        return [relax.op.gather_elements(node.inputs[0], node.emit(pairs[1]), axis), pairs[1]]
    return [cast_to(node, node.emit(pairs[0]), dtype), pairs[1]]


@converter("ReverseSequence")
def reversed_sequences(node: Node) -> Any:
    """Reverse the first elements of each sequence."""
    batch, time = (node.attributes.get(name, index) for name, index in (("batch_axis", 1), ("time_axis", 0)))

    def compute(data: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            length, position = lengths(index[batch]).astype("int64"), index[time].astype("int64")
            source = list(index)
            source[time] = tirx.Select(position < length, length - 1 - position, position)
            return data(*source)

        return te.compute(data.shape, element, "reversed")

    return node.compute(compute, *node.inputs[:2], name="reverse_sequence")


@converter("TensorScatter")
def written_into(node: Node) -> Any:
    """Write updates into a cache of keys or values, from an offset for each batch on."""
    axis = node.attributes.get("axis", -2) % len(node.shape(0))
    length, size = node.shape(0)[axis], node.shape(1)[axis]
    wraps = node.attributes.get("mode", "linear") == "circular"
    offsets = node.input(2)
    offsets = relax.const([0] * node.shape(0)[0], "int64") if offsets is None else offsets

    def compute(cache: te.Tensor, update: te.Tensor, starts: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            offset = index[axis].astype("int64") - starts(index[0]).astype("int64")
            offset = tirx.floormod(offset, length) if wraps else offset
            source = [*index[:axis], offset, *index[axis + 1 :]]
            return tirx.if_then_else(tirx.all(offset >= 0, offset < size), update(*source), cache(*index))

        return te.compute(cache.shape, element, "updated")

    described = {TENSOR_SCATTER: f"{axis} {int(wraps)}"}
    return node.compute(compute, *node.inputs[:2], offsets, name="tensor_scatter", **described)


# TVM's has no truth values.
@converter("Trilu")
def triangle(node: Node) -> Any:
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
            lambda *index: tirx.Select(
                is_kept(index[-2].astype("int64"), index[-1].astype("int64")), data(*index), tirx.const(0, dtype)
            ),
            "triangle",
        )

    return node.compute(cut, node.inputs[0], name="trilu")


# TVM's has the element type of the input only.
@converter("EyeLike")
def eye(node: Node) -> Any:
    dtype = dtype_name(node, node.attributes["dtype"]) if "dtype" in node.attributes else node.dtype(0)
    return relax.op.eye(*node.shape(0), node.attributes.get("k", 0), dtype)


@converter("Size")
def size(node: Node) -> Any:
    return relax.const(math.prod(node.shape(0)), "int64")


@converter("Shape")
def shape(node: Node) -> Any:
    begin, end = node.attributes.get("start", 0), node.attributes.get("end")
    return relax.const([int(size) for size in node.shape(0)][begin:end], "int64")


# TVM's fail, or compute with an unknown size.
@converter("NonZero", "Unique")
def refuse_unknown_size(node: Node) -> Any:
    raise node.refusal(_SIZE_DEPENDS_ON_DATA, "end the network before it, and compute the rest in the application")


# Without a constant condition, its size is unknown.
@converter("Compress")
def compress(node: Node) -> Any:
    if not node.is_constant(1):
        return refuse_unknown_size(node)
    data, axis = _data_and_axis(node)
    (indices,) = np.nonzero(np.asarray(node.constant(1)))
    return relax.op.take(data, relax.const(indices, "int64"), axis)


def _data_and_axis(node: Node) -> tuple[Any, int]:
    """Return the data and the axis along which is selected: the flat tensor if none is named."""
    if "axis" in node.attributes:
        return node.inputs[0], node.attributes["axis"] % len(node.shape(0))
    return node.emit(relax.op.reshape(node.inputs[0], (-1,))), 0


@converter(f"{PREFIX}Compress")
def compress_with_count(node: Node) -> Any:
    """Convert Compress at the end of a network to slices up to the bound, and their count."""
    data, axis = _data_and_axis(node)
    indices, count = true_indices(node, node.inputs[1])
    return [relax.op.take(data, indices, axis), count]


@converter(f"{PREFIX}NonZero")
def nonzero_with_count(node: Node) -> Any:
    """Convert NonZero at the end of a network to coordinates up to the bound, and their count."""
    shape = node.shape(0)
    if not shape:
        raise node.refusal("a tensor without axes has no indices")
    flat = node.emit(relax.op.reshape(node.emit(cast_to(node, node.inputs[0], "bool")), (-1,)))
    indices, count = true_indices(node, flat)
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]

    def coordinates(flat: te.Tensor) -> te.Tensor:
        def element(axis: Any, at: Any) -> Any:
            digits = [
                tirx.floormod(tirx.floordiv(flat(at), step), size) for step, size in zip(steps, shape, strict=True)
            ]
            result = digits[-1]
            for number in reversed(range(len(shape) - 1)):
                result = tirx.Select(axis == number, digits[number], result)
            return result

        return te.compute((len(shape), flat.shape[0]), element, "coordinates")

    return [node.compute(coordinates, indices, name="nonzero"), count]


def true_indices(node: Node, flags: Any) -> tuple[Any, Any]:
    """Return the indices of true elements of a vector, with zeros behind them, and their count, both int64."""
    (size,) = node.shape_of(flags)
    numbers = node.emit(relax.op.astype(flags, "int64"))
    targets_if_true = node.emit(relax.op.cumsum(numbers, 0, dtype="int64", exclusive=True))
    # Indices of false elements are all written behind the end, and cut off with it.
    target = node.emit(relax.op.where(flags, targets_if_true, relax.const(size, "int64")))
    all_indices = relax.const(np.arange(size), "int64")
    indices = node.emit(relax.op.scatter_elements(relax.const(np.zeros(size + 1), "int64"), target, all_indices, 0))
    return (
        node.emit(relax.op.strided_slice(indices, [0], [0], [size])),
        node.emit(relax.op.sum(numbers, 0, keepdims=True)),
    )
