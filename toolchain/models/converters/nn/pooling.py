"""Pools (maximum, mean, norm), and what puts elements of windows back into an image: MaxUnpool and Col2Im."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.models.converters.nn.window import Window, axis_numbers, explicit_pads, window

_POWERS: dict[float, Callable[[Any], Any]] = {1: lambda value: value, 2: relax.op.square, 0.5: relax.op.sqrt}


# TVM rounds the sizes of SAME_LOWER down, and ignores `storage_order` and the second output, the indices.
@converter("MaxPool")
def max_pool(node: Node) -> Any:
    geometry = window(node, node.attributes["kernel_shape"])
    values = pool(node, node.input(0), geometry, "max")
    return values if node.outputs == 1 else [values, _max_indices(node, geometry, values)]


# TVM ignores dilations for SAME, and counts elements beyond the padding where sizes are rounded up.
@converter("AveragePool")
def average_pool(node: Node) -> Any:
    geometry = window(node, node.attributes["kernel_shape"])
    padded = bool(node.attributes.get("count_include_pad", 0))
    if max(geometry.dilations) == 1 and not padded:
        return pool(node, node.input(0), geometry, "mean")
    means = pool(node, node.input(0), geometry, "all")
    # How many elements each window counts, [1, 1, *sizes].
    sizes = node.shape(0)[2:]
    counts: NDArray[np.float64] = np.ones((1, 1, *[1] * len(sizes)))
    for axis, size in enumerate(sizes):
        before, after = geometry.pads[axis]
        first = np.arange(geometry.output_sizes[axis]) * geometry.strides[axis] - before
        positions = first[:, None] + np.arange(geometry.kernel[axis]) * geometry.dilations[axis]
        lowest, highest = (-before, size + after) if padded else (0, size)
        inside = ((positions >= lowest) & (positions < highest)).sum(1)
        counts = counts * inside.reshape(-1, *[1] * (len(sizes) - 1 - axis))
    share = math.prod(geometry.kernel) / counts
    return means if (share == 1).all() else relax.op.multiply(means, relax.const(share.astype(node.dtype(0))))


# TVM ignores dilations, `ceil_mode` and the padding of SAME.
@converter("LpPool")
def lp_pool(node: Node) -> Any:
    power = float(node.attributes.get("p", 2))
    geometry = window(node, node.attributes["kernel_shape"])
    means = pool(node, _power(node, relax.op.abs(node.input(0)), power), geometry, "all")
    sums = node.emit(relax.op.multiply(means, relax.const(float(math.prod(geometry.kernel)), node.dtype(0))))
    return _power(node, sums, 1 / power)


def _power(node: Node, value: Any, power: float) -> Any:
    if power in _POWERS:
        return node.emit(_POWERS[power](value))
    return node.emit(relax.op.power(value, relax.const(power, node.dtype(0))))


def pool(node: Node, data: Any, geometry: Window, mode: str) -> Any:
    """Return a pool of data [batch, channels, *sizes], with one to three sizes.

    `mode` is "max", "mean" (of the elements inside the image) or "all" (mean with the padding).
    """
    axes = len(geometry.kernel)
    if axes == 1:
        image = node.emit(relax.op.expand_dims(data, 2))
        return node.emit(relax.op.squeeze(pool(node, image, geometry.widened(), mode), [2]))
    operators = {2: "2d", 3: "3d"}
    if axes not in operators:
        raise node.refusal(f"its image has {axes} axes instead of one to three")
    pads = [pad for side in zip(*geometry.reach, strict=True) for pad in side]
    name = ("max_pool" if mode == "max" else "avg_pool") + operators[axes]
    operator = getattr(relax.op.nn, name)
    counted = {} if mode == "max" else {"count_include_pad": mode == "all"}
    result = operator(
        data, list(geometry.kernel), list(geometry.strides), pads, list(geometry.dilations), ceil_mode=False, **counted
    )
    return node.emit(result)


def _max_indices(node: Node, geometry: Window, values: Any) -> Any:
    """Return the index of each greatest element (the first of equal ones) in the whole input."""
    sizes = node.shape(0)[2:]
    nowhere = tirx.const(math.prod(sizes), "int32")

    def compute(data: Any, greatest: Any) -> Any:
        axes = [te.reduce_axis((0, size), f"k{axis}") for axis, size in enumerate(geometry.kernel)]

        def element(*index: Any) -> Any:
            moves = zip(index[2:], geometry.strides, axes, geometry.dilations, geometry.pads, strict=True)
            positions = [position * stride + k * step - before for position, stride, k, step, (before, _) in moves]
            inside = [tirx.all(position >= 0, position < size) for position, size in zip(positions, sizes, strict=True)]
            value = tirx.if_then_else(tirx.all(*inside), data(*index[:2], *positions), te.min_value(data.dtype))
            is_greatest = tirx.all(*inside, value == greatest(*index))
            return te.min(tirx.Select(is_greatest, _flat_index(positions, sizes).astype("int32"), nowhere), axis=axes)

        return te.compute(greatest.shape, element, name="places")

    positions = node.compute(compute, node.input(0), values, name="max_pool_places")
    by_columns = bool(node.attributes.get("storage_order", 0))
    return node.compute(
        lambda indices: _to_input_index(indices, sizes, by_columns=by_columns), positions, name="max_pool_in_input"
    )


def _flat_index(indices: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return the index into an image whose last axis is contiguous."""
    flat = indices[0]
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        flat = flat * size + index
    return flat


def _to_input_index(indices: Any, sizes: Sequence[int], *, by_columns: bool) -> Any:
    """Return indices into an image as indices into the whole input; `by_columns` makes its first axis contiguous."""

    def element(*index: Any) -> Any:
        flat, coordinates = indices(*index), []
        for size in reversed(sizes):
            coordinates.append(flat % size)
            flat = flat // size
        within = _flat_index(coordinates, sizes[::-1]) if by_columns else indices(*index)
        return ((index[0] * indices.shape[1] + index[1]) * math.prod(sizes)).astype("int64") + within.astype("int64")

    return te.compute(indices.shape, element, name="in_input")


# TVM takes the numbers of `pads` for pairs by axis, and fails if there is an output shape.
@converter("MaxUnpool")
def max_unpool(node: Node) -> Any:
    kernel = node.attributes["kernel_shape"]
    geometry = window(node, kernel)
    sizes = [
        (size - 1) * stride + taps - sum(pads)
        for size, stride, taps, pads in zip(node.shape(0)[2:], geometry.strides, kernel, geometry.pads, strict=True)
    ]
    shape, output_shape = (*node.shape(0)[:2], *sizes), node.constant(2)
    if output_shape is not None and tuple(map(int, output_shape)) != shape:
        reason = "the ONNX standard and ONNX Runtime interpret its indices differently"
        raise node.refusal(f"its output_shape is {output_shape.tolist()}, but its window gives {list(shape)}: {reason}")
    empty = node.emit(relax.op.zeros((math.prod(shape),), node.dtype(0)))
    flat = [node.emit(relax.op.reshape(node.input(index), (-1,))) for index in (1, 0)]
    return relax.op.reshape(node.emit(relax.op.scatter_elements(empty, *flat, axis=0)), shape)


@converter("Col2Im")
def col2im(node: Node) -> Any:
    """Add up, for each element of the image, the elements of columns that stand for it."""
    sizes, block = (node.integers(index, "") for index in (1, 2))
    if not sizes or not block:
        raise node.refusal("its image or its block has no axes")
    count = len(sizes)
    strides, dilations = axis_numbers(node, "strides", count, 1), axis_numbers(node, "dilations", count, 1)
    pads = explicit_pads(node, count)
    batch, columns, _ = node.shape(0)
    window_counts = [
        (size + sum(pad) - (taps - 1) * step - 1) // stride + 1
        for size, taps, stride, step, pad in zip(sizes, block, strides, dilations, pads, strict=True)
    ]
    split_shape = (batch, columns // math.prod(block), *block, *window_counts)

    def compute(data: Any) -> Any:
        taps = [te.reduce_axis((0, size), f"k{axis}") for axis, size in enumerate(block)]

        def element(image: Any, channel: Any, *index: Any) -> Any:
            offsets = [
                position + before - tap * step
                for position, (before, _), tap, step in zip(index, pads, taps, dilations, strict=True)
            ]
            fits = [
                tirx.all(position >= 0, position % stride == 0, position < stride * windows)
                for position, stride, windows in zip(offsets, strides, window_counts, strict=True)
            ]
            sources = [position // stride for position, stride in zip(offsets, strides, strict=True)]
            value = data(image, channel, *taps, *sources)
            return te.sum(tirx.if_then_else(tirx.all(*fits), value, tirx.const(0, data.dtype)), axis=taps)

        return te.compute((*split_shape[:2], *sizes), element, name="image")

    return node.compute(compute, node.emit(relax.op.reshape(node.input(0), split_shape)), name="col2im")
