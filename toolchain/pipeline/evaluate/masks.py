"""Masks of objects as runs of pixels, which pycocotools compares."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import validation
from toolchain.pipeline.evaluate import extras

_Corner = Annotated[float, Field(ge=-(1 << 16), le=1 << 16)]  # pycocotools takes memory for each pixel of an edge
_Polygon = Annotated[list[_Corner], Field(min_length=6)]  # x and y of three corners, at least


@checked_dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class _Runs:
    """The lengths of runs, column by column, or a text that has them as pycocotools writes it."""

    size: list[int]  # height and width
    counts: list[Annotated[int, Field(ge=0)]] | Annotated[str, Field(min_length=1)]


_FORM = TypeAdapter(list[_Polygon] | _Runs)


def runs(mask: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Return the runs of a mask.

    Args:
        mask: Polygons or runs, as COCO files have them, or an array [height, width].
        size: Height and width of the picture.

    Raises:
        ValueError: It is not a mask of that size.
    """
    tools, (height, width) = extras.load("pycocotools.mask"), size
    if isinstance(mask, np.ndarray):
        if mask.shape != size:
            raise ValueError(f"a mask of the shape {mask.shape} for a picture of {height} x {width} pixels")
        return dict(tools.encode(np.asfortranarray(mask != 0, np.uint8)))
    try:
        form = _FORM.validate_python(mask)
    except ValidationError as fault:
        raise ValueError(f"a mask is neither polygons nor runs:\n{validation.words(fault)}") from fault
    if not isinstance(form, _Runs):
        return dict(tools.merge(tools.frPyObjects(form, height, width)))
    if form.size != [height, width]:
        raise ValueError(f"a mask of {form.size} pixels for a picture of {height} x {width} pixels")
    if isinstance(form.counts, str):
        packed = {"size": form.size, "counts": form.counts.encode()}
        # pycocotools reads beyond the end of runs that are too short, so only what it writes itself is taken.
        if tools.encode(tools.decode(packed))["counts"] != packed["counts"]:
            raise ValueError(f"the runs of a mask are not those of {height * width} pixels")
        return packed
    if sum(form.counts) != height * width:
        raise ValueError(f"the runs of a mask have {sum(form.counts)} pixels, not {height * width}")
    return dict(tools.frPyObjects({"size": form.size, "counts": form.counts}, height, width))
