"""Resized images, by Relax's own operator."""

from __future__ import annotations

from typing import Any

from toolchain.backends.mali.layout.axes import OP
from toolchain.backends.mali.layout.writer import Replacement, Writer

_KEPT = (
    "method",
    "coordinate_transformation_mode",
    "rounding_method",
    "cubic_alpha",
    "cubic_exclude",
    "extrapolation_value",
)


def resize(writer: Writer, variable: Any, call: Any) -> Replacement | None:  # noqa: ARG001 - as rules are called
    """Resize an image whose channels are last already."""
    data, size = call.args
    twin = writer.twin(data)
    if twin is None or str(call.attrs.layout) != "NCHW":
        return None
    settings = {name: getattr(call.attrs, name) for name in _KEPT}
    roi = [float(value) for value in call.attrs.roi]
    return Replacement(OP.image.resize2d(twin, size, roi, layout="NHWC", **settings))
