"""The steps of a release on its device: what they make of raw pictures, compared with the same code on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.bundle.manifest import Manifest
from toolchain.device.runner import Run
from toolchain.errors import OutputError, VerificationError
from toolchain.native.pictures import Computer, Raw
from toolchain.native.steps import OBJECT
from toolchain.pictures import Plan

# Every step before the model rounds alike on all processors. After it, exponentials may differ in their last bits.
SCORE_TOLERANCE = 1e-5
PIXEL_TOLERANCE = 1e-3
_NUMBERS = len(OBJECT.names or ())
_SPARE = 1 << 16  # bytes of a header
_HINT = "the device keeps its previous release; deploy again, and report this if it happens again"


@dataclass(frozen=True)
class PicturesChecked:
    """A picture that a device computed as this machine does."""

    width: int
    height: int
    objects: int  # how many it has

    def __str__(self) -> str:
        return f"a picture of {self.width}x{self.height} gives the expected input, and {self.objects} object(s)"


def most_bytes(manifest: Manifest, count: int, *, keep_input: bool) -> int:
    """Return the largest size of the file of objects of `count` pictures."""
    most = manifest.pictures.plan.most if manifest.pictures else 0
    return _SPARE + count * (most * OBJECT.itemsize + 8) + (manifest.inputs[0].bytes if keep_input else 0)


def read_objects(contents: Mapping[str, NDArray[Any]], plan: Plan, count: int) -> tuple[NDArray[Any], ...]:
    """Read the objects of each picture, arrays of `OBJECT`; a device may send anything, so each value is checked.

    Raises:
        VerificationError: They are not objects of this plan.
    """
    table, counts = contents.get("objects"), contents.get("counts")
    if table is None or counts is None or counts.shape != (count,) or counts.dtype != np.int64:
        raise VerificationError("the device sent no objects for the pictures", hint="deploy the release again")
    ends = np.cumsum(counts)
    numbers = table[:, 0] if table.ndim == 2 and table.shape[1:] == (_NUMBERS,) else None  # noqa: PLR2004 - rows
    valid = (
        numbers is not None
        and table.dtype == np.float32
        and ((counts >= 0) & (counts <= plan.most)).all()
        and len(table) == ends[-1]
        and np.isfinite(table).all()
        and ((numbers >= 0) & (numbers < plan.classes) & (numbers == np.floor(numbers))).all()
    )
    if not valid:
        raise VerificationError("the device sent objects that the release cannot have", hint="deploy the release again")
    objects = np.empty(len(table), OBJECT)
    for column, name in enumerate(OBJECT.names or ()):
        objects[name] = table[:, column]
    return tuple(np.split(objects, ends[:-1]))


def check(run: Run, pixels: NDArray[np.uint8], manifest: Manifest) -> PicturesChecked:
    """Compare the run of one RGB picture with this machine's results for it, and for the device's own outputs.

    Raises:
        OutputError: The input or the objects differ.
        VerificationError: The device sent something else.
    """
    if manifest.pictures is None:
        raise VerificationError(f"{manifest.name} has no steps for pictures", hint="build it again")
    plan, contents = manifest.pictures.plan, run.objects or {}
    computer, raw = Computer(plan), Raw.of_rgb(pixels)
    expected, made = computer.prepare(raw), contents.get("input")
    if made is None or made.shape != expected.shape or made.dtype != expected.dtype:
        raise VerificationError("the device sent no input for the picture", hint="deploy the release again")
    if made.tobytes() != expected.tobytes():
        off = np.abs(made.astype(np.float64) - expected.astype(np.float64))
        raise OutputError(
            f"the device makes another input of a picture than this machine, for {manifest.name}",
            details=f"{np.count_nonzero(off)} of {off.size} values differ, by up to {off.max():.3g}",
            hint=_HINT,
        )
    (objects,) = read_objects(contents, plan, 1)
    if plan.output >= 0:
        output = run.outputs[manifest.outputs[plan.output].name]
        _compare(objects, computer.find(raw.width, raw.height, output), manifest.name)
    return PicturesChecked(raw.width, raw.height, len(objects))


def _compare(found: NDArray[Any], expected: NDArray[Any], name: str) -> None:
    fits = len(found) == len(expected) and (found["label"] == expected["label"]).all()
    fits = fits and np.allclose(found["score"], expected["score"], rtol=SCORE_TOLERANCE, atol=SCORE_TOLERANCE)
    for side in ("left", "top", "right", "bottom"):
        fits = fits and np.allclose(found[side], expected[side], rtol=0.0, atol=PIXEL_TOLERANCE)
    if not fits:
        raise OutputError(
            f"the device finds other objects in its outputs than this machine, for {name}",
            details=f"{len(found)} on the device, {len(expected)} here",
            hint=_HINT,
        )
