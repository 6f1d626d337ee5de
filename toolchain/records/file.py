"""A file of records: reading, appending, and replacing it, with several processes at the same time."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolchain import files, locks, state
from toolchain.errors import InputError
from toolchain.records import index
from toolchain.records.lines import Line, Start, Workload, encoded, is_torn, parsed
from toolchain.records.queries import EXPIRY_S, Records, Tell, silent

SHIPPED = "shipped"
"""The name of the records that come with the toolchain, in options."""

_BLOCK = 1 << 16
_PATIENCE_S = 600.0  # to merge the records of a large lab takes minutes


def default_path(board: str) -> Path:
    """Return the path of a board's records: in `$TOOLCHAIN_RECORDS`, in the project, or in the user's folder."""
    return state.records_path(board)


@dataclass(frozen=True)
class Written:
    """What was written to a file: the number of workloads, and of trials and finals."""

    workloads: int
    trials: int


def write(path: Path, items: Iterable[Line]) -> Written:
    """Write a file of records atomically, and line by line to save memory.

    Raises:
        InputError: It cannot be written.
    """
    kinds: Counter[str] = Counter()
    with files.atomic_path(path) as temporary, temporary.open("wb") as stream:
        for item in items:
            kinds[item.kind] += 1
            stream.write(encoded(item))
    return Written(kinds["workload"], kinds["trial"])


class RecordFile:
    """A file of records that several processes may append to.

    Args:
        path: The file; the first `append` creates it and its folder.
        tell: Called with steps if reading it takes some time.
    """

    def __init__(self, path: Path, tell: Tell = silent) -> None:
        self.path = path
        self._tell = tell
        self._workloads: set[str] = set()  # those that the file has
        self._identity: tuple[int, int] | None = None  # device and inode of that file

    def read(self) -> Records:
        """Return the present contents; a torn last line is ignored.

        Raises:
            InputError: The file does not exist, or is not a file of records.
        """
        try:
            return Records.open(self.path, self._tell)
        except OSError as fault:
            raise InputError(
                f"cannot read the tuning records {self.path}: {fault.strerror or fault}",
                hint="create records with `toolchain tune MODEL --board BOARD`, or pass another file",
            ) from fault

    def begin(self, start: Start) -> Records:
        """Append the beginning of a run, unless the file has it; return the contents at that time.

        A run that began so long ago that the records before it have expired begins anew.

        Raises:
            InputError: As `append`.
        """
        with self._locked() as handle:
            records = self.read()
            self._load_workloads(handle, records)
            run = records.runs.get(start.run)
            if run and not start.fresh and start.time - run.start.time <= EXPIRY_S:
                return records
            _write(handle, encoded(start))
            os.fsync(handle)
        return records.beginning(start)

    def append(self, items: Iterable[Line]) -> None:
        """Append lines and wait until they are on the disk; workloads that the file has are skipped.

        Raises:
            InputError: The file is not a file of records, or cannot be written; its earlier contents are unchanged.
        """
        with self._locked() as handle:
            self._load_workloads(handle)
            for item in items:
                if isinstance(item, Workload) and item.workload in self._workloads:
                    continue
                _write(handle, encoded(item))
                if isinstance(item, Workload):
                    self._workloads.add(item.workload)
            os.fsync(handle)

    def _load_workloads(self, handle: int, records: Records | None = None) -> None:
        """Find out which workloads the file has: the first time, and if another file has replaced it."""
        status = os.fstat(handle)
        identity = (status.st_dev, status.st_ino)
        # Other tools may have replaced the file.
        if identity != self._identity:
            self._workloads = set((records or self.read()).workloads)
            self._identity = identity

    def replace(self, make: Callable[[], Iterable[Line]]) -> Written:
        """Replace all lines atomically, while other processes wait to append."""
        with self._locked():
            written = write(self.path, make())
            index.remove(self.path)
        return written

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending under its lock, and remove a torn last line.

        Raises:
            BusyError: Another process holds the lock.
            InputError: It cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as stack:
                # A file of its own: a user who may only read the records could lock them for ever.
                lock = locks.open_lock(self.path.with_name(f".{self.path.name}.lock"), locks.mode_beside(self.path))
                stack.callback(os.close, lock)
                locks.acquire(lock, f"the file of tuning records {self.path}", _PATIENCE_S, self._tell)
                handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                stack.callback(os.close, handle)
                _mend(handle, str(self.path))
                yield handle
        except OSError as fault:
            raise files.unwritable(self.path, fault) from fault


def _write(handle: int, line: bytes) -> None:
    """Write a line by one call, or leave the file as it was."""
    before = os.fstat(handle).st_size
    written = 0
    try:
        written = os.write(handle, line)
    finally:
        if written != len(line):
            os.ftruncate(handle, before)
    if written != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _mend(handle: int, where: str) -> None:
    """Remove a torn last line, and complete one that lacks only its newline."""
    start, tail = os.fstat(handle).st_size, b""
    while start and b"\n" not in tail:
        length = min(start, _BLOCK)
        start -= length
        tail = os.pread(handle, length, start) + tail
    line = tail.rpartition(b"\n")[2]
    # Only the writer that holds the lock may do this: for readers the line may still be growing.
    if is_torn(line):
        os.ftruncate(handle, start + len(tail) - len(line))
    elif line:
        parsed(line, 1, where)
        os.write(handle, b"\n")
