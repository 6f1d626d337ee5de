"""Rotary position embeddings (Su et al., "RoFormer", arXiv:2104.09864): pairs of features turned by their position."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import Node, converter

_RANK_HEADS = 4


def cached_rows(node: Node, cache: Any, positions: Any) -> Any:
    """Return rows of a cache [positions, half] for positions [batch, sequence], as [batch, 1, sequence, half]."""
    batch, length = node.shape_of(positions)
    rows = relax.op.take(cache, relax.op.reshape(positions, (batch * length,)), axis=0)
    return node.emit(relax.op.reshape(rows, (batch, 1, length, node.shape_of(cache)[1])))


def rotate(node: Node, data: Any, cos: Any, sin: Any, *, interleaved: bool) -> Any:
    """Rotate pairs of features of data [batch, heads, sequence, size]; those behind the last pair stay.

    Cosines and sines are [batch, 1, sequence, pairs]. The two of a pair are neighbours if `interleaved`, else halves of
    the features apart.
    """
    batch, heads, length, size = node.shape_of(data)
    pairs = node.shape_of(cos)[-1]
    head, tail = data, []
    if 2 * pairs < size:
        split = node.emit(relax.op.split(data, [2 * pairs], axis=-1))
        head, *tail = (node.emit(relax.TupleGetItem(split, index)) for index in range(2))
    split_shape = (batch, heads, length, pairs, 2) if interleaved else (batch, heads, length, 2, pairs)
    axis = 4 if interleaved else 3
    halves = node.emit(relax.op.split(relax.op.reshape(head, split_shape), 2, axis=axis))
    first, second = (node.emit(relax.op.squeeze(relax.TupleGetItem(halves, index), axis=[axis])) for index in range(2))
    real = relax.op.subtract(relax.op.multiply(cos, first), relax.op.multiply(sin, second))
    imaginary = relax.op.add(relax.op.multiply(sin, first), relax.op.multiply(cos, second))
    pairs_out = node.emit(relax.op.stack([real, imaginary], axis=axis))
    rotated = node.emit(relax.op.reshape(pairs_out, (batch, heads, length, 2 * pairs)))
    return node.emit(relax.op.concat([rotated, *tail], axis=-1)) if tail else rotated


# Without positions, the caches have a row for each element.
@converter("RotaryEmbedding")
def rotary_embedding(node: Node) -> Any:
    cos, sin = node.inputs[1:3]
    if node.input(3) is not None:
        cos, sin = (cached_rows(node, cache, node.inputs[3]) for cache in (cos, sin))
    else:
        cos, sin = (node.emit(relax.op.expand_dims(cache, 1)) for cache in (cos, sin))
    return _rotate_input(node, cos, sin)


# A single position is that of the first element.
@converter("com.microsoft.RotaryEmbedding")
def contrib_rotary_embedding(node: Node) -> Any:
    if node.attributes.get("is_packed_batching", 0) or node.attributes.get("scale", 1.0) != 1:
        raise node.refusal("is_packed_batching and scale are not supported")
    batch, length = node.shape(0)[0], node.shape(0)[-2]
    positions = node.inputs[1]
    if node.shape(1) == (1,) and (batch, length) != (1, 1):
        numbers = relax.const(np.arange(length)[None].astype(node.dtype(1)), node.dtype(1))
        positions = node.emit(relax.op.add(numbers, relax.op.reshape(positions, (1, 1))))
    positions = node.emit(relax.op.reshape(positions, (-1, length)))
    return _rotate_input(node, *(cached_rows(node, node.inputs[index], positions) for index in (2, 3)))


def _rotate_input(node: Node, cos: Any, sin: Any) -> Any:
    data, shape = node.inputs[0], node.shape(0)
    interleaved = bool(node.attributes.get("interleaved", 0))
    if len(shape) == _RANK_HEADS:
        return rotate(node, data, cos, sin, interleaved=interleaved)
    pairs = node.shape_of(cos)[-1]
    size = int(node.attributes.get("rotary_embedding_dim", 0)) or 2 * pairs
    heads = int(node.attributes.get("num_heads", 0)) or shape[-1] // size
    split = relax.op.reshape(data, (shape[0], shape[1], heads, shape[2] // heads))
    rotated = rotate(node, node.emit(relax.op.permute_dims(split, [0, 2, 1, 3])), cos, sin, interleaved=interleaved)
    return node.emit(relax.op.reshape(relax.op.permute_dims(rotated, [0, 2, 1, 3]), shape))
