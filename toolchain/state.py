"""The files of a user or a project: tuning records, and the list of a lab's devices.

A project is the nearest folder, from the working folder upwards, that has one of the `MARKERS`; without one these are
the user's own folders, by the XDG Base Directory Specification. Options and variables that name a file or a folder take
precedence over both.
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
    """Return the name of this process's user; empty for a user without a name, as in a container with any uid."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def project() -> Path | None:
    """Return the project's folder, relative if possible; None if there is none."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        return None
    for folder in (here, *here.parents):
        markers = (marker for pattern in MARKERS for marker in folder.glob(pattern))
        if any(folder == here or is_trusted(marker) for marker in markers):
            return Path() if folder == here else folder
    return None


def is_trusted(marker: Path) -> bool:
    """Whether a marker belongs to this user: another user's makes no project above the working folder.

    Anybody may put a list of devices into a folder such as /tmp, and so direct commands to another device.
    """
    try:
        return marker.stat().st_uid in {os.getuid(), _ADMINISTRATOR}
    except OSError:
        return False


def data_folder() -> Path:
    """Return the user's folder for valuable results."""
    return _user_folder("XDG_DATA_HOME", ".local/share")


def config_folder() -> Path:
    """Return the user's folder for configuration."""
    return _user_folder("XDG_CONFIG_HOME", ".config")


def _user_folder(variable: str, usual: str) -> Path:
    folder = Path(os.environ.get(variable, ""))
    return (folder if folder.is_absolute() else Path.home() / usual) / _NAME  # the specification ignores other paths


def records_paths(board: str) -> tuple[Path, ...]:
    """Return where a board's tuning records may be, the preferred file first."""
    variable = os.environ.get("TOOLCHAIN_RECORDS")
    if variable:
        return (Path(variable) / f"{board}.jsonl",)
    root = project()
    folders = [data_folder()] if root is None else [root, data_folder()]
    return tuple(folder / "records" / f"{board}.jsonl" for folder in folders)


def records_path(board: str) -> Path:
    """Return the file of a board's tuning records; an existing one is preferred."""
    paths = records_paths(board)
    return next((path for path in paths if path.exists()), paths[0])


def devices_files() -> tuple[Path, ...]:
    """Return the existing lists of devices, the user's before the project's, whose entries win."""
    paths = [user_devices(), project_devices()]
    return tuple(path for path in paths if path is not None and path.is_file())


def user_devices() -> Path:
    """Return the path of the user's own list of devices, which may not exist."""
    return config_folder() / DEVICES


def project_devices() -> Path | None:
    """Return the path of the project's list of devices, which any user may have written."""
    root = project()
    return None if root is None else root / DEVICES
