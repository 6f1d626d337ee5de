"""Locks between processes of this machine: private files, waits with an end, and the name of who holds one."""

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


def opened(path: Path, mode: int = PRIVATE, *, follow: bool = False) -> int:
    """Open the file of a lock, which is made if it is missing, and take it from everybody whom `mode` leaves out.

    Whoever can open a file can lock it for ever: a lock that others may read is one that they may keep.

    Args:
        path: The file.
        mode: Who may use the lock.
        follow: Whether the path may be a link: not in a folder that others can write to.

    Raises:
        OSError: It cannot be opened.
    """
    how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    handle = os.open(path, how, mode)
    status = os.fstat(handle)
    if status.st_uid == os.getuid() and status.st_mode & _ALL != mode:
        os.fchmod(handle, mode)
    return handle


def make_private(folder: Path) -> None:
    """Take a folder from everybody but its owner, if that is this user.

    Raises:
        OSError: It is not there.
    """
    status = folder.stat()
    if status.st_uid == os.getuid() and status.st_mode & _ALL & ~_PRIVATE_FOLDER:
        folder.chmod(status.st_mode & _PRIVATE_FOLDER)


def mode_beside(path: Path) -> int:
    """Return the mode of a lock beside a file: who may write to the file may lock it, and nobody else."""
    try:
        writers = path.stat().st_mode & _WRITE
    except FileNotFoundError:
        return PRIVATE
    return PRIVATE | writers | writers << 1


def acquire(handle: int, what: str, seconds: float, tell: Callable[[str], None] | None = None) -> None:
    """Lock an open file or folder, and wait for whoever has it.

    Args:
        handle: The open file.
        what: What is locked, for messages.
        seconds: How long to wait at most.
        tell: Called once with a line about the wait.

    Raises:
        BusyError: Another process still has it after that time.
    """
    if not attempt(handle):
        if tell and seconds:
            tell(f"waiting for up to {seconds:.0f} s: {what} is in use by {holder(handle)}")
        if not _granted(handle, seconds):
            raise _busy(handle, what, seconds)


def _granted(handle: int, seconds: float) -> bool:
    """Wait in the kernel's queue, so that a process that takes the lock again and again keeps nobody out.

    Nothing ends that wait early, so another thread does it, with a number of its own for the open file: if the lock
    comes too late, it is free again as soon as the caller closes its own.
    """
    granted, own = threading.Event(), os.dup(handle)

    def wait() -> None:
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
            granted.set()
        finally:
            os.close(own)

    threading.Thread(target=wait, daemon=True, name="lock").start()
    return granted.wait(seconds)


def attempt(handle: int) -> bool:
    """Lock an open file or folder unless another process has it; tell whether that worked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def held(path: Path, what: str, seconds: float, tell: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a private file for the time of a block; the kernel frees it when this process ends.

    Args:
        path: The file, in a folder that is there.
        what: As in `acquire`.
        seconds: As in `acquire`.
        tell: As in `acquire`.

    Raises:
        BusyError: Another process still has it after that time.
        OSError: It cannot be opened.
    """
    handle = opened(path)
    try:
        acquire(handle, what, seconds, tell)
        yield
    finally:
        os.close(handle)


def _busy(handle: int, what: str, seconds: float) -> BusyError:
    """Describe a lock that another process has."""
    owner = holder(handle)
    return BusyError(
        f"{what} is in use by {owner}",
        details=f"this command waited {seconds:.0f} s for it",
        hint="run the command again when that process has ended",
        owner=owner,
    )


def holder(handle: int) -> str:
    """Name the process that has the lock of an open file now, whoever used the file before."""
    inode = str(os.fstat(handle).st_ino)
    with contextlib.suppress(OSError):
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END; waiting ones have an arrow
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return _named(int(words[4]))
    return "another process"


def _named(pid: int) -> str:
    """Return what is known of a process: its number, its program and its user."""
    folder = Path(f"/proc/{pid}")
    try:
        program = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
        user = folder.stat().st_uid
    except OSError:  # it has ended, and a child of it keeps the lock
        return f"a child of process {pid}, which has ended"
    shown = "".join(letter if letter.isprintable() else "?" for letter in program)
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = f"user {user}"
    return f"process {pid} ({shown}) of {name}"
