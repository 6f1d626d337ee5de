"""Locks between processes of this machine: private files, waits with a limit, and the name of the owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from toolchain.errors import BusyError

PRIVATE = 0o600
_PRIVATE_FOLDER = 0o700
_ALL, _WRITE = 0o777, 0o222
_LOCKS = Path("/proc/locks")


def open_lock(path: Path, mode: int = PRIVATE, *, follow: bool = False) -> int:
    """Open the file of a lock, which is made if it is missing, with exactly `mode`.

    Whoever can open a file can lock it for ever, so others must not even read it. `follow` allows the path to be a
    link, which is not safe in a folder that others can write to.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    handle = os.open(path, flags, mode)
    status = os.fstat(handle)
    if status.st_uid == os.getuid() and status.st_mode & _ALL != mode:
        os.fchmod(handle, mode)
    return handle


def make_private(folder: Path) -> None:
    """Remove other users' permissions from a folder of this user."""
    status = folder.stat()
    if status.st_uid == os.getuid() and status.st_mode & _ALL & ~_PRIVATE_FOLDER:
        folder.chmod(status.st_mode & _PRIVATE_FOLDER)


def mode_beside(path: Path) -> int:
    """Return the mode of a lock beside a file: only those who may write to the file may lock it."""
    try:
        writers = path.stat().st_mode & _WRITE
    except FileNotFoundError:
        return PRIVATE
    return PRIVATE | writers | writers << 1


def acquire(handle: int, what: str, seconds: float, progress: Callable[[str], None] | None = None) -> None:
    """Lock an open file or folder, and wait at most `seconds` for its owner; `what` it is stands in messages.

    Raises:
        BusyError: Another process still has it after that time.
    """
    if not attempt(handle):
        if progress and seconds:
            progress(f"waiting for up to {seconds:.0f} s: {what} is in use by {holder(handle)}")
        if not _wait_in_queue(handle, seconds):
            owner = holder(handle)
            raise BusyError(
                f"{what} is in use by {owner}",
                details=f"this command waited {seconds:.0f} s for it",
                hint="run the command again when that process has ended",
                owner=owner,
            )


def _wait_in_queue(handle: int, seconds: float) -> bool:
    """Wait in the kernel's queue, so that a process that takes the lock again and again cannot keep others out."""
    # Nothing ends that wait early, so another thread waits, with a descriptor of its own: if the lock comes too late,
    # it is free again as soon as the caller closes its own.
    granted, duplicate = threading.Event(), os.dup(handle)

    def wait() -> None:
        try:
            fcntl.flock(duplicate, fcntl.LOCK_EX)
            granted.set()
        finally:
            os.close(duplicate)

    threading.Thread(target=wait, daemon=True, name="lock").start()
    return granted.wait(seconds)


def attempt(handle: int) -> bool:
    """Lock an open file or folder unless another process has it; return whether that worked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def hold(path: Path, what: str, seconds: float, progress: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a private file for the time of a block; see `acquire`."""
    handle = open_lock(path)
    try:
        acquire(handle, what, seconds, progress)
        yield
    finally:
        os.close(handle)


def holder(handle: int) -> str:
    """Name the process that has the lock of an open file now."""
    inode = str(os.fstat(handle).st_ino)
    with contextlib.suppress(OSError):
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END; waiting ones have an arrow
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                return _describe(int(fields[4]))
    return "another process"


def _describe(pid: int) -> str:
    """Return the number, program and user of a process."""
    folder = Path(f"/proc/{pid}")
    try:
        program = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
        user = folder.stat().st_uid
    except OSError:  # it has ended, and a child of it keeps the lock
        return f"a child of process {pid}, which has ended"
    command = "".join(letter if letter.isprintable() else "?" for letter in program)
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = f"user {user}"
    return f"process {pid} ({command}) of {name}"
