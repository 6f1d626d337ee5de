"""Arrays in an .npz file with a mark of this toolchain, so that the next run may replace it, but no other file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from toolchain import files, outputs
from toolchain.tensors import Tensors

_CONTENT = "the outputs of a run"
_MARK = b"toolchain run"


def check_target(path: Path) -> None:
    """Check that arrays can be written to a file, without touching it."""
    outputs.check_file(path, _CONTENT, foreign)


def foreign(path: Path) -> str:
    """Return why a file was not written by `save`; empty if it was."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "" if archive.comment.startswith(_MARK) else "it contains arrays that this toolchain did not write"
    except (zipfile.BadZipFile, OSError):
        return "it is not an .npz file"


def save(path: Path, arrays: Tensors, about: str) -> None:
    """Write arrays by name, complete or not at all, as `numpy.savez` does, which writes no comment and no array `file`.

    `about` says what they are, in a word or two, for the archive's comment. Only a file of `save` is replaced.
    """
    check_target(path)  # minutes have passed
    with files.atomic_path(path) as aside, zipfile.ZipFile(aside, "w") as archive:
        archive.comment = _MARK + f" {about}".encode()
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(value, order="C"), allow_pickle=False)
