"""The steps of a release on its device: what they make of raw pictures, compared with the same code on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolchain.bundle.manifest import Manifest
from toolchain.device.objects import HINT, compare, read_objects
from toolchain.device.runner import Run
from toolchain.errors import OutputError, VerificationError
from toolchain.native.pictures import Computer, Raw

PIXEL_TOLERANCE = 1e-3  # every step before the model rounds alike on all processors


@dataclass(frozen=True)
class PicturesChecked:
    """A picture that a device computed as this machine does."""

    width: int
    height: int
    objects: int  # how many it has

    def __str__(self) -> str:
        return f"a picture of {self.width}x{self.height} gives the expected input, and {self.objects} object(s)"


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
            hint=HINT,
        )
    (objects,) = read_objects(contents, manifest, 1)
    if plan.output >= 0:
        output = run.outputs[manifest.outputs[plan.output].name]
        compare(objects, computer.find(raw.width, raw.height, output), manifest.name, PIXEL_TOLERANCE)
    return PicturesChecked(raw.width, raw.height, len(objects))
