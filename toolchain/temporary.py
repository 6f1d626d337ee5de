"""Temporary folders; the next command removes those whose process was killed."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from toolchain import locks

# the prefix of all these folders: one that is not locked is left over from a killed command
PREFIX = "toolchain-work-"
_NEW_S = 60.0  # a folder that was just made may not be locked yet


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a private temporary folder for the time of a block."""
    # The folder is locked for that time. The kernel frees the lock when this process ends, however it ends; the number
    # of a process would soon belong to another one.
    _sweep_once(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            locks.attempt(handle)
            yield Path(name)
        finally:
            os.close(handle)


@functools.cache
def _sweep_once(parent: str) -> None:
    sweep(Path(parent))


def sweep(parent: Path) -> None:
    """Remove this user's temporary folders whose process is gone, as far as possible."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):  # another command removes it at the same time
                    _remove_abandoned(Path(entry.path))


def _remove_abandoned(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or time.time() - status.st_mtime < _NEW_S:
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.fstat(handle), status) and locks.attempt(handle):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)
