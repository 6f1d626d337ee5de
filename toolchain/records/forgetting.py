"""Records that are no longer wanted are taken out of a file, which is rewritten all at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from toolchain.records import Begun, Record, RecordFile, Records


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

    def fits(self, trial: Record, records: Records) -> bool:
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
        kept: The records that stay.
        trials: How many trials go.
        finals: How many decisions of finals go.
        workloads: Of how many kernels.
    """

    kept: Records
    trials: int
    finals: int
    workloads: int


def without(records: Records, which: Which) -> Forgotten:
    """Leave records out, and what nothing refers to any more: kernels, and the beginnings of runs."""
    flags = [which.fits(trial, records) for trial in records.trials]
    kept = tuple(trial for trial, gone in zip(records.trials, flags, strict=True) if not gone)
    gone = [trial for trial, is_gone in zip(records.trials, flags, strict=True) if is_gone]
    workloads, runs = ({getattr(one, name) for one in kept} for name in ("workload", "run"))
    left = Records(
        {name: one for name, one in records.workloads.items() if name in workloads},
        kept,
        {
            name: Begun(one.start, one.place - sum(flags[: one.place]))
            for name, one in records.runs.items()
            if name in runs
        },
    )
    finals = sum(bool(one.verdict) for one in gone)
    return Forgotten(left, len(gone) - finals, finals, len({one.workload for one in gone}))


def forget(file: RecordFile, which: Which, *, dry: bool = False) -> Forgotten:
    """Take records out of a file while nobody appends to it; a reader finds all of the old ones or all of the new.

    Args:
        file: The file.
        which: What is forgotten.
        dry: Whether the file is left as it is.

    Raises:
        InputError: There is no such file, or it cannot be written.
    """
    found = without(file.read(), which)  # a file that is not there is not made
    if dry or not found.trials + found.finals:
        return found
    made: list[Forgotten] = []

    def make() -> Records:
        made.append(without(file.read(), which))
        return made[0].kept

    file.replace(make)
    return made[0]
