"""The greatest and the least along axes, and where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node
from toolchain.models.converters.tensor.reductions import keeps, simple, widened

Search = Callable[..., Any]


@converter("ReduceMax")
def greatest(node: Node) -> Any:
    """Convert ReduceMax; TVM's has no truth values."""
    return simple(node, relax.op.max)


@converter("ReduceMin")
def least(node: Node) -> Any:
    """Convert ReduceMin; as `greatest`."""
    return simple(node, relax.op.min)


@converter("ArgMax")
def place_of_greatest(node: Node) -> Any:
    """Convert ArgMax."""
    return _place(node, relax.op.argmax, _axis(node, 0), keep=keeps(node))


@converter("ArgMin")
def place_of_least(node: Node) -> Any:
    """Convert ArgMin."""
    return _place(node, relax.op.argmin, _axis(node, 0), keep=keeps(node))


@converter("Hardmax")
def hardmax(node: Node) -> Any:
    """Convert Hardmax: one where the first of the greatest is."""
    data, shape, axis = node.inputs[0], node.shape(0), _axis(node, -1)
    place = node.emit(_place(node, relax.op.argmax, axis, keep=True))
    numbers = relax.const(np.arange(shape[axis], dtype="int64").reshape(-1, *[1] * (len(shape) - axis - 1)))
    return relax.op.astype(node.emit(relax.op.equal(place, numbers)), data.ty.dtype)


def _axis(node: Node, default: int) -> int:
    return int(node.attributes.get("axis", default)) % max(len(node.shape(0)), 1)


def _place(node: Node, search: Search, axis: int, *, keep: bool) -> Any:
    """Return the index of the best element along an axis; TVM's converters refuse negative axes of old operators."""
    shape = node.shape(0)
    if not shape:
        return relax.const(0, "int64")
    data, _ = widened(node)
    last = bool(node.attributes.get("select_last_index", 0))
    if last:
        data = node.emit(relax.op.flip(data, axis))
    # It is -1 where nothing is better than the worst there is: in a row that is infinite, or not a number.
    index = node.emit(relax.op.maximum(search(data, axis, keep), relax.const(0, "int64")))
    return relax.op.subtract(relax.const(shape[axis] - 1, "int64"), index) if last else index
