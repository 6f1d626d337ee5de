"""Operators that select as many elements as the data say: see `toolchain.models.bounded`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.models.converters.tensor.casts import cast_to
from toolchain.models.tails.graph import PREFIX

_SIZE_DEPENDS_ON_DATA = "the number of selected elements depends on the data, but other nodes use them"


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
