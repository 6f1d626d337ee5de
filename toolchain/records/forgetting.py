"""Removes records from a file, which is replaced atomically."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from toolchain.records import Line, Record, RecordFile, RecordFilter, Records, Workload


@dataclass(frozen=True)
class Which:
    """Conditions for the records to forget; all that are given must hold.

    Attributes:
        workloads: The record is of one of these kernels.
        name: The name of its kernel contains this text.
        key_id: The ID of its key.
        machine: The name of the board that it was measured on.
        before: It was measured before this time, in seconds since 1970 (UTC).
    """

    workloads: Collection[str] | None = None
    name: str = ""
    key_id: str = ""
    machine: str = ""
    before: float | None = None

    def condition(self, records: Records) -> RecordFilter:
        """Return these conditions for the records of a file."""
        workloads = self.workloads
        if self.name:
            named = (kernel.workload for kernel in records.workloads.values() if self.name in kernel.name)
            workloads = [workload for workload in named if workloads is None or workload in workloads]
        return RecordFilter(
            keys=frozenset(key for key in records.keys if key.id == self.key_id) if self.key_id else None,
            workloads=None if workloads is None else frozenset(workloads),
            board=self.machine or None,
            older=self.before,
        )


@dataclass(frozen=True)
class Forgotten:
    """Counts of what was forgotten, or would be.

    Attributes:
        kept: Records that stay.
        trials: Trials that are removed.
        finals: Decisions of finals that are removed.
        workloads: Kernels of which records are removed.
    """

    kept: int
    trials: int
    finals: int
    workloads: int


def forget(file: RecordFile, which: Which, *, dry: bool = False) -> Forgotten:
    """Remove records from a file. Readers see the old file or the new one, and other writers wait.

    Raises:
        InputError: There is no such file, or it cannot be written.
    """
    # Before `replace`, which would create a missing file; a file of which nothing is removed is not rewritten.
    forgotten = _count(file.read(), which)
    if dry or not forgotten.workloads:
        return forgotten
    counts: list[Forgotten] = []

    def make() -> Iterator[Line]:
        records = file.read()  # as it is under the lock
        counts.append(_count(records, which))
        return _remaining(records.only(which.condition(records), fits=False))

    file.replace(make)
    return counts[0]


def _count(records: Records, which: Which) -> Forgotten:
    removed = records.only(which.condition(records))
    count, finals = removed.count(), removed.count(decisions=True)
    return Forgotten(records.count() - count, count - finals, finals, len(removed.names("workload")))


def _remaining(kept: Records) -> Iterator[Line]:
    """Yield the lines that stay, without kernels and beginnings of runs that no record refers to any more."""
    kernels, runs = kept.names("workload"), kept.names("run")
    for line in kept.lines():
        if isinstance(line, Record) or (line.workload in kernels if isinstance(line, Workload) else line.run in runs):
            yield line
