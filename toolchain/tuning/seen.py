"""What a run sees of a file of records: what others had found when it began, and what it found itself.

What others append after that changes nothing for a run, so that one that goes on is the same as one that was never
interrupted. Finals look at all that is there by then: the more candidates they know, the better is their choice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from toolchain.records import EXPIRY_S, Begun, Key, Record, Records, Start
from toolchain.records.results import PRUNED


@dataclass(frozen=True)
class Seen:
    """What a run sees of its file.

    Attributes:
        records: All that is in the file.
        key: What its records are found under.
        start: Its beginning.
        workloads: The kernels that it tunes.
    """

    records: Records
    key: Key
    start: Start
    workloads: Collection[str]

    @property
    def run(self) -> str:
        """Its name."""
        return self.start.run

    @property
    def begun(self) -> Begun:
        """Where it began; at the top of a file from which somebody took that meanwhile, with what stood before."""
        return self.records.runs.get(self.run, Begun(self.start, 0))

    def earlier(self) -> list[Record]:
        """Return the trials that others had made when it began; what a model ruled out for them, it may measure."""
        trials = self.records.trials[: self.begun.place]
        return [
            one
            for place, one in enumerate(trials)
            if one.run != self.run and one.cause not in PRUNED and not one.is_final and self._counts(place, one)
        ]

    def own(self) -> dict[int, list[Record]]:
        """Return its own trials by round."""
        found: dict[int, list[Record]] = {}
        for place, one in enumerate(self.records.trials):
            if one.run == self.run and not one.is_final and self._counts(place, one):
                found.setdefault(one.round, []).append(one)
        return found

    def now(self) -> Records:
        """Return all that counts by now, of its kernels: what finals choose from, and what they decided."""
        trials = enumerate(self.records.trials)
        mine = (one for place, one in trials if one.workload in self.workloads and self._counts(place, one))
        return Records(self.records.workloads, tuple(mine))

    def _counts(self, place: int, record: Record) -> bool:
        """Whether a record is of the run's kind, has not expired, and is not passed over by a fresh run."""
        start = self.begun.start
        stale = start.fresh and place < self.begun.place and record.workload in self.workloads
        return record.key == self.key and start.time - record.time <= EXPIRY_S and not stale
