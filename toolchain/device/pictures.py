"""The steps of a release on its device: what they make of raw pictures, compared with the same code on this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.bundle.manifest import Manifest
from toolchain.device.objects import HINT, MOST_MASKS, SCORE_TOLERANCE, compare, read_objects, read_points
from toolchain.device.runner import Run
from toolchain.errors import DeviceError, OutputError, VerificationError
from toolchain.native.pictures import Computer, Mask, Raw, format_of, pixels_of

_NO_LIBRARY = re.compile(r"no lib\S+ here, which decodes ")
_MOST_PIXELS_OFF = 1e-4  # share of the pixels of masks
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
        outputs = [run.outputs[spec.name] for spec in manifest.outputs]
        compare(objects, computer.find(picture.width, picture.height, outputs), manifest.name, PIXEL_TOLERANCE)
        if plan.points:
            (points,) = read_points(contents, plan, (objects,))
            _compare_points(points, computer.points(), manifest.name)
    if plan.mask_output >= 0:
        prototypes = run.outputs[manifest.outputs[plan.mask_output].name]
        masks = [computer.mask(number, prototypes) for number in range(min(len(objects), MOST_MASKS))]
        _compare_masks(contents.get("masks", np.empty(0, np.uint8)), masks, manifest.name)
    return PicturesChecked(picture.width, picture.height, len(objects), format_of(raw).upper() if raw.ndim == 1 else "")


def _compare_points(found: NDArray[np.float32], expected: NDArray[np.float32], name: str) -> None:
    off = np.abs(found - expected.reshape(found.shape))
    if found.size and (off > (PIXEL_TOLERANCE, PIXEL_TOLERANCE, SCORE_TOLERANCE)).any():
        raise OutputError(
            f"the device finds other key points in its outputs than this machine, for {name}",
            details=f"up to {off[..., :2].max():.3g} pixels away",
            hint=HINT,
        )


def _compare_masks(found: NDArray[Any], masks: Sequence[Mask], name: str) -> None:
    expected = np.concatenate([mask.pixels.reshape(-1) for mask in masks]) if masks else np.empty(0, np.uint8)
    fits = found.shape == expected.shape and found.dtype == np.uint8
    different = np.count_nonzero(found != expected) if fits else expected.size
    # A level that is nearly 0 may round to either side.
    if not fits or different > _MOST_PIXELS_OFF * expected.size:
        raise OutputError(
            f"the device finds other masks in its outputs than this machine, for {name}",
            details=f"{different} of {expected.size} pixels differ",
            hint=HINT,
        )
