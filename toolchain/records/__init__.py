"""Tuning records: one JSON line for each trial, in a file that outlives the process that writes it; knows no TVM.

A file is only ever appended to. A writer that is killed leaves at most a torn last line, which readers pass over and
the next writer cuts off. What was found for one target, TVM version, emulator or number of threads is never handed out
for another. A trial decides nothing: of each kernel, the last final does.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolchain import files, locks, state
from toolchain.errors import InputError
from toolchain.records import index
from toolchain.records.catalog import EXPIRY_S, Begun, Catalog, Choice, Records
from toolchain.records.lines import Key, Line, Record, Start, Workload, encoded, is_torn, parsed, tvm_version

__all__ = [
    "EXPIRY_S",
    "SHIPPED",
    "Begun",
    "Catalog",
    "Choice",
    "Key",
    "Record",
    "RecordFile",
    "Records",
    "Start",
    "Tell",
    "Workload",
    "Written",
    "best_bytes",
    "default_path",
    "encode",
    "nobody",
    "parse",
    "tvm_version",
    "write",
]

SHIPPED = "shipped"
"""What an option calls the records that come with the toolchain."""

Tell = Callable[[str], None]
"""Called with steps of what takes some time."""

_BLOCK = 1 << 16
_PATIENCE_S = 600.0  # the records of a large lab are merged in minutes


def nobody(_line: str) -> None:
    """Tell nobody."""


def best_bytes(records: Catalog, key: Key, only: Collection[str] | None = None) -> bytes:
    """Return what decides of each workload as a file that is the same bytes whoever found it, and when.

    Args:
        records: Where to look.
        key: What the schedules must have been found for.
        only: Hashes of the workloads that count; all by default.
    """
    best = {name: trial for name, trial in records.best(key).items() if only is None or name in only}
    known = [records.workloads[name] for name in best if name in records.workloads]
    return encode([*known, *(trial.canonical() for trial in best.values())])


def default_path(board: str) -> Path:
    """Return where a board's records are: in `$TOOLCHAIN_RECORDS`, in the project, or in the user's own folder."""
    return state.records_path(board)


def parse(data: bytes, where: str) -> Records:
    """Read the bytes of a file.

    Raises:
        InputError: A line is damaged, other than the last of a writer that was killed.
    """
    *whole, tail = data.split(b"\n")
    items = [parsed(line, number, where) for number, line in enumerate(whole, 1)]
    if tail and not is_torn(tail):
        items.append(parsed(tail, len(whole) + 1, where))
    return Records.collect(items)


def encode(items: Iterable[Line]) -> bytes:
    """Return the bytes of a file that holds some lines."""
    return b"".join(encoded(item) for item in items)


@dataclass(frozen=True)
class Written:
    """What was written to a file: how many workloads, and how many trials and finals."""

    workloads: int
    trials: int


def write(path: Path, items: Iterable[Line]) -> Written:
    """Write a file of records, whole or not at all, each line when its turn comes.

    Raises:
        InputError: It cannot be written.
    """
    kinds: Counter[str] = Counter()
    with files.atomic_path(path) as part, part.open("wb") as stream:
        for item in items:
            kinds[item.kind] += 1
            stream.write(encoded(item))
    return Written(kinds["workload"], kinds["trial"])


class RecordFile:
    """A file of records that several processes may append to.

    Args:
        path: Where it is; it and its folder are made by the first `append`.
        tell: Called with steps where reading it takes some time.
    """

    def __init__(self, path: Path, tell: Tell = nobody) -> None:
        self.path = path
        self._tell = tell
        self._known: set[str] = set()
        self._seen: tuple[int, int] | None = None  # the file that they are known of

    def read(self) -> Records:
        """Read all of it; a torn last line is left out.

        Raises:
            InputError: There is no such file, or it is no file of records.
        """
        with self._readable():
            return parse(self.path.read_bytes(), str(self.path))

    def catalog(self) -> Catalog:
        """Return what is in it by now, for questions: a large file is not read, but its index is asked.

        Raises:
            InputError: As `read`.
        """
        with self._readable():
            if self.path.stat().st_size < index.LEAST:
                return self.read()
            return index.opened(self.path, self._tell)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            raise InputError(
                f"cannot read the tuning records {self.path}: {fault.strerror or fault}",
                hint="create records with `toolchain tune MODEL --board BOARD`, or pass another file",
            ) from fault

    def begin(self, start: Start) -> Catalog:
        """Note that a run begins here, unless it has before; return all that is known by then.

        One that began so long ago that what it knew has expired begins anew.

        Raises:
            InputError: As `append`.
        """
        with self._locked() as handle:
            known = self.catalog()
            self._learn(handle, known)
            before = known.runs.get(start.run)
            if before and not start.fresh and start.time - before.start.time <= EXPIRY_S:
                return known
            _write(handle, encoded(start))
            os.fsync(handle)
        return known.beginning(start)

    def append(self, items: Iterable[Line]) -> None:
        """Append lines and wait until they are on the disk; a workload that the file has is not written again.

        Raises:
            InputError: The file holds something else, or cannot be written; what was in it before is still there.
        """
        with self._locked() as handle:
            self._learn(handle)
            for item in items:
                self._append_one(handle, item)
            os.fsync(handle)

    def _append_one(self, handle: int, item: Line) -> None:
        if isinstance(item, Workload) and item.workload in self._known:
            return
        _write(handle, encoded(item))
        if isinstance(item, Workload):
            self._known.add(item.workload)

    def _learn(self, handle: int, known: Catalog | None = None) -> None:
        """Find out which workloads the file has, once for each file that has had the path."""
        status = os.fstat(handle)
        identity = (status.st_dev, status.st_ino)
        if identity != self._seen:
            self._known = set((known or self.catalog()).workloads)
            self._seen = identity

    def replace(self, make: Callable[[], Iterable[Line]]) -> Written:
        """Put other lines in place of those there are, all at once, while no other process appends."""
        with self._locked():
            made = write(self.path, make())
            index.remove(self.path)
        return made

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending, alone, after any torn last line has been cut off.

        Raises:
            BusyError: Another process keeps the lock.
            InputError: It cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as stack:
                lock = locks.open_lock(_beside(self.path), locks.mode_beside(self.path))
                stack.callback(os.close, lock)
                locks.acquire(lock, f"the file of tuning records {self.path}", _PATIENCE_S, self._tell)
                handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                stack.callback(os.close, handle)
                _mend(handle, str(self.path))
                yield handle
        except OSError as fault:
            raise files.unwritable(self.path, fault) from fault


def _beside(path: Path) -> Path:
    """Return the file whose lock is that of the records: others may read those, and so could lock them for ever."""
    return path.with_name(f".{path.name}.lock")


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
    """Cut off a last line that lost its end, and end one that lost nothing but its newline."""
    start, tail = os.fstat(handle).st_size, b""
    while start and b"\n" not in tail:
        length = min(start, _BLOCK)
        start -= length
        tail = os.pread(handle, length, start) + tail
    line = tail.rpartition(b"\n")[2]
    if is_torn(line):
        os.ftruncate(handle, start + len(tail) - len(line))
    elif line:
        parsed(line, 1, where)
        os.write(handle, b"\n")
