"""Resize and Upsample: along each axis, every element of the result is a weighted sum of few elements of the input.

Where they lie and what they weigh is known before the network runs, so both are tables. What enlarges images by whole
factors stays TVM's operator, which is right there, and which the backends do on the layout that the images have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node

_IMAGE = 4  # axes of what the backends know as an image
_CROP = "tf_crop_and_resize"
_HALF_PIXELS = 11  # the opset from which on Resize has a choice of coordinates
_POINTS = NDArray[np.float32]


@dataclass(frozen=True)
class Axis:
    """How one axis is resized.

    Attributes:
        axis: Which one it is.
        before: Its length.
        after: Its length in the result.
        scale: Length of the result by that of the input, as ONNX computes it.
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
        """Whether there is anything to do."""
        return self.after != self.before or self.scale != 1 or (self.start, self.end) != (0.0, 1.0)


@dataclass(frozen=True)
class Table:
    """What the elements of a resized axis are made of.

    Attributes:
        places: Elements of the input, `[length, neighbours]`.
        weights: What each counts, `[length, neighbours]`.
    """

    places: NDArray[np.int64]
    weights: NDArray[np.float32]

    def within(self, length: int, *, drop: bool) -> Table:
        """Return the table with places beyond the edges moved onto them, or dropped and the others raised."""
        weights = self.weights
        if drop:
            weights = np.where((self.places < 0) | (self.places >= length), np.float32(0), weights)
            weights /= weights.sum(1, keepdims=True)
        return Table(np.clip(self.places, 0, length - 1), weights)


@converter("Resize")
def resize(node: Node) -> Any:
    """Convert Resize.

    TVM computes with the ratio of the lengths where ONNX has the given scales, which is wrong wherever they leave a
    fraction; its cubic weights and axes that are not the last ones are wrong, and it lacks `antialias`,
    `half_pixel_symmetric`, `keep_aspect_ratio_policy` and ranks other than 3 to 5.
    """
    if node.opset < _HALF_PIXELS:
        return _simple(node, node.constant(1))
    how = _coordinates(node)
    axes = [axis for axis in _axes(node, how) if axis.changes]
    if how != _CROP and all(axis.after == axis.before for axis in axes):
        return node.input(0)  # a scale that changes no length: ONNX Runtime moves nothing, and the standard little
    outside = node.attributes.get("extrapolation_value", 0.0) if how == _CROP else None
    if _is_plain(node, how, axes):
        return _plain(node, how, axes)
    points = {axis: _POSITIONS[how](np.arange(axis.after, dtype=np.float32), axis) for axis in axes}
    resized = _resized(node, {axis: _table(node, axis, points[axis]) for axis in axes})
    return resized if outside is None else _extrapolated(node, resized, points, outside)


@converter("Upsample")
def upsample(node: Node) -> Any:
    """Convert Upsample.

    TVM takes four dimensions with constant scales as an attribute alone, and changes the last two.
    """
    scales = node.attributes.get("scales")
    return _simple(node, node.constant(1) if scales is None else np.asarray(scales))


def _simple(node: Node, scales: NDArray[Any] | None) -> Any:
    """Convert what had no choice of coordinates: `x / scale`, and the one below, or above if it shrinks."""
    axes = [axis for axis in _scaled(node, range(len(node.shape(0))), scales) if axis.changes]
    tables = {}
    for axis in axes:
        points = _asymmetric(np.arange(axis.after, dtype=np.float32), axis)
        if node.attributes.get("mode", "nearest") == "nearest":
            tables[axis] = _nearest(points, axis, "ceil" if axis.scale < 1 else "floor")
        else:
            tables[axis] = _linear(points, axis)
    return _resized(node, tables)


def _coordinates(node: Node) -> str:
    how = str(node.attributes.get("coordinate_transformation_mode", "half_pixel"))
    if how not in _POSITIONS:
        raise node.refusal(f"its coordinate_transformation_mode is {how}")
    return how


def _axes(node: Node, how: str) -> list[Axis]:
    """Return the axes that are named, with their lengths."""
    rank = len(node.shape(0))
    named = [axis % rank for axis in node.attributes.get("axes", range(rank))]
    scales, sizes = _given(node, 2), _given(node, 3)
    axes = _scaled(node, named, scales) if sizes is None else _sized(node, named, sizes)
    roi = _given(node, 1) if how == _CROP else None
    if roi is None:
        return axes
    starts, ends = np.split(roi.astype(np.float32), 2)
    return [
        Axis(axis.axis, axis.before, axis.after, axis.scale, float(start), float(end))
        for axis, start, end in zip(axes, starts, ends, strict=True)
    ]


def _is_plain(node: Node, how: str, axes: Sequence[Axis]) -> bool:
    """Whether an image is enlarged as TVM's own operator does it, which the backends know."""
    mode = node.attributes.get("mode", "nearest")
    places = {axis.axis for axis in axes}
    if how == "align_corners" and 1 in node.shape(0)[-2:]:  # TVM divides by the length less one
        return False
    if node.dtype(0) != "float32" or len(node.shape(0)) != _IMAGE or not places or places - {_IMAGE - 2, _IMAGE - 1}:
        return False
    if how not in {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"} or mode == "cubic":
        return False
    if mode == "linear" and how != "asymmetric":
        return all(axis.after >= axis.before > 1 and axis.scale * axis.before == axis.after for axis in axes)
    whole = all(axis.after % axis.before == 0 and axis.scale == axis.after // axis.before for axis in axes)
    return how != "align_corners" and whole


def _plain(node: Node, how: str, axes: Sequence[Axis]) -> Any:
    made = {axis.axis: axis.after for axis in axes}
    sizes = [made.get(axis, node.shape(0)[axis]) for axis in (_IMAGE - 2, _IMAGE - 1)]
    nearest = node.attributes.get("mode", "nearest") == "nearest"
    return relax.op.image.resize2d(
        node.input(0),
        relax.ShapeExpr(sizes),
        layout="NCHW",
        method="nearest_neighbor" if nearest else "linear",
        coordinate_transformation_mode=how,
        rounding_method=node.attributes.get("nearest_mode", "round_prefer_floor") if nearest else "round",
    )


def _given(node: Node, index: int) -> NDArray[Any] | None:
    value = node.constant(index)
    return None if value is None or value.size == 0 else value


def _scaled(node: Node, axes: Any, scales: NDArray[Any] | None) -> list[Axis]:
    if scales is None or len(scales) != len(axes):
        raise node.refusal("it has neither a scale nor a size for each axis")
    shape = node.shape(0)
    return [
        Axis(axis, shape[axis], int(np.float32(scale) * np.float32(shape[axis])), np.float32(scale))
        for axis, scale in zip(axes, scales, strict=True)
    ]


def _sized(node: Node, axes: Any, sizes: NDArray[Any]) -> list[Axis]:
    before = [node.shape(0)[axis] for axis in axes]
    scales = sizes.astype(np.float32) / np.asarray(before, np.float32)
    choose = {"not_larger": min, "not_smaller": max}.get(node.attributes.get("keep_aspect_ratio_policy", "stretch"))
    if choose is not None:
        scales = np.full_like(scales, choose(scales))
        sizes = np.floor(scales * np.asarray(before, np.float32) + np.float32(0.5))
    return [Axis(*one) for one in zip(axes, before, map(int, sizes), scales, strict=True)]


def _table(node: Node, axis: Axis, points: _POINTS) -> Table:
    mode, sharpness = node.attributes.get("mode", "nearest"), node.attributes.get("cubic_coeff_a", -0.75)
    drop = bool(node.attributes.get("exclude_outside", 0))
    if mode == "nearest":
        return _nearest(points, axis, node.attributes.get("nearest_mode", "round_prefer_floor"))
    kernel = partial(_cubic, sharpness=np.float32(sharpness)) if mode == "cubic" else _triangle
    reach = 2 if mode == "cubic" else 1
    if node.attributes.get("antialias", 0) and axis.scale < 1:
        return _smoothed(points, axis, kernel, reach).within(axis.before, drop=drop)
    if mode == "linear":
        return _linear(points, axis)
    first = np.floor(points)
    places = first[:, None].astype(np.int64) + np.arange(1 - reach, 1 + reach)
    return Table(places, kernel(points[:, None] - places.astype(np.float32))).within(axis.before, drop=drop)


def _nearest(points: _POINTS, axis: Axis, rounding: str) -> Table:
    places = _ROUNDINGS[rounding](points).astype(np.int64)
    return Table(np.clip(places, 0, axis.before - 1)[:, None], np.ones((axis.after, 1), np.float32))


def _linear(points: _POINTS, axis: Axis) -> Table:
    inside = np.clip(points, 0, axis.before - 1)
    first = inside.astype(np.int64)
    share = inside - first.astype(np.float32)
    places = np.stack([first, np.minimum(first + 1, axis.before - 1)], 1)
    return Table(places, np.stack([1 - share, share], 1))


def _smoothed(points: _POINTS, axis: Axis, kernel: Callable[[_POINTS], _POINTS], reach: int) -> Table:
    """Widen a kernel by what the axis shrinks, so that no element of the input is passed over."""
    centre, wide = points + np.float32(0.5), np.float32(reach) / axis.scale
    first = np.floor(centre - wide + np.float32(0.5)).astype(np.int64)
    last = np.floor(centre + wide + np.float32(0.5)).astype(np.int64)
    places = first[:, None] + np.arange(int((last - first).max()))
    away = (places.astype(np.float32) - centre[:, None] + np.float32(0.5)) * axis.scale
    weights = np.where(places < last[:, None], kernel(away), np.float32(0))
    return Table(places, weights / weights.sum(1, keepdims=True))


def _triangle(away: _POINTS) -> _POINTS:
    weights: _POINTS = np.maximum(1 - np.abs(away), np.float32(0))
    return weights


def _cubic(away: _POINTS, sharpness: np.float32) -> _POINTS:
    """Keys' kernel: `sharpness` is its slope at 1."""
    x, a = np.abs(away), sharpness
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    weights: _POINTS = np.where(x <= 1, near, np.where(x < 2, far, np.float32(0))).astype(np.float32)  # noqa: PLR2004
    return weights


def _half_pixel(x: _POINTS, axis: Axis) -> _POINTS:
    return (x + np.float32(0.5)) / axis.scale - np.float32(0.5)


def _symmetric(x: _POINTS, axis: Axis) -> _POINTS:
    """Keep the centre where it is, though the length of the result was rounded."""
    off = np.float32(axis.before / 2) * (1 - np.float32(axis.after) / (axis.scale * np.float32(axis.before)))
    # In ONNX Runtime's order and precision: positions half way between two elements are rounded to one of them.
    exact = np.float64(off) + (x.astype(np.float64) + 0.5) / np.float64(axis.scale) - 0.5
    return exact.astype(np.float32)


def _asymmetric(x: _POINTS, axis: Axis) -> _POINTS:
    return x / axis.scale


def _corners(x: _POINTS, axis: Axis) -> _POINTS:
    return x * np.float32(axis.before - 1) / np.float32(axis.after - 1) if axis.after > 1 else x * 0


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
    "align_corners": _corners,
    "asymmetric": _asymmetric,
    _CROP: _cropped,
}

_ROUNDINGS: Mapping[str, Callable[[_POINTS], _POINTS]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _resized(node: Node, tables: Mapping[Axis, Table]) -> Any:
    """Return the input with each axis made by its table."""
    dtype, value = node.dtype(0), node.input(0)
    exact = all(table.weights.shape[1] == 1 for table in tables.values())
    if not exact and dtype not in {"float32", "float64"}:
        value = node.emit(relax.op.astype(value, "float32"))
    for axis, table in tables.items():
        value = _summed(node, value, axis.axis, table)
    if exact or dtype in {"float32", "float64"}:
        return value
    if "int" in dtype and node.attributes.get("antialias", 0):
        value = relax.op.round(value)
    if "int" in dtype:
        kind = np.iinfo(dtype)
        value = relax.op.clip(value, int(kind.min), int(kind.max))
    return relax.op.astype(value, dtype)


def _summed(node: Node, value: Any, axis: int, table: Table) -> Any:
    """Return a tensor with one axis made by its table."""
    alone = table.weights.shape[1] == 1

    def compute(data: Any, places: Any, *weights: Any) -> Any:
        shape = [*data.shape]
        shape[axis] = places.shape[0]

        def read(at: tuple[Any, ...], k: Any) -> Any:
            return data(*at[:axis], places[at[axis], k], *at[axis + 1 :])

        def element(*at: Any) -> Any:
            if alone:
                return read(at, 0)
            k = te.reduce_axis((0, places.shape[1]), "k")
            return te.sum(read(at, k) * weights[0][at[axis], k], k)

        return te.compute(shape, element, name="resized")

    tables = [relax.const(table.places.astype(np.int32))]
    if not alone:
        tables.append(relax.const(table.weights.astype(str(value.ty.dtype))))
    return node.compute(compute, value, *tables, name="resize")


def _extrapolated(node: Node, value: Any, points: Mapping[Axis, _POINTS], outside: float) -> Any:
    """Put a value where a coordinate lies beyond the edges."""
    rank = len(node.shape_of(value))
    beyond: NDArray[np.bool_] = np.zeros([1] * rank, bool)
    for axis, at in points.items():
        along = [1] * rank
        along[axis.axis] = -1
        beyond = beyond | ((at < 0) | (at > axis.before - 1)).reshape(along)
    if not beyond.any():
        return value
    return relax.op.where(relax.const(beyond), relax.const(outside, node.dtype(0)), value)
