"""The steps of a model with a state: a stream of raw numbers, or arrays with an axis of steps in front; and sounds."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import InputError, reason
from toolchain.models import inputs
from toolchain.models.series import Series
from toolchain.progress import size_text
from toolchain.sounds import Plan
from toolchain.states import count_steps, stacked
from toolchain.tensors import TensorSpec, check_signature

STANDARD_INPUT = Path("-")
_PIECE = 1 << 20
_WAV = b"RIFF"  # how its files begin
_SAMPLE_BYTES = 2


def read(path: Path, specs: Sequence[TensorSpec], steps: int = 0) -> Series:
    """Read steps.

    Args:
        path: A file, or `STANDARD_INPUT`. In a raw one the inputs of a step follow each other in the order of `specs`,
            as float32 in the byte order of this machine.
        specs: The inputs of a step.
        steps: How many to read; 0 means all.

    Raises:
        InputError: It cannot be read, does not fit the model, or ends within a step or before `steps`.
    """
    if path != STANDARD_INPUT and zipfile.is_zipfile(path):
        arrays = _of_npz(path, specs, steps)
    else:
        arrays = _of_raw(path, specs, steps)
    return _series(arrays)


def read_sound(path: Path, plan: Plan, steps: int = 0) -> NDArray[np.uint8] | NDArray[np.int16]:
    """Read a stream of sound, of which a release's own steps make its windows.

    Args:
        path: A WAV file, or raw samples of 16 bits of one channel at the plan's rate; or `STANDARD_INPUT` with either.
        plan: The steps.
        steps: How many windows to read of raw samples; 0 means all.

    Returns:
        The bytes of a WAV file, or samples.

    Raises:
        InputError: It cannot be read, does not fit the release, or ends before `steps` windows.
    """
    if plan.hop == 0:
        raise InputError("the release takes sounds of one window", hint="build it with --pre window:hop=N")
    size = (plan.samples - plan.context + (steps - 1) * plan.hop) * _SAMPLE_BYTES if steps else 0
    data = _read_bytes(path, size)
    if data.startswith(_WAV):
        if steps:
            raise InputError(f"{title(path)} is a WAV file, which is run as a whole", hint="leave --steps out")
        return np.frombuffer(data, np.uint8)
    if not data or len(data) % _SAMPLE_BYTES:
        raise InputError(
            f"{title(path)} has {len(data)} bytes, which are not samples of 16 bits",
            hint=f"pass a WAV file, or raw samples, as of: arecord -t raw -f S16_LE -c 1 -r {plan.rate}",
        )
    if len(data) < size:
        raise InputError(f"{title(path)} ends after {len(data) // _SAMPLE_BYTES} samples, before --steps {steps}")
    return np.frombuffer(data, "<i2")


def repeat(path: Path, specs: Sequence[TensorSpec], steps: int) -> Series:
    """Return a sequence that has the arrays of an .npz or .npy file in each step; an InputError if they do not fit."""
    arrays = inputs.from_npz(path, specs)

    def take(piece: range) -> dict[str, NDArray[Any]]:
        return {name: np.broadcast_to(value, (len(piece), *value.shape)) for name, value in arrays.items()}

    return Series(steps, take)


def _series(arrays: dict[str, NDArray[Any]]) -> Series:
    return Series(
        count_steps(arrays), lambda piece: {name: value[piece.start : piece.stop] for name, value in arrays.items()}
    )


def _of_npz(path: Path, specs: Sequence[TensorSpec], steps: int) -> dict[str, NDArray[Any]]:
    arrays = inputs.arrays(path, specs)
    available = count_steps(arrays)
    faults = check_signature(arrays, stacked(specs, available)) if available else ["an axis of steps is missing"]
    if faults:
        raise InputError(
            f"the arrays of {path.name} do not fit the steps of the model",
            details="\n".join(faults),
            hint="each array has one more axis in front, of steps; the state is not among them",
        )
    _check_length(path, available, steps)
    return {name: value[: steps or available] for name, value in arrays.items()}


def _of_raw(path: Path, specs: Sequence[TensorSpec], steps: int) -> dict[str, NDArray[Any]]:
    if others := [spec for spec in specs if spec.dtype != "float32"]:
        raise InputError(
            f"a stream has float32 numbers, but the model has the input {others[0]}",
            hint="pass the steps as an .npz file, whose arrays have an axis of steps in front; "
            "or make a constant of the input: build with --fix NAME=VALUE",
        )
    size = sum(spec.bytes for spec in specs)
    data = _read_bytes(path, size * steps)
    if len(data) % size:
        raise InputError(
            f"{title(path)} ends within a step: {len(data)} bytes, but a step has {size}",
            details="a step is " + ", then ".join(map(str, specs)),
            hint="write float32 numbers, without a header",
        )
    _check_length(path, len(data) // size, steps)
    rows = np.frombuffer(data, np.float32).reshape(-1, size // 4)
    ends = np.cumsum([spec.elements for spec in specs])
    return {
        spec.name: rows[:, end - spec.elements : end].reshape(-1, *spec.shape)
        for spec, end in zip(specs, ends, strict=True)
    }


def _check_length(path: Path, available: int, steps: int) -> None:
    if available == 0:
        raise InputError(f"{title(path)} has no steps")
    if available < steps:
        raise InputError(f"{title(path)} has {available} steps, fewer than --steps {steps}")


def title(path: Path) -> str:
    """Return what an error calls it."""
    return "standard input" if path == STANDARD_INPUT else path.name


def _read_bytes(path: Path, most: int) -> bytes:
    """Read a file or a pipe to its end, or to `most` bytes if that is not 0."""
    try:
        if path == STANDARD_INPUT:
            return _read_all(sys.stdin.buffer, most)
        with path.open("rb") as file:
            return _read_all(file, most)
    except OSError as fault:
        raise InputError(f"cannot read the steps from {title(path)}", details=reason(fault)) from fault


def _read_all(file: BinaryIO, most: int) -> bytes:
    limit = inputs.available_bytes() // 2  # a copy of it is sent
    data = bytearray()
    while piece := file.read(min(_PIECE, most - len(data)) if most else _PIECE):
        data += piece
        if len(data) > limit:
            raise InputError(
                f"the steps have more than {size_text(limit)}, which is all that fits into this machine's memory",
                hint="run them in parts",
            )
    return bytes(data)
