"""Removes records from a file, which is replaced atomically."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from toolchain.records import Catalog, Record, RecordFile, RunStart
from toolchain.records.catalog import to_lines
from toolchain.records.lines import Line


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

    def fits(self, trial: Record, records: Catalog) -> bool:
        workload = records.workloads.get(trial.workload)
        return (
            (self.workloads is None or trial.workload in self.workloads)
            and (not self.name or (workload is not None and self.name in workload.name))
            and self.key_id in {"", trial.key.id}
            and self.machine in {"", trial.board}
            and (self.before is None or trial.time < self.before)
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


@dataclass
class _Partition:
    """The records of a file divided into those to remove and those that stay.

    Attributes:
        records: All records.
        removed: One byte for each record, 1 if it is removed: a file may have millions of records.
        finals: Number of removed decisions.
        removed_kernels: Hashes of the kernels of removed records.
        kernels: Hashes of the kernels of records that stay.
        runs: Names of the runs of records that stay.
    """

    records: Catalog
    removed: bytearray = field(default_factory=bytearray)
    finals: int = 0
    removed_kernels: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)

    @classmethod
    def by(cls, which: Which, records: Catalog) -> _Partition:
        result = cls(records)
        for trial in records.trials:
            is_removed = which.fits(trial, records)
            result.removed.append(is_removed)
            if is_removed:
                result.finals += bool(trial.verdict)
                result.removed_kernels.add(trial.workload)
            else:
                result.kernels.add(trial.workload)
                result.runs.add(trial.run)
        return result

    @property
    def forgotten(self) -> Forgotten:
        count = sum(self.removed)
        return Forgotten(len(self.removed) - count, count - self.finals, self.finals, len(self.removed_kernels))

    def lines(self) -> Iterator[Line]:
        """Yield the lines that stay, without kernels and beginnings of runs that no record refers to any more."""
        kernels = [workload for name, workload in self.records.workloads.items() if name in self.kernels]
        trials = (trial for trial, removed in zip(self.records.trials, self.removed, strict=True) if not removed)
        runs = [run for name, run in self.records.runs.items() if name in self.runs]
        starts = [RunStart(run.start, run.index - sum(self.removed[: run.index])) for run in runs]
        return to_lines(kernels, trials, starts)


def forget(file: RecordFile, which: Which, *, dry: bool = False) -> Forgotten:
    """Remove records from a file. Readers see the old file or the new one, and other writers wait.

    Raises:
        InputError: There is no such file, or it cannot be written.
    """
    records = file.catalog()  # before `replace`, which would create a missing file
    # A file of which nothing is removed is not rewritten.
    if dry or not any(which.fits(trial, records) for trial in records.trials):
        return _Partition.by(which, records).forgotten
    partitions: list[_Partition] = []

    def make() -> Iterator[Line]:
        partitions.append(_Partition.by(which, file.catalog()))  # of the file as it is under the lock
        return partitions[0].lines()

    file.replace(make)
    return partitions[0].forgotten
