"""Operators that select as many elements as the data say: see `toolchain.models.bounded`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from toolchain.models.converters import converter
from toolchain.models.converters.tensor.casts import converted
from toolchain.models.converters.node import Node
from toolchain.models.tails.graph import PREFIX

_LATER = "the number of selected elements depends on the data, but other nodes use them"


@converter("NonZero", "Unique")
def refused(node: Node) -> Any:
    """Refuse an operator whose size depends on the data; TVM's fail, or compute with a size that nobody knows."""
    raise node.refusal(_LATER, "end the network before it, and compute the rest in the application")


@converter("Compress")
def compress(node: Node) -> Any:
    """Convert Compress: with a constant condition, its size is known."""
    if not node.is_constant(1):
        return refused(node)
    data, axis = _along(node)
    (places,) = np.nonzero(np.asarray(node.constant(1)))
    return relax.op.take(data, relax.const(places, "int64"), axis)


def _along(node: Node) -> tuple[Any, int]:
    """Return what is selected from, and along which axis: the flat tensor, if none is given."""
    if "axis" in node.attributes:
        return node.inputs[0], node.attributes["axis"] % len(node.shape(0))
    return node.emit(relax.op.reshape(node.inputs[0], (-1,))), 0


@converter(f"{PREFIX}Compress")
def compress_with_count(node: Node) -> Any:
    """Convert Compress at the end of a network to slices, as many as there can be, and their count."""
    data, axis = _along(node)
    places, count = chosen(node, node.inputs[1])
    return [relax.op.take(data, places, axis), count]


@converter(f"{PREFIX}NonZero")
def nonzero_with_count(node: Node) -> Any:
    """Convert NonZero at the end of a network to places, as many as there are elements, and their count."""
    shape = node.shape(0)
    if not shape:
        raise node.refusal("a tensor without axes has no indices")
    flat = node.emit(relax.op.reshape(node.emit(converted(node, node.inputs[0], "bool")), (-1,)))
    places, count = chosen(node, flat)
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]

    def coordinates(flat: te.Tensor) -> te.Tensor:
        def one(axis: Any, at: Any) -> Any:
            found = [
                tirx.floormod(tirx.floordiv(flat(at), step), size) for step, size in zip(steps, shape, strict=True)
            ]
            result = found[-1]
            for number in reversed(range(len(shape) - 1)):
                result = tirx.Select(axis == number, found[number], result)
            return result

        return te.compute((len(shape), flat.shape[0]), one, "coordinates")

    return [node.compute(coordinates, places, name="nonzero"), count]


def chosen(node: Node, flags: Any) -> tuple[Any, Any]:
    """Return the places of what is true in a vector, with zeros behind them, and how many there are, as int64."""
    (size,) = node.shape_of(flags)
    ones = node.emit(relax.op.astype(flags, "int64"))
    before = node.emit(relax.op.cumsum(ones, 0, dtype="int64", exclusive=True))
    # What is not chosen goes to a place behind the end, which is cut off.
    target = node.emit(relax.op.where(flags, before, relax.const(size, "int64")))
    everything = relax.const(np.arange(size), "int64")
    written = node.emit(relax.op.scatter_elements(relax.const(np.zeros(size + 1), "int64"), target, everything, 0))
    return (
        node.emit(relax.op.strided_slice(written, [0], [0], [size])),
        node.emit(relax.op.sum(ones, 0, keepdims=True)),
    )
