"""Tuning records: one JSON line for each trial, in a file that outlives the process that writes it; knows no TVM.

A file is only ever appended to. A writer that is killed leaves at most a torn last line, which readers pass over and
the next writer cuts off. What was found for one target, TVM version or emulator is never handed out for another.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolchain import files, state
from toolchain.errors import InputError
from toolchain.records.lines import Key, Record, Workload, encoded, is_torn, parsed, tvm_version

__all__ = [
    "SHIPPED",
    "Key",
    "Record",
    "RecordFile",
    "Records",
    "Workload",
    "best_bytes",
    "default_path",
    "encode",
    "parse",
    "tvm_version",
]

SHIPPED = "shipped"
"""What an option calls the records that come with the toolchain."""

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Records:
    """What was in a file at one moment.

    Attributes:
        workloads: The kernels by their hash.
        trials: All trials, in the order of the file.
    """

    workloads: Mapping[str, Workload] = field(default_factory=dict)
    trials: tuple[Record, ...] = ()

    @classmethod
    def collect(cls, items: Iterable[Workload | Record]) -> Records:
        """Sort lines into workloads, of which the first of each hash counts, and trials."""
        workloads: dict[str, Workload] = {}
        trials = []
        for item in items:
            if isinstance(item, Workload):
                workloads.setdefault(item.workload, item)
            else:
                trials.append(item)
        return cls(workloads, tuple(trials))

    @functools.cached_property
    def keys(self) -> tuple[Key, ...]:
        """What there are trials for, in the order of their first."""
        return tuple(dict.fromkeys(trial.key for trial in self.trials))

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        """Return the trials for a key, or those of one workload among them, in the order of the file."""
        return tuple(trial for trial in self.trials if workload in {None, trial.workload} and trial.key == key)

    def fastest(self, key: Key, keep: int = 1) -> dict[str, tuple[Record, ...]]:
        """Return for each workload up to `keep` trials, each of another candidate, the fastest first."""
        by_workload: dict[str, dict[str, Record]] = {}
        for trial in sorted(self.of(key), key=_speed):
            if trial.samples_s:
                by_workload.setdefault(trial.workload, {}).setdefault(trial.candidate, trial)
        return {name: tuple(found.values())[:keep] for name, found in sorted(by_workload.items())}

    def best(self, key: Key) -> dict[str, Record]:
        """Return the fastest trial of each workload; a workload without a latency is not among them."""
        return {name: found[0] for name, found in self.fastest(key).items()}

    def lines(self) -> Iterator[Workload | Record]:
        """Yield workloads, then trials."""
        yield from self.workloads.values()
        yield from self.trials


def _speed(trial: Record) -> tuple[float, str, str, tuple[float, ...]]:
    # Equal latencies are common with a coarse clock; the order of a file must not decide between them.
    return trial.latency_s, trial.candidate, trial.trace, trial.samples_s


def best_bytes(records: Records, key: Key, only: Collection[str] | None = None) -> bytes:
    """Return the best trials as a file that is the same bytes whoever found them, and when.

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


def encode(items: Iterable[Workload | Record]) -> bytes:
    """Return the bytes of a file that holds some lines."""
    return b"".join(encoded(item) for item in items)


class RecordFile:
    """A file of records that several processes may append to.

    Args:
        path: Where it is; it and its folder are made by the first `append`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: set[str] = set()
        self._seen: tuple[int, int] | None = None  # the file that they are known of

    def read(self) -> Records:
        """Read all of it; a torn last line is left out.

        Raises:
            InputError: There is no such file, or it is no file of records.
        """
        try:
            return parse(self.path.read_bytes(), str(self.path))
        except OSError as fault:
            raise InputError(
                f"cannot read the tuning records {self.path}: {fault.strerror or fault}",
                hint="`toolchain tune MODEL --board BOARD` makes some; or name another file",
            ) from fault

    def append(self, items: Iterable[Workload | Record]) -> None:
        """Append lines and wait until they are on the disk; a workload that the file has is not written again.

        Raises:
            InputError: The file holds something else, or cannot be written; what was in it before is still there.
        """
        with self._locked() as handle:
            self._learn(handle)
            for item in items:
                self._append_one(handle, item)
            os.fsync(handle)

    def _append_one(self, handle: int, item: Workload | Record) -> None:
        if isinstance(item, Workload) and item.workload in self._known:
            return
        _write(handle, encoded(item))
        if isinstance(item, Workload):
            self._known.add(item.workload)

    def _learn(self, handle: int) -> None:
        """Find out which workloads the file has, once for each file that has had the path."""
        status = os.fstat(handle)
        identity = (status.st_dev, status.st_ino)
        if identity != self._seen:
            self._known = set(self.read().workloads)
            self._seen = identity

    def replace(self, make: Callable[[], Records]) -> Records:
        """Put other records in place of those there are, all at once, while no other process appends."""
        with self._locked():
            made = make()
            files.write_atomic(self.path, encode(made.lines()))
        return made

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending, alone, after any torn last line has been cut off."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = self._opened()
            try:
                _mend(handle, str(self.path))
                yield handle
            finally:
                os.close(handle)
        except OSError as fault:
            raise files.unwritable(self.path, fault) from fault

    def _opened(self) -> int:
        """Open and lock the file that has the path; `replace` may have put another there meanwhile."""
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_at(handle, self.path):
                return handle
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


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
