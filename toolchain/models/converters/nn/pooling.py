"""Pools (maximum, mean, norm), and what puts elements of windows back into an image: MaxUnpool and Col2Im."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx

from toolchain.models.converters import converter
from toolchain.models.converters.nn.window import Window, axis_numbers, explicit_pads, window
from toolchain.models.converters.node import Node

_POWERS: dict[float, Callable[[Any], Any]] = {1: lambda value: value, 2: relax.op.square, 0.5: relax.op.sqrt}


@converter("MaxPool")
def max_pool(node: Node) -> Any:
    """Convert MaxPool.

    TVM rounds the sizes of SAME_LOWER down, and ignores `storage_order` and the second output, the places.
    """
    found = window(node, node.attributes["kernel_shape"])
    values = pooled(node, node.input(0), found, "max")
    return values if node.outputs == 1 else [values, _places(node, found, values)]


@converter("AveragePool")
def average_pool(node: Node) -> Any:
    """Convert AveragePool.

    TVM ignores dilations for SAME, and counts what a window has beyond the padding where sizes are rounded up.
    """
    found = window(node, node.attributes["kernel_shape"])
    padded = bool(node.attributes.get("count_include_pad", 0))
    if max(found.dilations) == 1 and not padded:
        return pooled(node, node.input(0), found, "mean")
    means = pooled(node, node.input(0), found, "all")
    share = math.prod(found.kernel) / _counts(node.shape(0)[2:], found, padded=padded)
    return means if (share == 1).all() else relax.op.multiply(means, relax.const(share.astype(node.dtype(0))))


@converter("LpPool")
def lp_pool(node: Node) -> Any:
    """Convert LpPool: the p-norm of each window.

    TVM ignores dilations, `ceil_mode` and the padding of SAME.
    """
    power = float(node.attributes.get("p", 2))
    found = window(node, node.attributes["kernel_shape"])
    means = pooled(node, _raised(node, relax.op.abs(node.input(0)), power), found, "all")
    sums = node.emit(relax.op.multiply(means, relax.const(float(math.prod(found.kernel)), node.dtype(0))))
    return _raised(node, sums, 1 / power)


def _raised(node: Node, value: Any, power: float) -> Any:
    if power in _POWERS:
        return node.emit(_POWERS[power](value))
    return node.emit(relax.op.power(value, relax.const(power, node.dtype(0))))


def pooled(node: Node, data: Any, found: Window, how: str) -> Any:
    """Return a pool.

    Args:
        node: Whose it is.
        data: [batch, channels, *sizes], with one to three sizes.
        found: The window.
        how: "max", "mean" of the elements that are there, or the mean of "all", the padding included.

    Raises:
        InputError: It has more axes.
    """
    axes = len(found.kernel)
    if axes == 1:
        image = node.emit(relax.op.expand_dims(data, 2))
        return node.emit(relax.op.squeeze(pooled(node, image, found.widened(), how), [2]))
    operators = {2: "2d", 3: "3d"}
    if axes not in operators:
        raise node.refusal(f"its image has {axes} axes instead of one to three")
    pads = [one for side in zip(*found.reach, strict=True) for one in side]
    name = ("max_pool" if how == "max" else "avg_pool") + operators[axes]
    operator = getattr(relax.op.nn, name)
    counted = {} if how == "max" else {"count_include_pad": how == "all"}
    made = operator(
        data, list(found.kernel), list(found.strides), pads, list(found.dilations), ceil_mode=False, **counted
    )
    return node.emit(made)


def _counts(sizes: tuple[int, ...], found: Window, *, padded: bool) -> NDArray[np.float64]:
    """Return how many elements each window counts, padding included or not, [1, 1, *sizes]."""
    counts: NDArray[np.float64] = np.ones((1, 1, *[1] * len(sizes)))
    for axis, size in enumerate(sizes):
        before, after = found.pads[axis]
        first = np.arange(found.output_sizes[axis]) * found.strides[axis] - before
        places = first[:, None] + np.arange(found.kernel[axis]) * found.dilations[axis]
        lowest, highest = (-before, size + after) if padded else (0, size)
        inside = ((places >= lowest) & (places < highest)).sum(1)
        counts = counts * inside.reshape(-1, *[1] * (len(sizes) - 1 - axis))
    return counts


def _places(node: Node, found: Window, values: Any) -> Any:
    """Return where the greatest elements are, of equal ones the first, as places in the whole input."""
    sizes = node.shape(0)[2:]
    nowhere = tirx.const(math.prod(sizes), "int32")

    def compute(data: Any, greatest: Any) -> Any:
        axes = [te.reduce_axis((0, size), f"k{axis}") for axis, size in enumerate(found.kernel)]

        def element(*at: Any) -> Any:
            moves = zip(at[2:], found.strides, axes, found.dilations, found.pads, strict=True)
            places = [place * stride + k * step - before for place, stride, k, step, (before, _) in moves]
            inside = [tirx.all(place >= 0, place < size) for place, size in zip(places, sizes, strict=True)]
            value = tirx.if_then_else(tirx.all(*inside), data(*at[:2], *places), te.min_value(data.dtype))
            is_greatest = tirx.all(*inside, value == greatest(*at))
            return te.min(tirx.Select(is_greatest, _row(places, sizes).astype("int32"), nowhere), axis=axes)

        return te.compute(greatest.shape, element, name="places")

    places = node.compute(compute, node.input(0), values, name="max_pool_places")
    by_columns = bool(node.attributes.get("storage_order", 0))
    return node.compute(lambda one: _in_input(one, sizes, by_columns=by_columns), places, name="max_pool_in_input")


def _row(places: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return the place in an image whose last axis comes first."""
    flat = places[0]
    for place, size in zip(places[1:], sizes[1:], strict=True):
        flat = flat * size + place
    return flat


def _in_input(places: Any, sizes: Sequence[int], *, by_columns: bool) -> Any:
    """Return places in an image as such in the whole input, perhaps with the first axis of images first."""

    def element(*at: Any) -> Any:
        flat, apart = places(*at), []
        for size in reversed(sizes):
            apart.append(flat % size)
            flat = flat // size
        within = _row(apart, sizes[::-1]) if by_columns else places(*at)
        return ((at[0] * places.shape[1] + at[1]) * math.prod(sizes)).astype("int64") + within.astype("int64")

    return te.compute(places.shape, element, name="in_input")


@converter("MaxUnpool")
def max_unpool(node: Node) -> Any:
    """Convert MaxUnpool.

    TVM takes the numbers of `pads` for pairs by axis, and fails where the output's shape is given.
    """
    kernel = node.attributes["kernel_shape"]
    found = window(node, kernel)
    sizes = [
        (size - 1) * stride + taps - sum(pads)
        for size, stride, taps, pads in zip(node.shape(0)[2:], found.strides, kernel, found.pads, strict=True)
    ]
    shape, given = (*node.shape(0)[:2], *sizes), node.constant(2)
    if given is not None and tuple(map(int, given)) != shape:
        reason = "the ONNX standard and ONNX Runtime interpret its indices differently"
        raise node.refusal(f"its output_shape is {given.tolist()}, but its window gives {list(shape)}: {reason}")
    empty = node.emit(relax.op.zeros((math.prod(shape),), node.dtype(0)))
    flat = [node.emit(relax.op.reshape(node.input(index), (-1,))) for index in (1, 0)]
    return relax.op.reshape(node.emit(relax.op.scatter_elements(empty, *flat, axis=0)), shape)


@converter("Col2Im")
def col2im(node: Node) -> Any:
    """Convert Col2Im: each element of the image is the sum of all places in the columns that stand for it."""
    sizes, block = (node.integers(index, "") for index in (1, 2))
    if not sizes or not block:
        raise node.refusal("its image or its block has no axes")
    count = len(sizes)
    strides, dilations = axis_numbers(node, "strides", count, 1), axis_numbers(node, "dilations", count, 1)
    pads = explicit_pads(node, count)
    batch, columns, _ = node.shape(0)
    steps = [
        (size + sum(pad) - (taps - 1) * step - 1) // stride + 1
        for size, taps, stride, step, pad in zip(sizes, block, strides, dilations, pads, strict=True)
    ]
    apart = (batch, columns // math.prod(block), *block, *steps)

    def compute(data: Any) -> Any:
        taps = [te.reduce_axis((0, size), f"k{axis}") for axis, size in enumerate(block)]

        def element(image: Any, channel: Any, *at: Any) -> Any:
            moved = [
                place + before - tap * step
                for place, (before, _), tap, step in zip(at, pads, taps, dilations, strict=True)
            ]
            fits = [
                tirx.all(place >= 0, place % stride == 0, place < stride * made)
                for place, stride, made in zip(moved, strides, steps, strict=True)
            ]
            found = [place // stride for place, stride in zip(moved, strides, strict=True)]
            value = data(image, channel, *taps, *found)
            return te.sum(tirx.if_then_else(tirx.all(*fits), value, tirx.const(0, data.dtype)), axis=taps)

        return te.compute((*apart[:2], *sizes), element, name="image")

    return node.compute(compute, node.emit(relax.op.reshape(node.input(0), apart)), name="col2im")
