"""The index of a file of records on the disk, beside the file: a sealed copy of the rows.

It is only ever replaced as a whole. The key of the seal is private to the user, so a truncated, damaged or foreign
index has a wrong seal; it is ignored, and replaced when the next one is saved.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hmac
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pydantic

from toolchain import files
from toolchain.errors import InputError
from toolchain.records import lines, results, tables

_MAGIC = b"edge-toolchain records index\n"
_SEAL_LENGTH = _KEY_LENGTH = 32
_HEAD = len(_MAGIC) + _SEAL_LENGTH


def path_of(records: Path) -> Path:
    """Return the path of the index of a file of records; a pattern such as `*.jsonl` does not match it."""
    return records.with_name(f".{records.name}.index")


def load(records: Path) -> sqlite3.Connection | None:
    """Return the saved rows of a file of records; None if there are none with a valid seal."""
    try:
        key, data = _key(), memoryview(_read(path_of(records)))
        if data[:_HEAD] != _MAGIC + _seal(key, data[_HEAD:]):
            return None
        database = sqlite3.connect(":memory:", check_same_thread=False)
        database.deserialize(data[_HEAD:])
    except (InputError, OSError, sqlite3.Error):
        return None
    return database


def save(records: Path, rows: sqlite3.Connection) -> None:
    """Save the rows of a file of records; without disk space or permission, nothing is saved."""
    with contextlib.suppress(InputError, OSError, sqlite3.Error), _replacement(path_of(records)) as handle:
        key, data = _key(), memoryview(rows.serialize())
        _write(handle, _MAGIC + _seal(key, data))
        _write(handle, data)


def remove(records: Path) -> None:
    with contextlib.suppress(OSError):
        path_of(records).unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    # Neither a link nor a pipe in a shared folder may be followed or block.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as stream:  # noqa: PTH123 - it is open already
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is not a file")
        return stream.read()


def _seal(key: bytes, data: memoryview) -> bytes:
    return hmac.digest(key + _code_digest(), data, "sha256")


@functools.cache
def _code_digest() -> bytes:
    """Return a digest of the code that makes rows: those of another toolchain may mean something else.

    Raises:
        OSError: There are no sources.
    """
    sources = [lines.__file__, results.__file__, tables.__file__, *sorted(map(str, Path(__file__).parent.glob("*.py")))]
    digests = [pydantic.VERSION, *(files.sha256_file(Path(source)) for source in sources)]
    return files.sha256_bytes(" ".join(digests).encode()).encode()


def _key() -> bytes:
    """Return the key of this user's seals, which is created the first time.

    Raises:
        InputError: Its folder cannot be created.
        OSError: It cannot be read.
    """
    path = files.cache_root() / "index.key"
    if not path.exists():
        files.edit(path, lambda known: known or secrets.token_bytes(_KEY_LENGTH))
    key = path.read_bytes()
    if len(key) != _KEY_LENGTH:
        raise OSError(f"{path} is damaged")
    return key


@contextlib.contextmanager
def _replacement(target: Path) -> Iterator[int]:
    """Open a file that replaces another one at the end of the block; the file of a killed process is reused.

    Raises:
        OSError: It cannot be created, or another process is writing it.
    """
    path = target.with_name(f"{target.name}.part")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not files.is_at(handle, path) or not _is_ours(os.fstat(handle)):
            raise OSError(f"{path} belongs to another user")
        try:
            os.ftruncate(handle, 0)
            yield handle
            path.replace(target)
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_nlink == 1


def _write(handle: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
