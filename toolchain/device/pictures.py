"""The steps of a release on its device: what they make of raw pictures, compared with the same code on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolchain.bundle.manifest import Manifest
from toolchain.device.objects import HINT, compare, read_objects
from toolchain.device.runner import Run
from toolchain.errors import DeviceError, OutputError, VerificationError
from toolchain.native.pictures import Computer, Raw, format_of, pixels_of

_NO_LIBRARY = re.compile(r"no lib\S+ here, which decodes ")
PIXEL_TOLERANCE = 1e-3  # every step before the model rounds alike on all processors


@dataclass(frozen=True)
class PicturesChecked:
    """A picture that a device computed as this machine does."""

    width: int
    height: int
    objects: int  # how many it has
    file: str = ""  # the format that the device decoded; empty for pixels

    def __str__(self) -> str:
        what = f"a {self.file} file" if self.file else "a picture"
        return f"{what} of {self.width}x{self.height} gives the expected input, and {self.objects} object(s)"


def lacks_decoder(fault: DeviceError) -> bool:
    """Whether a device has no library for a file; runtime/pictures/ has the texts."""
    return bool(_NO_LIBRARY.search(fault.details))


def check(run: Run, raw: NDArray[np.uint8], manifest: Manifest) -> PicturesChecked:
    """Compare the run of a picture with this machine's results for it, and for the device's own outputs.

    Args:
        run: The device's run.
        raw: RGB pixels, or the bytes of a file.
        manifest: The manifest of the release.

    Raises:
        OutputError: The input or the objects differ.
        VerificationError: The device sent something else.
    """
    if manifest.pictures is None:
        raise VerificationError(f"{manifest.name} has no steps for pictures", hint="build it again")
    plan, contents = manifest.pictures.plan, run.objects or {}
    computer, picture = Computer(plan), Raw.of_rgb(pixels_of(raw))
    expected, made = computer.prepare(picture), contents.get("input")
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
        compare(objects, computer.find(picture.width, picture.height, output), manifest.name, PIXEL_TOLERANCE)
    return PicturesChecked(picture.width, picture.height, len(objects), format_of(raw).upper() if raw.ndim == 1 else "")
