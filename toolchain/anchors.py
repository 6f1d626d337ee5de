"""Files of anchors: the boxes from which the boxes of a network are differences."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolchain import files
from toolchain.errors import InputError, did_you_mean, reason

CONVENTIONS = ("ssd", "retinanet", "tensorflow", "mediapipe")
"""Names of how anchors are made of a few numbers, instead of a file."""
MOST = 1 << 14  # the manifest of a bundle has them, in 32 digits each
_LARGEST = 4 << 20  # bytes of a file
_SIDES = 4
_HINT = "write four numbers on each line, or save an array [anchors, 4] of floats by numpy.save"


def read(path: Path) -> str:
    """Return the four numbers of each anchor, as the hexadecimal digits of their bytes.

    Raises:
        InputError: It is not a file of anchors.
    """
    try:
        contents = files.read_limited(path, _LARGEST)
        rows = _of_array(contents) if contents.startswith(b"\x93NUMPY") else _of_text(contents)
    except (OSError, ValueError) as fault:
        close = did_you_mean(path.name, CONVENTIONS)
        raise InputError(f"cannot read the anchors {path}", details=reason(fault), hint=close or _HINT) from fault
    if not 1 <= len(rows) <= MOST:
        raise InputError(f"{path} has {len(rows)} anchors, and 1 to {MOST} are possible", hint=_HINT)
    with np.errstate(over="ignore"):  # an infinity tells
        values = rows.astype("<f4")
    if not np.isfinite(values).all():
        raise InputError(f"an anchor of {path} is infinite or not a number", hint=_HINT)
    return values.tobytes().hex()


def count(table: str) -> int:
    """Return how many anchors a table has."""
    return len(table) // (_SIDES * 8)


def _of_array(contents: bytes) -> NDArray[np.float64]:
    rows = np.load(io.BytesIO(contents), allow_pickle=False)
    if rows.ndim != 2 or rows.shape[1] != _SIDES or rows.dtype.kind not in "fiu":  # noqa: PLR2004 - a table
        raise ValueError(f"it has an array {list(rows.shape)} of {rows.dtype}")
    return np.asarray(rows, np.float64)


def _of_text(contents: bytes) -> NDArray[np.float64]:
    rows = []
    for number, line in enumerate(contents.decode().splitlines(), start=1):
        words = line.replace(",", " ").split()
        if len(words) != _SIDES:
            raise ValueError(f"line {number} has {len(words)} numbers")
        rows.append([float(word) for word in words])
    return np.array(rows, np.float64).reshape(-1, _SIDES)
