"""Operations on weights: on arrays if they are constants, else on expressions that the network computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters.node import Node


def input_weights(node: Node, index: int) -> Any:
    """Return an input as an array if it is constant, else as an expression."""
    return node.constant(index) if node.is_constant(index) else node.input(index)


def shape(weights: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in (weights.shape if isinstance(weights, np.ndarray) else weights.ty.shape))


def as_expression(weights: Any) -> Any:
    return relax.const(np.ascontiguousarray(weights)) if isinstance(weights, np.ndarray) else weights


def reshape(node: Node, weights: Any, sizes: Sequence[int]) -> Any:
    return weights.reshape(sizes) if isinstance(weights, np.ndarray) else node.emit(relax.op.reshape(weights, sizes))


def permute(node: Node, weights: Any, axes: Sequence[int]) -> Any:
    if isinstance(weights, np.ndarray):
        return weights.transpose(axes)
    return node.emit(relax.op.permute_dims(weights, list(axes)))


def take(node: Node, weights: Any, indices: Sequence[int], axis: int) -> Any:
    elements = np.asarray(indices, np.int32)
    if isinstance(weights, np.ndarray):
        return weights.take(elements, axis)
    return node.emit(relax.op.take(weights, relax.const(elements), axis=axis, mode="clip"))


def concatenate(node: Node, parts: Sequence[Any], axis: int) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    return node.emit(relax.op.concat(list(parts), axis=axis))
