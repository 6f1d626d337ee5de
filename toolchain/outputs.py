"""Where results go: looked at before the work, and put in place in one step. Nothing gives way but an earlier result.

What is at a path that a user names may be the work of years. It is replaced only if it is known to be one of ours, and
never removed before what takes its place is whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from toolchain import files
from toolchain.errors import InputError

Foreign = Callable[[Path], str]  # says why what is at a path is no earlier result; empty if it is one

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}


def check_file(path: Path, what: str, foreign: Foreign) -> None:
    """See that a file can be written, or replaced by a newer one; nothing is touched.

    Args:
        path: The file.
        what: What will be in it, such as `a package`.
        foreign: Asked about a file that is there and not empty.

    Raises:
        InputError: It cannot be written, or something else is there.
    """
    with _named(path):
        _check_no_link(path)
        if path.exists():
            _check_regular(path, what)
            if path.stat().st_size and (why := foreign(path)):
                raise _something_else(path, what, why)
        tempfile.TemporaryFile(dir=path.parent).close()


def check_folder(folder: Path, what: str, foreign: Foreign) -> None:
    """See that a folder can be made, or replaced by a newer one; nothing is touched.

    Args:
        folder: The folder; those above it need not exist.
        what: What will be in it, such as `a bundle`.
        foreign: Asked about a folder that is there and not empty.

    Raises:
        InputError: It cannot be written, or something else is there.
    """
    with _named(folder):
        _check_no_link(folder)
        if folder.exists():
            _check_replaceable(folder, what, foreign)
        place = folder.resolve().parent
        existing = next(one for one in (place, *place.parents) if one.exists())
        tempfile.TemporaryFile(dir=existing).close()


def _check_replaceable(folder: Path, what: str, foreign: Foreign) -> None:
    if not folder.is_dir():
        raise _something_else(folder, what, "it is a file")
    if any(folder.iterdir()) and (why := foreign(folder)):
        raise _something_else(folder, what, why)
    if folder.resolve() == Path.cwd() or folder.is_mount():
        raise InputError(
            f"{folder} cannot be replaced: it is the current folder or a mount point",
            hint=f"choose a new folder in it, such as {folder / 'out'}",
        )


@contextlib.contextmanager
def replacing(folder: Path, what: str, foreign: Foreign) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` once the block has succeeded, and is gone otherwise.

    There is no moment without one of the two, and what was there is removed only when it is out of its place.

    Raises:
        InputError: As `check_folder`, before the block and again after it.
    """
    check_folder(folder, what, foreign)
    with _named(folder):
        target = folder.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield staging
        check_folder(folder, what, foreign)  # minutes have passed
        with _named(folder):
            staging.chmod(0o755)
            _put(staging, target)
    finally:
        _remove(staging)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:  # a moment's work, which nobody would do later
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _put(staging: Path, target: Path) -> None:
    """Move a folder to its place; what was there, if anything, is at `staging` afterwards."""
    try:
        staging.rename(target)
    except OSError as fault:
        if fault.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        _exchange(staging, target)


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    if code not in _NO_EXCHANGE:
        raise OSError(code, os.strerror(code))
    _exchange_in_steps(one, other)  # a network's file systems do it in no single step


def _exchange_in_steps(one: Path, other: Path) -> None:
    aside = one.with_name(f"{one.name}.before")
    other.rename(aside)
    try:
        one.rename(other)
    except BaseException:
        aside.rename(other)
        raise
    aside.rename(one)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise files.unwritable(path, fault) from fault


def _check_no_link(path: Path) -> None:
    if path.is_symlink():
        raise InputError(
            f"{path} is a symbolic link, which is not replaced",
            hint=f"pass its target: {path.resolve()}",
        )


def _check_regular(path: Path, what: str) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not path.is_file():
        raise _something_else(path, what, "it is not a regular file")


def _something_else(path: Path, what: str, why: str) -> InputError:
    return InputError(
        f"{path} contains something other than {what}, and is not replaced",
        details=why,
        hint="choose a new name, or move the existing file or folder away",
    )
