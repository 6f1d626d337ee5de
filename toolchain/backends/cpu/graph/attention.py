"""Find attention: softmax(scale * q k^T + mask) v, whose tensors may be views of others.

What exporters write around it only renames elements: heads are split off by reshapes and transpositions, queries, keys
and values are slices of one product. NumPy does all that to an array of the same sizes without moving anything; where
its elements lie then is where the kernel reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu.layers import Attention, Layer, View
from toolchain.backends.graph.values import Block, Operation, Value

_BYTES = 4
_RANKS = (3, 4)
_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims", "flatten"})

Array = NDArray[np.float32]


@dataclass(eq=False)
class Attended(Operation):
    """An attention.

    Attributes:
        layer: What the kernel computes; `inputs` are what it reads, in order.
    """

    layer: Any = None


@dataclass(frozen=True)
class _Seen:
    """A tensor as a view of another one, times a factor: an array that stands for it, in the place of the other."""

    base: Value
    whole: Array
    part: Array
    factor: float = 1.0

    @staticmethod
    def of(value: Value) -> _Seen:
        """Return a tensor as it is."""
        whole = np.empty(value.shape or (), np.float32)  # never touched, so that it takes no memory
        return _Seen(value, whole, whole)

    def view(self) -> View | None:
        """Return it as the kernel reads it; None if the elements of a row do not lie together."""
        part = self.part if self.part.ndim == _RANKS[1] else self.part[:, None]
        *steps, step = (stride // _BYTES for stride in part.strides)
        if step != 1 and part.shape[-1] > 1:
            return None
        offset = (part.__array_interface__["data"][0] - self.whole.__array_interface__["data"][0]) // _BYTES
        return View(self.whole.shape, (steps[0], steps[1], steps[2]), offset)


def found(block: Block, covered: Callable[[Layer], bool]) -> None:
    """Replace each attention by one operation.

    Args:
        block: What it is looked for in.
        covered: Whether a template computes a layer.
    """
    readers: dict[Value, list[int]] = {}
    for number, operation in enumerate(block.operations):
        for value in operation.inputs:
            readers.setdefault(value, []).append(number)
    for number, operation in enumerate(block.operations):
        made = _attention(operation) if operation.name == "matmul" else None
        if made is None:
            continue
        [*_, reader] = readers.get(operation.out, [number])
        better = _transposed(made, block.operations[reader]) if operation.out.is_alone else None
        place, made = (reader, better) if better else (number, made)
        if covered(made.layer):
            block.operations[place] = made.out.maker = made
    block.remove_dead()


def _attention(operation: Operation) -> Attended | None:
    weights, values = operation.inputs
    softmax = weights.maker
    if softmax is None or softmax.name != "nn.softmax" or not weights.is_alone or not _is_tensor(operation.out):
        return None
    if int(softmax.attributes.axis) not in {-1, len(weights.shape or ()) - 1}:
        return None
    scores = softmax.inputs[0]
    value, mask = _masked(scores)
    value, scale = _scaled(value)
    product = value.maker
    if product is None or product.name != "matmul" or not value.is_alone or not _is_tensor(value):
        return None
    q, k = (_seen(one) for one in product.inputs)
    return _layer(operation, (q, replace(k, part=k.part.swapaxes(-1, -2)), _root(_seen(values), values)), mask, scale)


def _is_tensor(value: Value) -> bool:
    return value.dtype == "float32" and value.shape is not None and len(value.shape) in _RANKS


def _masked(value: Value) -> tuple[Value, Value | None]:
    """Return the scores before a mask, and the mask."""
    maker = value.maker
    if maker is None or maker.name != "add" or not value.is_alone or len(maker.inputs) != 2:  # noqa: PLR2004
        return value, None
    for scores, mask in (maker.inputs, maker.inputs[::-1]):
        product = _scaled(scores)[0].maker
        if scores.shape == value.shape and product is not None and product.name == "matmul":
            return scores, mask
    return value, None


def _scaled(value: Value) -> tuple[Value, float]:
    """Return a tensor before factors that are numbers, and their product."""
    factor = 1.0
    while (step := _factor(value)) is not None and value.is_alone:
        value, factor = step[0], factor * step[1]
    return value, factor


def _factor(value: Value) -> tuple[Value, float] | None:
    """Return what a tensor is a multiple of, and the factor."""
    maker = value.maker
    if maker is None or maker.name not in {"multiply", "divide"}:
        return None
    first, second = maker.inputs
    if maker.name == "multiply" and first.constant is not None:
        first, second = second, first
    if second.constant is None or second.array.size != 1 or first.shape != value.shape:
        return None
    number = float(second.array.reshape(()))
    return first, number if maker.name == "multiply" else 1 / number


def _root(seen: _Seen, value: Value) -> _Seen:
    """Return a tensor as it is if it is a multiple of what it is a view of."""
    return seen if seen.factor == 1 else _Seen.of(value)


def _seen(value: Value) -> _Seen:
    """Return what a tensor is a view of, as far up as that goes."""
    maker = value.maker
    if maker is None or value.shape is None or value.dtype != "float32":
        return _Seen.of(value)
    if (step := _factor(value)) is not None:
        inner = _seen(step[0])
        return replace(inner, factor=inner.factor * step[1])
    source = maker.inputs[0] if maker.inputs else value
    if not (maker.name in _RESHAPES or maker.name in _VIEWS) or source.shape is None or source.dtype != "float32":
        return _Seen.of(value)
    inner = _seen(source)
    try:
        part = _VIEWS.get(maker.name, _reshaped)(inner.part, maker, value)
    except ValueError:  # NumPy would have to copy
        return _Seen.of(value)
    return _Seen.of(value) if part is None or part.shape != value.shape else replace(inner, part=part)


def _reshaped(part: Array, _: Operation, value: Value) -> Array | None:
    return np.reshape(part, value.shape or (), copy=False)


def _permuted(part: Array, maker: Operation, _: Value) -> Array | None:
    axes = maker.attributes.axes
    return part.transpose(None if axes is None else [int(axis) for axis in axes])


def _split(part: Array, maker: Operation, value: Value) -> Array | None:
    axis, start = int(maker.attributes.axis), 0
    for one in maker.outputs[:-1]:
        size = (one.shape or ())[axis]
        if one is value:
            return part.take(range(0), axis) if not size else _cut(part, axis, start, start + size)
        start += size
    return None


def _cut(part: Array, axis: int, begin: int, end: int) -> Array:
    return part[(slice(None),) * (axis % part.ndim) + (slice(begin, end),)]


def _taken(part: Array, maker: Operation, _: Value) -> Array | None:
    index = maker.inputs[1]
    if index.constant is None or index.array.size != 1 or maker.attributes.axis is None:
        return None
    axis, at = int(maker.attributes.axis), int(index.array.reshape(()))
    at += part.shape[axis] if at < 0 else 0
    piece = _cut(part, axis, at, at + 1)
    return piece if index.shape else piece.squeeze(axis)


_VIEWS: dict[str, Callable[[Array, Operation, Value], Array | None]] = {
    "permute_dims": _permuted,
    "split": _split,
    "take": _taken,
}


def _layer(operation: Operation, seen: tuple[_Seen, _Seen, _Seen], mask: Value | None, scale: float) -> Attended | None:
    """Return the operation, if all its tensors can be read as they lie."""
    q, k, v = (one.view() for one in seen)
    batch, heads, queries, value_size = _four(operation.out.shape or ())
    shapes = [_four(one.part.shape) for one in seen]
    keys, size = shapes[1][2:]
    if shapes != [(batch, heads, queries, size), (batch, heads, keys, size), (batch, heads, keys, value_size)]:
        return None
    place = _mask(mask, len(operation.out.shape or ()), (batch, heads, queries, keys)) if mask is not None else None
    if q is None or k is None or v is None or (mask is not None and place is None):
        return None
    out = View(operation.out.shape or (), (heads * queries * value_size, queries * value_size, value_size))
    factor = scale * seen[0].factor * seen[1].factor
    layer = Attention(batch, heads, queries, keys, size, value_size, q, k, v, out, place, factor)
    inputs = tuple(one.base for one in seen) + (() if mask is None else (mask,))
    return Attended("attention", inputs, operation.outputs, layer=layer)


def _four(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return batch, heads, rows and size; without heads there is one."""
    batch, *heads, rows, size = shape
    return batch, heads[0] if heads else 1, rows, size


def _mask(mask: Value, rank: int, scores: tuple[int, int, int, int]) -> View | None:
    """Return where a mask lies; None if it does not go with the scores, or is not a number for each key."""
    shape = mask.shape
    if shape is None or mask.dtype != "float32" or len(shape) > rank:
        return None
    sizes = [1] * (rank - len(shape)) + list(shape)
    sizes = sizes if rank == _RANKS[1] else [sizes[0], 1, *sizes[1:]]
    if sizes[3] != scores[3] or any(size not in {1, of} for size, of in zip(sizes, scores, strict=True)):
        return None
    steps = [math.prod(sizes[axis + 1 :]) if sizes[axis] > 1 else 0 for axis in range(3)]
    return View(shape, (steps[0], steps[1], steps[2]))


def _transposed(made: Attended, follower: Operation) -> Attended | None:
    """Return an attention that writes what a transposition makes of its result."""
    if follower.name != "permute_dims" or follower.attributes.axes is None:
        return None
    axes, shape = [int(axis) for axis in follower.attributes.axes], follower.out.shape
    if axes[-1] != len(axes) - 1 or shape is None:
        return None
    whole = np.empty(shape, np.float32)
    view = _Seen(follower.out, whole, whole.transpose(np.argsort(axes))).view()
    return None if view is None else replace(made, outputs=follower.outputs, layer=replace(made.layer, out=view))
