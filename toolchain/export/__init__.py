"""Updates as files: what is applied on a device without a network, by a person with a USB stick or by an OTA system."""

from __future__ import annotations

from pathlib import Path

from toolchain.export import mender, offline, rauc
from toolchain.export.offline import Written
from toolchain.export.update import Update, prepared

FORMATS = ("offline", "mender", "rauc")  # what an update is written as

__all__ = ["FORMATS", "Update", "Written", "check_target", "prepared", "write"]

_MODULES = {"offline": offline, "mender": mender, "rauc": rauc}


def check_target(kind: str, target: Path, *, folder: bool) -> None:
    """See that an update can go to a place, where at most an older one is.

    Args:
        kind: One of `FORMATS`.
        target: The file or the folder.
        folder: Which of them.

    Raises:
        InputError: It cannot be written, or is something else.
    """
    _MODULES[kind].check_target(target, folder=folder)


def write(kind: str, update: Update, target: Path, *, folder: bool = False, compatible: str = "") -> Written:
    """Write an update, the same bytes for the same bundle, reference, board file and runner.

    Args:
        kind: One of `FORMATS`.
        update: The update.
        target: The file or the folder, in whose place at most an older update may be.
        folder: Which of them.
        compatible: What the OTA system calls the type of the device; the board's name by default.

    Raises:
        InputError: As `check_target`.
    """
    if kind == "offline":
        return offline.write(update, target, folder=folder)
    return _OTA[kind](update, target, folder=folder, compatible=compatible or update.board.name)


_OTA = {"mender": mender.write, "rauc": rauc.write}
