"""Records that are no longer wanted are taken out of a file, which is rewritten all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from toolchain.records import Begun, Catalog, Record, RecordFile
from toolchain.records.catalog import laid_out
from toolchain.records.lines import Line


@dataclass(frozen=True)
class Which:
    """Which records are forgotten: those of which all is true that is given here.

    Attributes:
        workloads: They are of one of these kernels.
        name: Their kernel's name has this in it.
        key_id: They were found for the target with this ID.
        machine: They were measured on the board of this name.
        before: They were measured before this moment, in seconds since 1970 (UTC).
    """

    workloads: Collection[str] | None = None
    name: str = ""
    key_id: str = ""
    machine: str = ""
    before: float | None = None

    def fits(self, trial: Record, records: Catalog) -> bool:
        """Tell whether a record is one of them."""
        known = records.workloads.get(trial.workload)
        return (
            (self.workloads is None or trial.workload in self.workloads)
            and (not self.name or (known is not None and self.name in known.name))
            and self.key_id in {"", trial.key.id}
            and self.machine in {"", trial.board}
            and (self.before is None or trial.time < self.before)
        )


@dataclass(frozen=True)
class Forgotten:
    """What was forgotten, or would be.

    Attributes:
        kept: How many records stay.
        trials: How many trials go.
        finals: How many decisions of finals go.
        workloads: Of how many kernels.
    """

    kept: int
    trials: int
    finals: int
    workloads: int


@dataclass
class _Sorted:
    """Records of a file sorted into those that go and those that stay.

    Attributes:
        records: All of them.
        gone: One byte for each, 1 for those that go.
        finals: How many of these decided something.
        lost: Hashes of their kernels.
        kernels: Hashes of the kernels of those that stay.
        runs: Names of the runs of those that stay.
    """

    records: Catalog
    gone: bytearray = field(default_factory=bytearray)
    finals: int = 0
    lost: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)

    @classmethod
    def by(cls, which: Which, records: Catalog) -> _Sorted:
        """Look at each once."""
        found = cls(records)
        for trial in records.trials:
            goes = which.fits(trial, records)
            found.gone.append(goes)
            if goes:
                found.finals += bool(trial.verdict)
                found.lost.add(trial.workload)
            else:
                found.kernels.add(trial.workload)
                found.runs.add(trial.run)
        return found

    @property
    def forgotten(self) -> Forgotten:
        """The numbers of it."""
        gone = sum(self.gone)
        return Forgotten(len(self.gone) - gone, gone - self.finals, self.finals, len(self.lost))

    def lines(self) -> Iterator[Line]:
        """Yield what stays, but for what nothing refers to any more: kernels, and the beginnings of runs."""
        kept = [one for name, one in self.records.workloads.items() if name in self.kernels]
        stays = (trial for trial, gone in zip(self.records.trials, self.gone, strict=True) if not gone)
        runs = [one for name, one in self.records.runs.items() if name in self.runs]
        return laid_out(kept, stays, [Begun(one.start, one.place - sum(self.gone[: one.place])) for one in runs])


def forget(file: RecordFile, which: Which, *, dry: bool = False) -> Forgotten:
    """Take records out of a file while nobody appends to it; a reader finds all of the old ones or all of the new.

    Args:
        file: The file.
        which: What is forgotten.
        dry: Whether the file is left as it is.

    Raises:
        InputError: There is no such file, or it cannot be written.
    """
    known = file.catalog()  # a file that is not there is not made
    if dry or not any(which.fits(trial, known) for trial in known.trials):
        return _Sorted.by(which, known).forgotten
    made: list[_Sorted] = []

    def make() -> Iterator[Line]:
        made.append(_Sorted.by(which, file.catalog()))
        return made[0].lines()

    file.replace(make)
    return made[0].forgotten
