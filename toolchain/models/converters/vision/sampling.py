"""Elements of an image at positions between its pixels: GridSample, AffineGrid and DeformConv."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.models.converters.nn.weights import as_expression, input_weights, reshape
from toolchain.models.converters.nn.window import window

_SHARPNESS = -0.75  # of the cubic kernel
_HALF = 0.5

Weighted = list[tuple[Any, Any]]  # positions along one axis, and their weights
Reader = Callable[[Sequence[Any]], Any]


# TVM lacks cubic samples of volumes, and repeated reflections are wrong.
@converter("GridSample")
def grid_sample(node: Node) -> Any:
    sizes = node.shape(0)[2:]
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(*2 * (str(node.attributes.get("mode", "linear")),))
    padding = str(node.attributes.get("padding_mode", "zeros"))
    corners = bool(node.attributes.get("align_corners", 0))
    neighbours = _NEIGHBOURS[mode]

    def compute(data: Any, grid: Any) -> Any:
        def element(image: Any, channel: Any, *index: Any) -> Any:
            coordinates = [grid(image, *index, len(sizes) - 1 - axis) for axis in range(len(sizes))]
            points = [
                (point + 1.0) * ((size - 1) / 2) if corners else ((point + 1.0) * float(size) - 1.0) / 2.0
                for point, size in zip(coordinates, sizes, strict=True)
            ]
            # Cubic samples are padded for each neighbour instead, when it is read.
            if padding == "reflection" and mode != "cubic":
                points = [_reflect(point, size, corners=corners) for point, size in zip(points, sizes, strict=True)]
            if padding == "border" and mode != "cubic":
                points = [_clip(point, 0.0, size - 1.0) for point, size in zip(points, sizes, strict=True)]
            read = _reader(data, (image, channel), sizes, padding, corners=corners)
            return _weighted_sum(read, [neighbours(point) for point in points])

        return te.compute((*data.shape[:2], *grid.shape[1:-1]), element, name="samples")

    return node.compute(compute, node.input(0), node.input(1), name="grid_sample")


def _clip(value: Any, least: float, greatest: float) -> Any:
    return tirx.min(tirx.max(value, tirx.const(least, value.ty.dtype)), tirx.const(greatest, value.ty.dtype))


def _reflect(point: Any, size: int, *, corners: bool) -> Any:
    """Mirror a position at the edges until it lies between them."""
    low, high = (0.0, size - 1.0) if corners else (-_HALF, size - _HALF)
    length = high - low
    if length == 0:
        return point * 0.0
    away = tirx.abs(point - low)
    rest = away - tirx.floor(away / (2 * length)) * (2 * length)
    inside = low + tirx.min(rest, 2 * length - rest)
    return inside if corners else _clip(inside, 0.0, size - 1.0)


def _reader(data: Any, first: Sequence[Any], sizes: Sequence[int], padding: str, *, corners: bool) -> Reader:
    """Return a function that reads an element at a position that may lie beyond the edges."""

    def read(positions: Sequence[Any]) -> Any:
        if padding == "reflection":
            positions = [_reflect(x, size, corners=corners) for x, size in zip(positions, sizes, strict=True)]
        limited = [_clip(x, 0.0, size - 1.0).astype("int32") for x, size in zip(positions, sizes, strict=True)]
        value = data(*first, *limited)
        if padding != "zeros":
            return value
        inside = [tirx.all(x >= 0, x <= size - 1) for x, size in zip(positions, sizes, strict=True)]
        return tirx.Select(tirx.all(*inside), value, tirx.const(0, data.dtype))

    return read


def _weighted_sum(read: Reader, axes: Sequence[Weighted]) -> Any:
    """Return the sum over all combinations of neighbours along the axes."""
    total = None
    for neighbours in itertools.product(*axes):
        value = read([position for position, _ in neighbours])
        for _, weight in neighbours:
            value = value if weight is None else value * weight
        total = value if total is None else total + value
    return total


def _two_neighbours(point: Any) -> Weighted:
    first = tirx.floor(point)
    share = point - first
    return [(first, 1.0 - share), (first + 1.0, share)]


def _four_neighbours(point: Any) -> Weighted:
    first, a = tirx.floor(point), _SHARPNESS
    share = point - first

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1.0

    weights = far(share + 1.0), near(share), near(1.0 - share), far(2.0 - share)
    return [(first + float(offset), weight) for offset, weight in zip(range(-1, 3), weights, strict=True)]


_NEIGHBOURS: dict[str, Callable[[Any], Weighted]] = {
    "nearest": lambda point: [(tirx.nearbyint(point), None)],  # of two equally near elements, the even one
    "linear": _two_neighbours,
    "cubic": _four_neighbours,
}


# TVM lacks volumes of one layer. An axis of one element with aligned corners is refused: the standard and TVM divide by
# zero there, and ONNX Runtime's result is not part of the standard.
@converter("AffineGrid")
def affine_grid(node: Node) -> Any:
    shape = node.constant(1)
    if shape is None:
        raise node.refusal("input 1 is left out")
    sizes = [int(size) for size in shape[2:]]
    dtype, corners = node.dtype(0), bool(node.attributes.get("align_corners", 0))
    if corners and 1 in sizes:
        raise node.refusal("align_corners has no meaning for an axis of one element")
    axes = [np.linspace(-1, 1, size) if corners else (2 * np.arange(size) + 1) / size - 1 for size in sizes]
    # The points are constant; only their product with the input is left to compute. Coordinates are x, y, z.
    last_first = np.meshgrid(*axes, indexing="ij")[::-1]
    points = np.stack([*last_first, np.ones(sizes)], -1).reshape(1, -1, len(sizes) + 1)
    transposed = relax.op.permute_dims(node.input(0), [0, 2, 1])
    grid = relax.op.matmul(relax.const(points.astype(dtype)), node.emit(transposed))
    return relax.op.reshape(node.emit(grid), (node.shape(0)[0], *sizes, len(sizes)))


# The elements of the window become channels of a matrix product.
@converter("DeformConv")
def deform_conv(node: Node) -> Any:
    batch, channels, height, width = node.shape(0)
    outputs, _, *kernel = node.shape(1)
    geometry = window(node, kernel)
    groups, area = int(node.attributes.get("group", 1)), math.prod(kernel)
    samples = _window_samples(node, (channels, height, width), geometry)
    columns = (batch, groups, channels // groups * area, math.prod(geometry.output_sizes))
    matrix = reshape(node, input_weights(node, 1), (1, groups, outputs // groups, columns[2]))
    product = relax.op.matmul(as_expression(matrix), node.emit(relax.op.reshape(samples, columns)))
    result = node.emit(relax.op.reshape(node.emit(product), (batch, outputs, *geometry.output_sizes)))
    if node.input(3) is None:
        return result
    return relax.op.add(result, relax.op.reshape(node.input(3), (1, -1, 1, 1)))


def _window_samples(node: Node, shape: tuple[int, int, int], geometry: Any) -> Any:
    """Return the samples of all windows: [batch, channels, elements of the window, *positions]."""
    channels, *sizes = shape
    offset_groups, area = int(node.attributes.get("offset_group", 1)), math.prod(geometry.kernel)
    mask = node.input(4)

    def compute(data: Any, offsets: Any, *masks: Any) -> Any:
        def element(image: Any, channel: Any, tap: Any, *index: Any) -> Any:
            number = channel // (channels // offset_groups) * area + tap
            tap_index = (tap // geometry.kernel[1], tap % geometry.kernel[1])
            points = [
                (
                    index[axis] * geometry.strides[axis]
                    - geometry.pads[axis][0]
                    + tap_index[axis] * geometry.dilations[axis]
                ).astype(data.dtype)
                + offsets(image, number * 2 + axis, *index)
                for axis in range(2)
            ]
            read = _reader(data, (image, channel), sizes, "zeros", corners=False)
            value = _weighted_sum(read, [_two_neighbours(point) for point in points])
            return value * masks[0](image, number, *index) if masks else value

        return te.compute((data.shape[0], channels, area, *geometry.output_sizes), element, name="deformed")

    inputs = [node.input(0), node.input(2), *([] if mask is None else [mask])]
    return node.compute(compute, *inputs, name="deformed")
