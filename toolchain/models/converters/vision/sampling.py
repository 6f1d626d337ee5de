"""Elements of an image at positions between its pixels: GridSample, AffineGrid, DeformConv, and regions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter
from toolchain.models.converters.nn.window import as_expression, input_weights, reshape, window

_SHARPNESS = -0.75  # of the cubic kernel
_HALF = 0.5

Weighted = list[tuple[Any, Any]]  # positions along one axis, and their weights
Reader = Callable[[Sequence[Any]], Any]

_HALVES = 16  # the opset since which regions may start between two elements


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


# TVM takes the maximum of interpolated values, ONNX that of the four weighted neighbours; and it rounds regions of half
# a pixel differently.
@converter("RoiAlign")
def roi_align(node: Node) -> Any:
    rows, columns = int(node.attributes.get("output_height", 1)), int(node.attributes.get("output_width", 1))
    ratio, scale = int(node.attributes.get("sampling_ratio", 0)), float(node.attributes.get("spatial_scale", 1))
    default = "half_pixel" if node.opset >= _HALVES else "output_half_pixel"
    is_half_pixel = node.attributes.get("coordinate_transformation_mode", default) == "half_pixel"
    mean = node.attributes.get("mode", "avg") == "avg"
    regions, channels, sizes = node.shape(1)[0], node.shape(0)[1], node.shape(0)[2:]
    cells = (rows, columns)

    def compute(data: Any, rois: Any, images: Any) -> Any:
        zero = tirx.const(0, data.dtype)

        def geometry(region: Any, axis: int) -> tuple[Any, Any, Any]:
            """Return where a region starts, the size of its cells, and how many samples each has along an axis."""
            start, end = (
                rois(region, 1 - axis + 2 * edge) * scale - (0.5 if is_half_pixel else 0.0) for edge in (0, 1)
            )
            length = end - start if is_half_pixel else tirx.max(end - start, tirx.const(1, data.dtype))
            cell = length / float(cells[axis])
            count = tirx.const(ratio, "int32") if ratio > 0 else tirx.ceil(cell).astype("int32")
            return start, cell, count

        def element(region: Any, channel: Any, row: Any, column: Any) -> Any:
            axes = [geometry(region, axis) for axis in (0, 1)]
            max_steps = [ratio if ratio > 0 else -(-size // cells[axis]) + 1 for axis, size in enumerate(sizes)]
            steps = [te.reduce_axis((0, extent), f"s{axis}") for axis, extent in enumerate(max_steps)]
            points = [
                start
                + cell_index.astype(data.dtype) * cell
                + (step.astype(data.dtype) + 0.5) * cell / count.astype(data.dtype)
                for (start, cell, count), cell_index, step in zip(axes, (row, column), steps, strict=True)
            ]
            neighbours = _interpolated(data, (images(region).astype("int32"), channel), points, sizes)
            used = tirx.all(*(step < count for step, (_, _, count) in zip(steps, axes, strict=True)))
            if mean:
                total = tirx.max(axes[0][2] * axes[1][2], 1).astype(data.dtype)
                return te.sum(tirx.Select(used, sum(neighbours, zero) / total, zero), axis=steps)
            largest = tirx.max(tirx.max(neighbours[0], neighbours[1]), tirx.max(neighbours[2], neighbours[3]))
            return te.max(tirx.Select(used, largest, te.min_value(data.dtype)), axis=steps)

        return te.compute((regions, channels, rows, columns), element, name="aligned")

    return node.compute(compute, node.input(0), node.input(1), node.input(2), name="roi_align")


def _interpolated(data: Any, first: Any, points: list[Any], sizes: Any) -> list[Any]:
    """Return the four neighbours of a point, each times its weight; zeros for a point beyond the image."""
    dtype, neighbours, inside = data.dtype, [], []
    for point, size in zip(points, sizes, strict=True):
        inside += [point >= -1.0, point <= float(size)]
        position = tirx.min(tirx.max(point, tirx.const(0, dtype)), tirx.const(size - 1, dtype))
        low = tirx.min(tirx.floor(position), tirx.const(size - 1, dtype))
        share = position - low
        low_index = low.astype("int32")
        neighbours.append([(low_index, 1.0 - share), (tirx.min(low_index + 1, size - 1), share)])
    return [
        tirx.Select(tirx.all(*inside), data(*first, y, x) * (height * width), tirx.const(0, dtype))
        for y, height in neighbours[0]
        for x, width in neighbours[1]
    ]


@converter("MaxRoiPool")
def max_roi_pool(node: Node) -> Any:
    """Return the maximum of each cell of a region whose edges are rounded."""
    cells = [int(size) for size in node.attributes["pooled_shape"]]
    scale, sizes = float(node.attributes.get("spatial_scale", 1)), node.shape(0)[2:]
    shape = (node.shape(1)[0], node.shape(0)[1], *cells)

    def compute(data: Any, rois: Any) -> Any:
        def span(region: Any, axis: int, cell_index: Any) -> tuple[Any, Any]:
            start, end = (_round_half_away(rois(region, 2 - axis + 2 * edge) * scale) for edge in (0, 1))
            cell = tirx.max(end - start + 1.0, tirx.const(1, data.dtype)) / float(cells[axis])
            first, last = (
                tirx.floor(cell_index.astype(data.dtype) * cell),
                tirx.ceil((cell_index + 1).astype(data.dtype) * cell),
            )
            return (first + start).astype("int32"), (last + start).astype("int32")

        def element(region: Any, channel: Any, *index: Any) -> Any:
            axes = [te.reduce_axis((0, size), f"k{axis}") for axis, size in enumerate(sizes)]
            spans = [span(region, axis, index[axis]) for axis in (0, 1)]
            used = tirx.all(
                *(test for k, (first, last) in zip(axes, spans, strict=True) for test in (k >= first, k < last))
            )
            value = data(rois(region, 0).astype("int32"), channel, *axes)
            return te.max(tirx.Select(used, value, te.min_value(data.dtype)), axis=axes)

        return te.compute(shape, element, name="pooled")

    greatest = node.compute(compute, node.input(0), node.input(1), name="max_roi_pool")
    least = relax.const(float(te.min_value(node.dtype(0)).value), node.dtype(0))
    return relax.op.where(relax.op.equal(greatest, least), relax.const(0.0, node.dtype(0)), greatest)


def _round_half_away(value: Any) -> Any:
    """Round as C's `round`, which ONNX Runtime uses here; TVM's rounds halves to even numbers."""
    whole = tirx.trunc(value)
    nearest_step = tirx.Select(value < 0, -1.0, 1.0)
    return tirx.Select(tirx.abs(value - whole) < _HALF, whole, whole + nearest_step)
