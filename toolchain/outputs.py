"""Where results go: checked before the work, and put in place in one step. Only an earlier result is ever replaced.

The content of a path that a user names may be the work of years. It is replaced only if it is known to be one of our
results, and never removed before its replacement is complete.
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

Foreign = Callable[[Path], str]  # returns why the content of a path is not an earlier result; empty if it is

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}


def check_file(path: Path, what: str, foreign: Foreign) -> None:
    """Check that a file can be written or replaced, without touching it.

    `what` is its future content, such as `a package`; `foreign` is called with a file that exists and is not empty.

    Raises:
        InputError: It cannot be written, or something else is there.
    """
    with _report_unwritable(path):
        _check_no_link(path)
        if path.exists():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not path.is_file():
                raise _wrong_content(path, what, "it is not a regular file")
            if path.stat().st_size and (why := foreign(path)):
                raise _wrong_content(path, what, why)
        tempfile.TemporaryFile(dir=path.parent).close()


def check_folder(folder: Path, what: str, foreign: Foreign) -> None:
    """Check that a folder, and those above it, can be made or that it can be replaced, without touching it.

    The other arguments and the errors are as for `check_file`.
    """
    with _report_unwritable(folder):
        _check_no_link(folder)
        if folder.exists():
            if not folder.is_dir():
                raise _wrong_content(folder, what, "it is a file")
            if any(folder.iterdir()) and (why := foreign(folder)):
                raise _wrong_content(folder, what, why)
            if folder.resolve() == Path.cwd() or folder.is_mount():
                raise InputError(
                    f"{folder} cannot be replaced: it is the current folder or a mount point",
                    hint=f"choose a new folder in it, such as {folder / 'out'}",
                )
        parent = folder.resolve().parent
        existing = next(ancestor for ancestor in (parent, *parent.parents) if ancestor.exists())
        tempfile.TemporaryFile(dir=existing).close()


@contextlib.contextmanager
def replacing(folder: Path, what: str, foreign: Foreign) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` once the block has succeeded, and is removed otherwise.

    At every moment one of the two is there; the old content is removed only after it was moved away.

    Raises:
        InputError: As `check_folder`, before the block and again after it.
    """
    check_folder(folder, what, foreign)
    with _report_unwritable(folder):
        target = folder.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield staging
        check_folder(folder, what, foreign)  # minutes have passed
        with _report_unwritable(folder):
            staging.chmod(0o755)
            _move(staging, target)
    finally:
        _remove(staging)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:  # this takes a moment, and there is no later cleanup
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _move(staging: Path, target: Path) -> None:
    """Move a folder to its destination; the old content, if any, is at `staging` afterwards."""
    try:
        staging.rename(target)
    except OSError as fault:
        if fault.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        libc = ctypes.CDLL(None, use_errno=True)
        source, destination = os.fsencode(staging), os.fsencode(target)
        if libc.renameat2(_AT_FDCWD, source, _AT_FDCWD, destination, _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code)) from fault
        _exchange_in_steps(staging, target)  # network file systems cannot exchange in one step


def _exchange_in_steps(staging: Path, target: Path) -> None:
    aside = staging.with_name(f"{staging.name}.before")
    target.rename(aside)
    try:
        staging.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    aside.rename(staging)


@contextlib.contextmanager
def _report_unwritable(path: Path) -> Iterator[None]:
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


def _wrong_content(path: Path, what: str, why: str) -> InputError:
    return InputError(
        f"{path} contains something other than {what}, and is not replaced",
        details=why,
        hint="choose a new name, or move the existing file or folder away",
    )
