"""Where what a user made is found again: the tuning records, and the list of a lab's devices.

It belongs to a project, or to the user. A project is the nearest folder, from the working folder upwards, that has one
of the `MARKERS`; without one it is the user's own folders, as the XDG Base Directory Specification names them. Options
and variables that name a file or a folder go before both.
"""

from __future__ import annotations

import getpass
import os
from pathlib import Path

DEVICES = "devices.toml"
# what makes a folder a project: an empty folder or file of the first name, a list of devices, or tuning records
MARKERS = (".edge-toolchain", DEVICES, "records/*.jsonl")

_NAME = "edge-toolchain"
_ADMINISTRATOR = 0


def user_name() -> str:
    """Return the name of this process's user; empty of one without a name, as in a container with a uid of its own."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def project() -> Path | None:
    """Return the project's folder, as short as the working folder allows; None where there is none."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # somebody removed it
        return None
    for folder in (here, *here.parents):
        markers = (marker for pattern in MARKERS for marker in folder.glob(pattern))
        if any(folder == here or is_trusted(marker) for marker in markers):
            return Path() if folder == here else folder
    return None


def is_trusted(marker: Path) -> bool:
    """Whether a marker is the user's own: one of somebody else makes no project above the working folder.

    Anybody may put a list of devices into a folder such as /tmp, and so lead commands to another device.
    """
    try:
        return marker.stat().st_uid in {os.getuid(), _ADMINISTRATOR}
    except OSError:
        return False


def data_folder() -> Path:
    """Return the user's folder for what was made with effort."""
    return _user_folder("XDG_DATA_HOME", ".local/share")


def config_folder() -> Path:
    """Return the user's folder for what was written by hand."""
    return _user_folder("XDG_CONFIG_HOME", ".config")


def _user_folder(variable: str, usual: str) -> Path:
    named = Path(os.environ.get(variable, ""))
    return (named if named.is_absolute() else Path.home() / usual) / _NAME  # the specification ignores other paths


def records_places(board: str) -> tuple[Path, ...]:
    """Return where a board's tuning records may be, the first choice first."""
    named = os.environ.get("TOOLCHAIN_RECORDS")
    if named:
        return (Path(named) / f"{board}.jsonl",)
    root = project()
    folders = [data_folder()] if root is None else [root, data_folder()]
    return tuple(folder / "records" / f"{board}.jsonl" for folder in folders)


def records_path(board: str) -> Path:
    """Return where a board's tuning records are, or will be: those that there are go before a better place."""
    places = records_places(board)
    return next((place for place in places if place.exists()), places[0])


def devices_files() -> tuple[Path, ...]:
    """Return the lists of devices that there are, the user's before the project's, whose entries win."""
    places = [user_devices(), project_devices()]
    return tuple(place for place in places if place is not None and place.is_file())


def user_devices() -> Path:
    """Return where the user's own list of devices is, or would be."""
    return config_folder() / DEVICES


def project_devices() -> Path | None:
    """Return where the project's list of devices is, or would be; nobody has named it, so it may be anybody's."""
    root = project()
    return None if root is None else root / DEVICES
