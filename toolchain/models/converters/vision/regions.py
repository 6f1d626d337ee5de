"""Regions of images: RoiAlign and MaxRoiPool."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from toolchain.models.converters import Node, converter

_HALVES = 16  # the opset since which regions may start between two elements


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


_HALF = 0.5


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
