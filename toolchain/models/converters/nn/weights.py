"""Rearranged weights: an array where they are known now, an expression where the network computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters.node import Node


def weights_of(node: Node, index: int) -> Any:
    """Return an input as an array if it is a constant, and else as it is."""
    return node.constant(index) if node.is_constant(index) else node.input(index)


def shape(weights: Any) -> tuple[int, ...]:
    """Return the sizes."""
    return tuple(int(size) for size in (weights.shape if isinstance(weights, np.ndarray) else weights.ty.shape))


def expression(weights: Any) -> Any:
    """Return what Relax can compute with."""
    return relax.const(np.ascontiguousarray(weights)) if isinstance(weights, np.ndarray) else weights


def reshaped(node: Node, weights: Any, sizes: Sequence[int]) -> Any:
    """Return the same elements in another shape."""
    return weights.reshape(sizes) if isinstance(weights, np.ndarray) else node.emit(relax.op.reshape(weights, sizes))


def permuted(node: Node, weights: Any, axes: Sequence[int]) -> Any:
    """Return the weights with their axes in another order."""
    if isinstance(weights, np.ndarray):
        return weights.transpose(axes)
    return node.emit(relax.op.permute_dims(weights, list(axes)))


def taken(node: Node, weights: Any, places: Sequence[int], axis: int) -> Any:
    """Return some elements along an axis."""
    chosen = np.asarray(places, np.int32)
    if isinstance(weights, np.ndarray):
        return weights.take(chosen, axis)
    return node.emit(relax.op.take(weights, relax.const(chosen), axis=axis, mode="clip"))


def joined(node: Node, parts: Sequence[Any], axis: int) -> Any:
    """Return several behind each other."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    return node.emit(relax.op.concat(list(parts), axis=axis))
