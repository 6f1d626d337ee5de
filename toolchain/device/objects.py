"""What a device finds in its outputs for pictures and sounds, compared with the same code on this machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.bundle.manifest import Manifest
from toolchain.errors import OutputError, VerificationError
from toolchain.native.steps import OBJECT
from toolchain.pictures import Plan

SCORE_TOLERANCE = 1e-5  # exponentials may differ in their last bits
HINT = "the device keeps its previous release; deploy again, and report this if it happens again"
_NUMBERS = len(OBJECT.names or ())
_SPARE = 1 << 16  # bytes of a header
MOST_MASKS = 4  # of the objects of a picture that is verified; kMostMasks of runtime/runner/raw_samples.cc
CROPS = ("crops", "crop_counts")
CROP_POINTS = "crop_points"
_POINT_BYTES = 12


def most_bytes(manifest: Manifest, count: int, windows: int, *, keep_input: bool, pixels: int = 0) -> int:
    """Return the largest size of the file of objects of `count` pictures or sounds; `pixels` are those of masks."""
    most = manifest.pipeline.plan.most * windows if manifest.pipeline else 0
    each = OBJECT.itemsize + (manifest.pictures.plan.points * _POINT_BYTES if manifest.pictures else 0)
    kept = manifest.step_inputs[0].bytes + MOST_MASKS * pixels if keep_input else 0
    return _SPARE + count * (most * each + 8) + kept


def read_objects(
    contents: Mapping[str, NDArray[Any]],
    manifest: Manifest,
    count: int,
    windows: int = 1,
    names: tuple[str, str] = ("objects", "counts"),
) -> tuple[NDArray[Any], ...]:
    """Read the objects of each picture or sound, arrays of `OBJECT`.

    A device may send anything, so each value is checked. With `CROPS` as the names, it reads those of each box.

    Raises:
        VerificationError: They are not objects of this release.
    """
    plan = manifest.pipeline.plan if manifest.pipeline else None
    table, counts = (contents.get(name) for name in names)
    if plan is None or table is None or counts is None or counts.shape != (count,) or counts.dtype != np.int64:
        raise VerificationError("the device sent no objects", hint="deploy the release again")
    ends = np.cumsum([0, *counts])
    numbers = table[:, 0] if table.ndim == 2 and table.shape[1:] == (_NUMBERS,) else None  # noqa: PLR2004 - rows
    valid = (
        numbers is not None
        and table.dtype == np.float32
        and ((counts >= 0) & (counts <= plan.most * windows)).all()
        and len(table) == ends[-1]
        and np.isfinite(table).all()
        and ((numbers >= 0) & (numbers < plan.classes) & (numbers == np.floor(numbers))).all()
    )
    if not valid:
        raise VerificationError("the device sent objects that the release cannot have", hint="deploy the release again")
    objects = np.empty(len(table), OBJECT)
    for column, name in enumerate(OBJECT.names or ()):
        objects[name] = table[:, column]
    return tuple(objects[start:end] for start, end in itertools.pairwise(ends))


def read_points(
    contents: Mapping[str, NDArray[Any]], plan: Plan, objects: Sequence[NDArray[Any]], name: str = "points"
) -> tuple[NDArray[np.float32], ...]:
    """Read the key points of the objects of each picture, (objects, points, 3): x, y and their score.

    With `CROP_POINTS` as the name, it reads those of each box.

    Raises:
        VerificationError: They are not those of so many objects.
    """
    points, ends = contents.get(name, np.empty((0, 3), np.float32)), np.cumsum([0, *map(len, objects)])
    if points.shape != (ends[-1] * plan.points, 3) or points.dtype != np.float32 or not np.isfinite(points).all():
        raise VerificationError("the device sent key points of other objects", hint="deploy the release again")
    return tuple(np.split(points.reshape(ends[-1], plan.points, 3), ends[1:-1]))


def compare(found: NDArray[Any], expected: NDArray[Any], name: str, tolerance: float) -> None:
    """Compare the objects of a device with this machine's, for the same outputs.

    Raises:
        OutputError: They differ: their classes, their scores, or their places by more than a tolerance.
    """
    fits = len(found) == len(expected) and (found["label"] == expected["label"]).all()
    fits = fits and np.allclose(found["score"], expected["score"], rtol=SCORE_TOLERANCE, atol=SCORE_TOLERANCE)
    for side in ("left", "top", "right", "bottom"):
        fits = fits and np.allclose(found[side], expected[side], rtol=0.0, atol=tolerance)
    if not fits:
        raise OutputError(
            f"the device finds other objects in its outputs than this machine, for {name}",
            details=f"{len(found)} on the device, {len(expected)} here",
            hint=HINT,
        )
