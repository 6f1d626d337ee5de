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

_BYTES = 4  # of a float32
_RANKS = (3, 4)  # of tensors without heads, and with heads
_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims", "flatten"})

Array = NDArray[np.float32]


@dataclass(eq=False)
class AttentionOperation(Operation):
    """An attention.

    Attributes:
        layer: What the kernel computes; `inputs` are what it reads, in order.
    """

    layer: Any = None


@dataclass(frozen=True)
class _ArrayView:
    """A tensor that is a view of another tensor, times a factor; two NumPy arrays of the same sizes represent them."""

    base: Value
    base_array: Array
    view_array: Array
    factor: float = 1.0

    @staticmethod
    def of(value: Value) -> _ArrayView:
        """Return a tensor as it is."""
        array = np.empty(value.shape or (), np.float32)  # never touched, so that it takes no memory
        return _ArrayView(value, array, array)

    def view(self) -> View | None:
        """Return it as the kernel reads it; None if the elements of a row do not lie together."""
        array = self.view_array if self.view_array.ndim == _RANKS[1] else self.view_array[:, None]
        *steps, step = (stride // _BYTES for stride in array.strides)
        # The kernel loads vectors along the features of a row.
        if step != 1 and array.shape[-1] > 1:
            return None
        offset = (array.__array_interface__["data"][0] - self.base_array.__array_interface__["data"][0]) // _BYTES
        return View(self.base_array.shape, (steps[0], steps[1], steps[2]), offset)


def fuse_attention(block: Block, covered: Callable[[Layer], bool]) -> None:
    """Replace each attention by one operation.

    Args:
        block: The block, which is changed.
        covered: Whether a template computes a layer.
    """
    readers: dict[Value, list[int]] = {}
    for position, operation in enumerate(block.operations):
        for value in operation.inputs:
            readers.setdefault(value, []).append(position)
    for position, operation in enumerate(block.operations):
        fused = _attention(operation) if operation.name == "matmul" else None
        if fused is None:
            continue
        [*_, reader] = readers.get(operation.out, [position])
        transposed = _absorb_transpose(fused, block.operations[reader]) if operation.out.is_alone else None
        index, fused = (reader, transposed) if transposed else (position, fused)
        if covered(fused.layer):
            block.operations[index] = fused.out.maker = fused
    block.remove_dead()


def _attention(operation: Operation) -> AttentionOperation | None:
    weights, values = operation.inputs
    softmax = weights.maker
    if softmax is None or softmax.name != "nn.softmax" or not weights.is_alone or not _is_tensor(operation.out):
        return None
    # The softmax has to be over the keys.
    if int(softmax.attributes.axis) not in {-1, len(weights.shape or ()) - 1}:
        return None
    scores = softmax.inputs[0]
    value, mask = _split_mask(scores)
    value, scale = _split_factors(value)
    product = value.maker
    if product is None or product.name != "matmul" or not value.is_alone or not _is_tensor(value):
        return None
    q, k = (_trace_view(factor) for factor in product.inputs)
    v = _trace_view(values)
    if v.factor != 1:  # only the scores have a scale that takes in a factor
        v = _ArrayView.of(values)
    return _layer(operation, (q, replace(k, view_array=k.view_array.swapaxes(-1, -2)), v), mask, scale)


def _is_tensor(value: Value) -> bool:
    return value.dtype == "float32" and value.shape is not None and len(value.shape) in _RANKS


def _split_mask(value: Value) -> tuple[Value, Value | None]:
    """Return the scores before a mask, and the mask."""
    maker = value.maker
    if maker is None or maker.name != "add" or not value.is_alone or len(maker.inputs) != 2:  # noqa: PLR2004
        return value, None
    for scores, mask in (maker.inputs, maker.inputs[::-1]):
        product = _split_factors(scores)[0].maker
        if scores.shape == value.shape and product is not None and product.name == "matmul":
            return scores, mask
    return value, None


def _split_factors(value: Value) -> tuple[Value, float]:
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


def _trace_view(value: Value) -> _ArrayView:
    """Follow a tensor through reshapes, transpositions and slices to the tensor that it is a view of."""
    maker = value.maker
    if maker is None or value.shape is None or value.dtype != "float32":
        return _ArrayView.of(value)
    if (step := _factor(value)) is not None:
        inner = _trace_view(step[0])
        return replace(inner, factor=inner.factor * step[1])
    source = maker.inputs[0] if maker.inputs else value
    if maker.name not in _VIEWS or source.shape is None or source.dtype != "float32":
        return _ArrayView.of(value)
    inner = _trace_view(source)
    try:
        array = _VIEWS[maker.name](inner.view_array, maker, value)
    except ValueError:  # NumPy would have to copy
        return _ArrayView.of(value)
    return _ArrayView.of(value) if array is None or array.shape != value.shape else replace(inner, view_array=array)


def _split(array: Array, maker: Operation, value: Value) -> Array | None:
    axis, start = int(maker.attributes.axis), 0
    for output in maker.outputs[:-1]:
        size = (output.shape or ())[axis]
        if output is value:
            return array.take(range(0), axis) if not size else _cut(array, axis, start, start + size)
        start += size
    return None


def _cut(array: Array, axis: int, begin: int, end: int) -> Array:
    return array[(slice(None),) * (axis % array.ndim) + (slice(begin, end),)]


def _take(array: Array, maker: Operation, _: Value) -> Array | None:
    index = maker.inputs[1]
    if index.constant is None or index.array.size != 1 or maker.attributes.axis is None:
        return None
    # `take` of one index along an axis is a slice; negative indices count from the end.
    axis, position = int(maker.attributes.axis), int(index.array.reshape(()))
    position += array.shape[axis] if position < 0 else 0
    piece = _cut(array, axis, position, position + 1)
    return piece if index.shape else piece.squeeze(axis)


def _slice(array: Array, maker: Operation, _: Value) -> Array | None:
    axes, begins, ends, *steps = ([int(number) for number in field.fields] for field in maker.call.args[1:])
    if any(step != 1 for field in steps for step in field):
        return None
    for axis, begin, end in zip(axes, begins, ends, strict=True):
        array = array[(slice(None),) * (axis % array.ndim) + (slice(begin, end),)]
    return array


_VIEWS: dict[str, Callable[[Array, Operation, Value], Array | None]] = {
    **dict.fromkeys(_RESHAPES, lambda array, _, value: np.reshape(array, value.shape or (), copy=False)),
    "permute_dims": lambda array, maker, _: array.transpose(
        None if maker.attributes.axes is None else [int(axis) for axis in maker.attributes.axes]
    ),
    "split": _split,
    "strided_slice": _slice,
    "take": _take,
}


def _layer(
    operation: Operation, views: tuple[_ArrayView, _ArrayView, _ArrayView], mask: Value | None, scale: float
) -> AttentionOperation | None:
    """Return the operation, if all its tensors can be read as they lie."""
    q, k, v = (view.view() for view in views)
    batch, heads, queries, value_size = _four(operation.out.shape or ())
    shapes = [_four(view.view_array.shape) for view in views]
    keys, size = shapes[1][2:]
    if shapes != [(batch, heads, queries, size), (batch, heads, keys, size), (batch, heads, keys, value_size)]:
        return None
    mask_view = _mask(mask, len(operation.out.shape or ()), (batch, heads, queries, keys)) if mask is not None else None
    if q is None or k is None or v is None or (mask is not None and mask_view is None):
        return None
    out = View(operation.out.shape or (), (heads * queries * value_size, queries * value_size, value_size))
    factor = scale * views[0].factor * views[1].factor
    layer = Attention(batch, heads, queries, keys, size, value_size, q, k, v, out, mask_view, factor)
    inputs = tuple(view.base for view in views) + (() if mask is None else (mask,))
    return AttentionOperation("attention", inputs, operation.outputs, layer=layer)


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
    if sizes[3] != scores[3] or any(size not in {1, full} for size, full in zip(sizes, scores, strict=True)):
        return None
    # A step of 0 reads the same mask for all elements of a batch, all heads or all queries.
    steps = [math.prod(sizes[axis + 1 :]) if sizes[axis] > 1 else 0 for axis in range(3)]
    return View(shape, (steps[0], steps[1], steps[2]))


def _absorb_transpose(attention: AttentionOperation, follower: Operation) -> AttentionOperation | None:
    """Return an attention that writes what a transposition makes of its result."""
    if follower.name != "permute_dims" or follower.attributes.axes is None:
        return None
    # The features of a row stay together; heads and queries may change places.
    axes, shape = [int(axis) for axis in follower.attributes.axes], follower.out.shape
    if axes[-1] != len(axes) - 1 or shape is None:
        return None
    array = np.empty(shape, np.float32)
    view = _ArrayView(follower.out, array, array.transpose(np.argsort(axes))).view()
    return (
        None if view is None else replace(attention, outputs=follower.outputs, layer=replace(attention.layer, out=view))
    )
