"""Tuning records: one JSON line for each trial, in a file that outlives the process that writes it; knows no TVM.

A file is only ever appended to. A writer that is killed leaves at most a torn last line, which readers pass over and
the next writer cuts off. What was found for one target, TVM version, emulator or number of threads is never handed out
for another. A trial decides nothing: of each kernel, the last final does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolchain import files, state
from toolchain.errors import InputError
from toolchain.records.lines import EARLIER, Key, Line, Record, Start, Workload, encoded, is_torn, parsed, tvm_version

__all__ = [
    "SHIPPED",
    "Key",
    "Record",
    "RecordFile",
    "Records",
    "Start",
    "Workload",
    "best_bytes",
    "default_path",
    "encode",
    "parse",
    "tvm_version",
]

SHIPPED = "shipped"
"""What an option calls the records that come with the toolchain."""

EXPIRY_S = 180 * 86400.0
"""Seconds after which a record is no longer the last word: a run measures anew what it says. Builds still apply it."""

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Begun:
    """Where a run began.

    Attributes:
        start: Its line.
        place: How many trials stand before that.
    """

    start: Start
    place: int


@dataclass(frozen=True)
class Records:
    """What was in a file at one moment.

    Attributes:
        workloads: The kernels by their hash.
        trials: All trials and what finals decided, in the order of the file.
        runs: Where each run began, the last time that it did.
    """

    workloads: Mapping[str, Workload] = field(default_factory=dict)
    trials: tuple[Record, ...] = ()
    runs: Mapping[str, Begun] = field(default_factory=dict)

    @classmethod
    def collect(cls, items: Iterable[Line]) -> Records:
        """Sort lines into workloads, of which the first of each hash counts, trials, and beginnings of runs."""
        workloads: dict[str, Workload] = {}
        trials: list[Record] = []
        runs: dict[str, Begun] = {}
        for item in items:
            if isinstance(item, Workload):
                workloads.setdefault(item.workload, item)
            elif isinstance(item, Start):
                runs[item.run] = Begun(item, len(trials))
            else:
                trials.append(item)
        return cls(workloads, tuple(trials), runs)

    @functools.cached_property
    def keys(self) -> tuple[Key, ...]:
        """What there are trials for, in the order of their first."""
        return tuple(dict.fromkeys(trial.key for trial in self.trials))

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        """Return the trials for a key, or those of one workload among them, in the order of the file."""
        found = (one for one in self.trials if workload in {None, one.workload} and one.key == key)
        return tuple(one for one in found if not one.is_final)

    def fastest(self, key: Key, keep: int = 1) -> dict[str, tuple[Record, ...]]:
        """Return for each workload up to `keep` trials, each of another candidate, the fastest first."""
        return _fastest(self.of(key), keep)

    def decided(self, key: Key) -> dict[str, Record]:
        """Return what the last final of each workload decided; a workload without one is not among them."""
        return {one.workload: one for one in self.trials if one.verdict and one.key == key}

    def best(self, key: Key) -> dict[str, Record]:
        """Return what is to be done with each workload: what its last final decided.

        Where no final was, the fastest trial of schema 1 counts, as it did when there were none. A workload without
        either is not among them: its trials only tell what may be worth a final.
        """
        earlier = _fastest([one for one in self.of(key) if one.schema == EARLIER], 1)
        found = {**{name: one[0] for name, one in earlier.items()}, **self.decided(key)}
        return dict(sorted(found.items()))

    def lines(self) -> Iterator[Line]:
        """Yield workloads, then trials, and the beginning of each run in its place."""
        yield from self.workloads.values()
        begun = sorted(self.runs.values(), key=lambda one: one.place)
        places = [0, *(one.place for one in begun), len(self.trials)]
        for number, (first, last) in enumerate(itertools.pairwise(places)):
            yield from self.trials[first:last]
            yield from (one.start for one in begun[number : number + 1])


def _fastest(trials: Iterable[Record], keep: int) -> dict[str, tuple[Record, ...]]:
    by_workload: dict[str, dict[str, Record]] = {}
    for trial in sorted(trials, key=_speed):
        if trial.samples_s and trial.is_possible:
            by_workload.setdefault(trial.workload, {}).setdefault(trial.candidate, trial)
    return {name: tuple(found.values())[:keep] for name, found in sorted(by_workload.items())}


def _speed(trial: Record) -> tuple[float, str, str, tuple[float, ...]]:
    # Equal latencies are common with a coarse clock; the order of a file must not decide between them.
    return trial.latency_s, trial.candidate, trial.trace, trial.samples_s


def best_bytes(records: Records, key: Key, only: Collection[str] | None = None) -> bytes:
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

    def begin(self, start: Start) -> Records:
        """Note that a run begins here, unless it has before; return all that is known by then.

        One that began so long ago that what it knew has expired begins anew.

        Raises:
            InputError: As `append`.
        """
        with self._locked() as handle:
            known = self.read()
            before = known.runs.get(start.run)
            if before and not start.fresh and start.time - before.start.time <= EXPIRY_S:
                return known
            _write(handle, encoded(start))
            os.fsync(handle)
        return replace(known, runs={**known.runs, start.run: Begun(start, len(known.trials))})

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
            if files.is_at(handle, self.path):
                return handle
            os.close(handle)


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
