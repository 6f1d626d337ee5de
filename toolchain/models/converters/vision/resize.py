"""Resize and Upsample: along each axis, every element of the result is a weighted sum of few elements of the input.

Their indices and weights are known before the network runs, so both are tables. Images that grow by whole factors use
TVM's operator, which is right there, and which the backends compute in the layout of the images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te

from toolchain.models.converters import Node, converter

_IMAGE = 4  # axes of what the backends know as an image
_CROP = "tf_crop_and_resize"
_HALF_PIXELS = 11  # the opset from which on Resize has a choice of coordinates
_POINTS = NDArray[np.float32]


@dataclass(frozen=True)
class Axis:
    """How one axis is resized.

    Attributes:
        axis: Its number.
        before: Its length in the input.
        after: Its length in the result.
        scale: Ratio of the lengths, as ONNX computes it.
        start, end: The part of the input that is cropped, as fractions.
    """

    axis: int
    before: int
    after: int
    scale: np.float32
    start: float = 0.0
    end: float = 1.0

    @property
    def changes(self) -> bool:
        return self.after != self.before or self.scale != 1 or (self.start, self.end) != (0.0, 1.0)


@dataclass(frozen=True)
class Table:
    """Which elements of the input make each element of a resized axis, and their weights: [length, neighbours]."""

    indices: NDArray[np.int64]
    weights: NDArray[np.float32]

    def within(self, length: int, *, drop: bool) -> Table:
        """Return the table with indices beyond the edges clipped, or dropped with the other weights scaled up."""
        weights = self.weights
        if drop:
            weights = np.where((self.indices < 0) | (self.indices >= length), np.float32(0), weights)
            weights /= weights.sum(1, keepdims=True)
        return Table(np.clip(self.indices, 0, length - 1), weights)


# TVM computes with the ratio of the lengths where ONNX has the given scales, which is wrong wherever they leave a
# fraction. Its cubic weights are wrong, as are axes other than the last ones. It lacks `antialias`,
# `half_pixel_symmetric`, `keep_aspect_ratio_policy` and ranks other than 3 to 5.
@converter("Resize")
def resize(node: Node) -> Any:
    if node.opset < _HALF_PIXELS:
        return _resize_without_coordinates(node, node.constant(1))
    mode = str(node.attributes.get("coordinate_transformation_mode", "half_pixel"))
    if mode not in _POSITIONS:
        raise node.refusal(f"its coordinate_transformation_mode is {mode}")
    axes = [axis for axis in _axes(node, mode) if axis.changes]
    if mode != _CROP and all(axis.after == axis.before for axis in axes):
        return node.input(0)  # a scale that changes no length: ONNX Runtime does nothing, the standard hardly anything
    fill = node.attributes.get("extrapolation_value", 0.0) if mode == _CROP else None
    if _fits_upstream(node, mode, axes):
        new_sizes = {axis.axis: axis.after for axis in axes}
        nearest = node.attributes.get("mode", "nearest") == "nearest"
        return relax.op.image.resize2d(
            node.input(0),
            relax.ShapeExpr([new_sizes.get(axis, node.shape(0)[axis]) for axis in (_IMAGE - 2, _IMAGE - 1)]),
            layout="NCHW",
            method="nearest_neighbor" if nearest else "linear",
            coordinate_transformation_mode=mode,
            rounding_method=node.attributes.get("nearest_mode", "round_prefer_floor") if nearest else "round",
        )
    points = {axis: _POSITIONS[mode](np.arange(axis.after, dtype=np.float32), axis) for axis in axes}
    resized = _apply_tables(node, {axis: _table(node, axis, points[axis]) for axis in axes})
    return resized if fill is None else _extrapolate(node, resized, points, fill)


# TVM supports four dimensions with constant scales as an attribute, and changes the last two.
@converter("Upsample")
def upsample(node: Node) -> Any:
    scales = node.attributes.get("scales")
    return _resize_without_coordinates(node, node.constant(1) if scales is None else np.asarray(scales))


def _resize_without_coordinates(node: Node, scales: NDArray[Any] | None) -> Any:
    """Convert the old operators: `x / scale`, and the element below, or above if the axis shrinks."""
    axes = [axis for axis in _axes_by_scale(node, range(len(node.shape(0))), scales) if axis.changes]
    tables = {}
    for axis in axes:
        points = _asymmetric(np.arange(axis.after, dtype=np.float32), axis)
        if node.attributes.get("mode", "nearest") == "nearest":
            tables[axis] = _nearest(points, axis, "ceil" if axis.scale < 1 else "floor")
        else:
            tables[axis] = _linear(points, axis)
    return _apply_tables(node, tables)


def _axes(node: Node, mode: str) -> list[Axis]:
    """Return the axes that the node resizes, with their lengths."""
    rank = len(node.shape(0))
    axis_numbers = [axis % rank for axis in node.attributes.get("axes", range(rank))]
    scales, sizes = _optional_constant(node, 2), _optional_constant(node, 3)
    axes = _axes_by_scale(node, axis_numbers, scales) if sizes is None else _axes_by_size(node, axis_numbers, sizes)
    roi = _optional_constant(node, 1) if mode == _CROP else None
    if roi is None:
        return axes
    starts, ends = np.split(roi.astype(np.float32), 2)
    return [
        Axis(axis.axis, axis.before, axis.after, axis.scale, float(start), float(end))
        for axis, start, end in zip(axes, starts, ends, strict=True)
    ]


def _fits_upstream(node: Node, coordinates: str, axes: Sequence[Axis]) -> bool:
    """Whether TVM's own operator, which the backends know, enlarges an image in this way."""
    mode = node.attributes.get("mode", "nearest")
    resized = {axis.axis for axis in axes}
    if coordinates == "align_corners" and 1 in node.shape(0)[-2:]:  # TVM divides by the length less one
        return False
    if node.dtype(0) != "float32" or len(node.shape(0)) != _IMAGE or not resized or min(resized) < _IMAGE - 2:
        return False
    if coordinates not in {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"} or mode == "cubic":
        return False
    if mode == "linear" and coordinates != "asymmetric":
        return all(axis.after >= axis.before > 1 and axis.scale * axis.before == axis.after for axis in axes)
    is_whole_factor = all(axis.after % axis.before == 0 and axis.scale == axis.after // axis.before for axis in axes)
    return coordinates != "align_corners" and is_whole_factor


def _optional_constant(node: Node, index: int) -> NDArray[Any] | None:
    value = node.constant(index)
    return None if value is None or value.size == 0 else value


def _axes_by_scale(node: Node, axes: Any, scales: NDArray[Any] | None) -> list[Axis]:
    if scales is None or len(scales) != len(axes):
        raise node.refusal("it has neither a scale nor a size for each axis")
    shape = node.shape(0)
    return [
        Axis(axis, shape[axis], int(np.float32(scale) * np.float32(shape[axis])), np.float32(scale))
        for axis, scale in zip(axes, scales, strict=True)
    ]


def _axes_by_size(node: Node, axes: Any, sizes: NDArray[Any]) -> list[Axis]:
    before = [node.shape(0)[axis] for axis in axes]
    scales = sizes.astype(np.float32) / np.asarray(before, np.float32)
    choose = {"not_larger": min, "not_smaller": max}.get(node.attributes.get("keep_aspect_ratio_policy", "stretch"))
    if choose is not None:
        scales = np.full_like(scales, choose(scales))
        sizes = np.floor(scales * np.asarray(before, np.float32) + np.float32(0.5))
    return [Axis(*axis) for axis in zip(axes, before, map(int, sizes), scales, strict=True)]


def _table(node: Node, axis: Axis, points: _POINTS) -> Table:
    mode, sharpness = node.attributes.get("mode", "nearest"), node.attributes.get("cubic_coeff_a", -0.75)
    drop = bool(node.attributes.get("exclude_outside", 0))
    if mode == "nearest":
        return _nearest(points, axis, node.attributes.get("nearest_mode", "round_prefer_floor"))
    # Linear interpolation is a triangle, which antialiasing widens where an axis shrinks.
    kernel: Callable[[_POINTS], _POINTS] = (
        partial(_cubic, sharpness=np.float32(sharpness))
        if mode == "cubic"
        else lambda away: np.maximum(1 - np.abs(away), np.float32(0))
    )
    reach = 2 if mode == "cubic" else 1
    if node.attributes.get("antialias", 0) and axis.scale < 1:
        return _antialiased(points, axis, kernel, reach).within(axis.before, drop=drop)
    if mode == "linear":
        return _linear(points, axis)
    first = np.floor(points)
    indices = first[:, None].astype(np.int64) + np.arange(1 - reach, 1 + reach)
    return Table(indices, kernel(points[:, None] - indices.astype(np.float32))).within(axis.before, drop=drop)


def _nearest(points: _POINTS, axis: Axis, rounding: str) -> Table:
    indices = _ROUNDINGS[rounding](points).astype(np.int64)
    return Table(np.clip(indices, 0, axis.before - 1)[:, None], np.ones((axis.after, 1), np.float32))


def _linear(points: _POINTS, axis: Axis) -> Table:
    inside = np.clip(points, 0, axis.before - 1)
    first = inside.astype(np.int64)
    share = inside - first.astype(np.float32)
    indices = np.stack([first, np.minimum(first + 1, axis.before - 1)], 1)
    return Table(indices, np.stack([1 - share, share], 1))


# The kernel is widened by the factor that the axis shrinks by, so that it skips no element of the input.
def _antialiased(points: _POINTS, axis: Axis, kernel: Callable[[_POINTS], _POINTS], reach: int) -> Table:
    centre, wide = points + np.float32(0.5), np.float32(reach) / axis.scale
    first = np.floor(centre - wide + np.float32(0.5)).astype(np.int64)
    last = np.floor(centre + wide + np.float32(0.5)).astype(np.int64)
    indices = first[:, None] + np.arange(int((last - first).max()))
    away = (indices.astype(np.float32) - centre[:, None] + np.float32(0.5)) * axis.scale
    weights = np.where(indices < last[:, None], kernel(away), np.float32(0))
    return Table(indices, weights / weights.sum(1, keepdims=True))


def _cubic(away: _POINTS, sharpness: np.float32) -> _POINTS:
    """Keys' kernel: `sharpness` is its slope at 1."""
    x, a = np.abs(away), sharpness
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    weights: _POINTS = np.where(x <= 1, near, np.where(x < 2, far, np.float32(0))).astype(np.float32)  # noqa: PLR2004
    return weights


def _half_pixel(x: _POINTS, axis: Axis) -> _POINTS:
    return (x + np.float32(0.5)) / axis.scale - np.float32(0.5)


# The centre stays in place although the length of the result was rounded.
def _symmetric(x: _POINTS, axis: Axis) -> _POINTS:
    off = np.float32(axis.before / 2) * (1 - np.float32(axis.after) / (axis.scale * np.float32(axis.before)))
    # In ONNX Runtime's order and precision: positions half way between two elements are rounded to one of them.
    exact = np.float64(off) + (x.astype(np.float64) + 0.5) / np.float64(axis.scale) - 0.5
    return exact.astype(np.float32)


def _asymmetric(x: _POINTS, axis: Axis) -> _POINTS:
    return x / axis.scale


def _cropped(x: _POINTS, axis: Axis) -> _POINTS:
    start, end, last = np.float32(axis.start), np.float32(axis.end), np.float32(axis.before - 1)
    if axis.after > 1:
        return start * last + x * (end - start) * last / np.float32(axis.after - 1)
    return x * 0 + np.float32(0.5) * (start + end) * last


_POSITIONS: Mapping[str, Callable[[_POINTS, Axis], _POINTS]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda x, axis: _half_pixel(x, axis) if axis.after > 1 else x * 0,
    "tf_half_pixel_for_nn": lambda x, axis: (x + np.float32(0.5)) / axis.scale,
    "align_corners": lambda x, axis: x * np.float32(axis.before - 1) / np.float32(max(axis.after - 1, 1)),
    "asymmetric": _asymmetric,
    _CROP: _cropped,
}

_ROUNDINGS: Mapping[str, Callable[[_POINTS], _POINTS]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _apply_tables(node: Node, tables: Mapping[Axis, Table]) -> Any:
    dtype, value = node.dtype(0), node.input(0)
    exact = all(table.weights.shape[1] == 1 for table in tables.values())
    if not exact and dtype not in {"float32", "float64"}:
        value = node.emit(relax.op.astype(value, "float32"))
    for axis, table in tables.items():
        value = _apply_table(node, value, axis.axis, table)
    if exact or dtype in {"float32", "float64"}:
        return value
    if "int" in dtype and node.attributes.get("antialias", 0):
        value = relax.op.round(value)
    if "int" in dtype:
        kind = np.iinfo(dtype)
        value = relax.op.clip(value, int(kind.min), int(kind.max))
    return relax.op.astype(value, dtype)


def _apply_table(node: Node, value: Any, axis: int, table: Table) -> Any:
    is_copy = table.weights.shape[1] == 1

    def compute(data: Any, indices: Any, *weights: Any) -> Any:
        shape = [*data.shape]
        shape[axis] = indices.shape[0]

        def read(index: tuple[Any, ...], k: Any) -> Any:
            return data(*index[:axis], indices[index[axis], k], *index[axis + 1 :])

        def element(*index: Any) -> Any:
            if is_copy:
                return read(index, 0)
            k = te.reduce_axis((0, indices.shape[1]), "k")
            return te.sum(read(index, k) * weights[0][index[axis], k], k)

        return te.compute(shape, element, name="resized")

    tables = [relax.const(table.indices.astype(np.int32))]
    if not is_copy:
        tables.append(relax.const(table.weights.astype(str(value.ty.dtype))))
    return node.compute(compute, value, *tables, name="resize")


def _extrapolate(node: Node, value: Any, points: Mapping[Axis, _POINTS], fill: float) -> Any:
    """Put the fill value where a coordinate lies beyond the edges."""
    rank = len(node.shape_of(value))
    beyond: NDArray[np.bool_] = np.zeros([1] * rank, bool)
    for axis, positions in points.items():
        along = [1] * rank
        along[axis.axis] = -1
        beyond = beyond | ((positions < 0) | (positions > axis.before - 1)).reshape(along)
    if not beyond.any():
        return value
    return relax.op.where(relax.const(beyond), relax.const(fill, node.dtype(0)), value)
