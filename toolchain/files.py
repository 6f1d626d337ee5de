"""Files on this machine: atomic writes, digests, caches and temporary folders."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from toolchain import locks
from toolchain.errors import BuildError, InputError, ToolchainError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_WRITTEN_BY_OTHERS = 0o002
_PRIVATE, _PRIVATE_FOLDER, _PERMISSIONS = 0o600, 0o700, 0o777
_MASKING = threading.Lock()
_EDIT_S = 30.0  # each edit takes milliseconds
_LARGEST_DOCUMENT = 64 << 20
_YOURS = "choose an existing folder that you can write to"


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """Encode a value as readable JSON, always as the same bytes, with a final newline."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a path beside `target` that replaces it once the block has succeeded, and is removed otherwise."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as fault:
        raise unwritable(target, fault) from fault
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_mask())  # that of an ordinary new file: mkstemp's is private
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as fault:
        raise unwritable(target, fault) from fault
    finally:
        temporary.unlink(missing_ok=True)


def _mask() -> int:
    """Return the mask of new files."""
    # It can be read only by setting it, for the whole process: without the lock, two threads could make the temporary
    # mask permanent. A file that is created at that moment is private.
    with _MASKING:
        mask = os.umask(0o077)
        os.umask(mask)
    return mask


def keep_from_others() -> None:
    """Ensure that nobody else can write what this process creates, whatever mask it was given."""
    os.umask(_mask() | _WRITTEN_BY_OTHERS)


def unwritable(target: Path, fault: OSError) -> InputError:
    full = fault.errno in _FULL
    return InputError(
        f"cannot write {target}: {fault.strerror or fault}",
        hint="free some space there, or choose a folder on another disk" if full else _YOURS,
    )


def refused(fault: BaseException) -> ToolchainError | None:
    """Describe an error of this machine in any operation: memory, disk space, permissions; None for another error.

    The file is not one that the user has named: its own reader or writer reports that.
    """
    if isinstance(fault, MemoryError):
        return BuildError(
            "this machine has no memory left", hint="use a smaller model or --shape, or stop other programs"
        )
    if not isinstance(fault, OSError):
        return None
    where = fault.filename or "a temporary file"
    if fault.errno in _FULL:
        hint = "free some space, or set TMPDIR and TOOLCHAIN_CACHE to folders on another disk"
        return InputError(f"this machine has no disk space for {where}: {fault.strerror}", hint=hint)
    no_temporary = fault.errno == errno.ENOENT and fault.filename is None  # as the module tempfile raises it
    if fault.errno in {errno.EACCES, errno.EPERM, errno.EROFS} or no_temporary:
        hint = "set TOOLCHAIN_CACHE and TMPDIR to folders that you own; `toolchain doctor` checks them"
        return InputError(f"this machine denies access to {where}: {fault.strerror}", hint=hint)
    return None


def check_cache() -> Path:
    """Create the cache folder if it is missing, check that it can be written, and return it."""
    folder = cache_root()
    try:
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        if "TOOLCHAIN_CACHE" not in os.environ:  # a folder that was named may be meant for several users
            locks.make_private(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as fault:
        raise InputError(
            f"the cache {folder} cannot be written: {fault.strerror or fault}",
            hint="set TOOLCHAIN_CACHE to a folder that you own, on a disk with free space",
        ) from fault
    return folder


def write_atomic(target: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    with atomic_path(target) as temporary:
        temporary.write_bytes(data)


def edit(target: Path, change: Callable[[bytes], bytes]) -> bool:
    """Change a user's file, completely or not at all; return whether it changed. Concurrent edits wait for each other.

    Args:
        target: The file, whose mode stays, or a link to it. A missing file and its folder are made, for the user alone.
        change: Maps the old content, empty for a missing file, to the new content.

    Raises:
        InputError: It cannot be read or written.
        BusyError: Another process keeps the lock of its folder.
    """
    real = target.resolve()
    try:
        real.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        with _exclusive(real.parent):
            exists = real.exists()
            before = real.read_bytes() if exists else b""
            after = change(before)
            if exists and after == before:
                return False
            mode = real.stat().st_mode & _PERMISSIONS if exists else _PRIVATE
            with atomic_path(real) as staging:
                staging.write_bytes(after)
            real.chmod(mode)
    except OSError as fault:
        raise unwritable(target, fault) from fault
    return True


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Wait until no other process edits a file in a folder; the lock ends with this process."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        locks.acquire(handle, f"the folder {folder}", _EDIT_S)
        yield
    finally:
        os.close(handle)


def read_limited(path: Path, limit: int = _LARGEST_DOCUMENT, error: type[ToolchainError] = InputError) -> bytes:
    """Read a file that should be small, or raise `error`; at most `limit` + 1 bytes are read."""
    # The size that the file system states is not enough: a file may grow meanwhile, and a pipe states none.
    with path.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise error(f"{path} has more than {limit} bytes, which is the limit", hint="check that it is the right file")
    return data


def read_json(path: Path, error: type[ToolchainError] = InputError, limit: int = _LARGEST_DOCUMENT) -> Any:
    """Read a JSON file of at most `limit` bytes, or raise `error`."""
    try:
        return json.loads(read_limited(path, limit, error))
    except OSError as fault:
        raise error(f"cannot read {path}: {fault.strerror or fault}") from fault
    except (ValueError, RecursionError) as fault:
        raise error(f"{path} is not JSON", details=str(fault)) from fault


def is_at(handle: int, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def cache_root() -> Path:
    """Return the folder for reproducible data: `$TOOLCHAIN_CACHE` or the user's cache folder."""
    variable = os.environ.get("TOOLCHAIN_CACHE")
    if variable:
        return Path(variable)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "edge-toolchain"
    except RuntimeError as fault:
        raise InputError("this user has no home folder", hint="set TOOLCHAIN_CACHE to a folder that you own") from fault
