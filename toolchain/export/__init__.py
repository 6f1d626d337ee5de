"""Updates as files, which are applied without a network: by a person with a USB stick, or by an OTA system."""

from __future__ import annotations

from pathlib import Path

from toolchain.export import mender, offline, rauc
from toolchain.export.offline import Update, WrittenUpdate, prepare

FORMATS = ("offline", "mender", "rauc")  # what an update is written as

__all__ = ["FORMATS", "Update", "WrittenUpdate", "check_target", "prepare", "write"]

_MODULES = {"offline": offline, "mender": mender, "rauc": rauc}


def check_target(kind: str, target: Path, *, folder: bool) -> None:
    """Check that an update can be written to a target, where at most an older one may be.

    Args:
        kind: One of `FORMATS`.
        target: A file, or a folder.
        folder: Whether it is a folder.

    Raises:
        InputError: It cannot be written, or is something else.
    """
    _MODULES[kind].check_target(target, folder=folder)


def write(kind: str, update: Update, target: Path, *, folder: bool = False, compatible: str = "") -> WrittenUpdate:
    """Write an update, the same bytes for the same bundle, reference, board file and runner.

    Args:
        kind: One of `FORMATS`.
        update: The update.
        target: The file or the folder, which replaces an older update.
        folder: Whether it is a folder.
        compatible: The OTA system's name of the device type; the board's name by default.

    Raises:
        InputError: As `check_target`.
    """
    if kind == "offline":
        return offline.write(update, target, folder=folder)
    return _OTA[kind](update, target, folder=folder, compatible=compatible or update.board.name)


_OTA = {"mender": mender.write, "rauc": rauc.write}
