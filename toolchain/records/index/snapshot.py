"""The index of a file of records on the disk, beside it: the rows as they were, sealed.

It is replaced whole, never changed. What is cut off, damaged or made by somebody else has another seal, whose key only
this user has; such a one is passed over as if there were none, and the next one that is saved takes its place.
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
from toolchain.records import lines, results

_MAGIC = b"edge-toolchain records index\n"
_SEAL_LENGTH = _KEY_LENGTH = 32
_HEAD = len(_MAGIC) + _SEAL_LENGTH


def place(records: Path) -> Path:
    """Return where the index of a file of records is; no pattern for such files fits it."""
    return records.with_name(f".{records.name}.index")


def load(records: Path) -> sqlite3.Connection | None:
    """Return the rows that were saved for a file of records; None if there are none to be believed."""
    try:
        key, data = _key(), memoryview(_read(place(records)))
        if data[:_HEAD] != _MAGIC + _seal(key, data[_HEAD:]):
            return None
        found = sqlite3.connect(":memory:", check_same_thread=False)
        found.deserialize(data[_HEAD:])
    except (InputError, OSError, sqlite3.Error):
        return None
    return found


def save(records: Path, rows: sqlite3.Connection) -> None:
    """Save the rows of a file of records for the next one who asks, where there is room and it is allowed."""
    with contextlib.suppress(InputError, OSError, sqlite3.Error), _part(place(records)) as handle:
        key, data = _key(), memoryview(rows.serialize())
        _write(handle, _MAGIC + _seal(key, data))
        _write(handle, data)


def remove(records: Path) -> None:
    """Remove what was saved for a file of records, if anything was."""
    with contextlib.suppress(OSError):
        place(records).unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as stream:  # noqa: PTH123 - it is open already
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is not a file")
        return stream.read()


def _seal(key: bytes, data: memoryview) -> bytes:
    return hmac.digest(key + _reading(), data, "sha256")


@functools.cache
def _reading() -> bytes:
    """Return a digest of what reads lines and makes rows of them: what another toolchain made may mean something else.

    Raises:
        OSError: There are no sources.
    """
    sources = [lines.__file__, results.__file__, *sorted(map(str, Path(__file__).parent.glob("*.py")))]
    told = [pydantic.VERSION, *(files.sha256_file(Path(source)) for source in sources)]
    return files.sha256_bytes(" ".join(told).encode()).encode()


def _key() -> bytes:
    """Return what this user's snapshots are sealed with; it is made by the first one.

    Raises:
        InputError: There is no folder for it.
        OSError: It cannot be read.
    """
    path = files.cache_root() / "index.key"
    if not path.exists():
        files.edit(path, lambda known: known or secrets.token_bytes(_KEY_LENGTH))
    found = path.read_bytes()
    if len(found) != _KEY_LENGTH:
        raise OSError(f"{path} is damaged")
    return found


@contextlib.contextmanager
def _part(target: Path) -> Iterator[int]:
    """Open a file that takes the place of another at the end of the block; what a killed process left is taken over.

    Raises:
        OSError: It cannot be made, or another process is at it.
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
