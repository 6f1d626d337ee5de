"""The steps of a release on its device: what they make of a sound, compared with the same code on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolchain.bundle.manifest import Manifest
from toolchain.device.objects import HINT, compare, read_objects
from toolchain.device.runner import Run
from toolchain.errors import OutputError, VerificationError
from toolchain.native.sounds import Computer, Recording

# Of a value, or of 1 if it is smaller: logarithms and cosines of two processors differ in the last bits.
FEATURE_TOLERANCE = 1e-5
SECOND_TOLERANCE = 1e-5


@dataclass(frozen=True)
class SoundsChecked:
    """A sound that a device computed as this machine does."""

    bytes: int
    objects: int  # how many it has
    text: str  # empty if the release reads none

    def __str__(self) -> str:
        result = f"the text {self.text!r}" if self.text else f"{self.objects} object(s)"
        return f"a sound of {self.bytes} bytes gives the expected input, and {result}"


def windows_of(contents: NDArray[np.uint8], manifest: Manifest) -> int:
    """Return how many windows the WAV file of a reference has.

    Raises:
        VerificationError: The release has no steps for it.
    """
    if manifest.sounds is None:
        raise VerificationError(f"{manifest.name} has no steps for sounds", hint="build it again")
    return Computer(manifest.sounds.plan).windows(Recording(contents))


def check(run: Run, contents: NDArray[np.uint8], manifest: Manifest) -> SoundsChecked:
    """Compare the last window of the run of a WAV file with this machine's results, and for the device's own outputs.

    It has one window; several for a model with a state, whose last output shows whether the device kept the state.

    Raises:
        OutputError: The input or the objects differ.
        VerificationError: The device sent something else.
    """
    if manifest.sounds is None:
        raise VerificationError(f"{manifest.name} has no steps for sounds", hint="build it again")
    sent, plan, computer = run.objects or {}, manifest.sounds.plan, Computer(manifest.sounds.plan)
    sound = Recording(contents)
    windows = computer.windows(sound)
    expected, made = computer.prepare(sound, windows - 1, manifest.step_inputs[0].shape), sent.get("input")
    if made is None or made.shape != expected.shape or made.dtype != expected.dtype:
        raise VerificationError("the device sent no input for the sound", hint="deploy the release again")
    wanted = expected.astype(np.float64)
    off = np.abs(made.astype(np.float64) - wanted) / np.maximum(1.0, np.abs(wanted))
    # A value between two whole numbers, or two halves, may be rounded to either.
    limit = {"float32": FEATURE_TOLERANCE, "float16": 1e-3}.get(plan.dtype, 1.0)
    if not (off <= limit).all():
        raise OutputError(
            f"the device makes another input of a sound than this machine, for {manifest.name}",
            details=f"{np.count_nonzero(~(off <= limit))} of {off.size} values differ, by up to {off.max():.3g}",
            hint=HINT,
        )
    (objects,) = read_objects(sent, manifest, 1, windows)
    if plan.output >= 0:
        output = run.outputs[manifest.outputs[plan.output].name]
        found = computer.find(output, windows - 1)
        last = objects[max(0, len(objects) - len(found)) :] if windows > 1 else objects
        compare(last, found, manifest.name, SECOND_TOLERANCE)
    text = manifest.sounds.text([int(label) for label in objects["label"]])
    return SoundsChecked(contents.size, len(objects), text)
