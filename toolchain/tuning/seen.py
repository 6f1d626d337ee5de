"""What a run sees of a file of records: what others had found when it began, and what it found itself.

What others append after that changes nothing for a run, so that one that goes on is the same as one that was never
interrupted. Finals look at all that is there by then: the more candidates they know, the better is their choice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from toolchain.records import Begun, Catalog, Choice, Key, Record, Start
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

    records: Catalog
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

    def earlier(self, most: int) -> tuple[Record, ...]:
        """Return the last trials that others had made when it began; what a model ruled out for them, it may measure.

        Args:
            most: How many at most.
        """
        others = replace(self._counting, before=self.begun.place, other_than=self.run, without=PRUNED, trials=True)
        return self.records.only(others).last(most)

    def own(self) -> dict[int, list[Record]]:
        """Return its own trials by round."""
        found: dict[int, list[Record]] = {}
        for one in self.records.only(replace(self._counting, run=self.run, trials=True)).trials:
            found.setdefault(one.round, []).append(one)
        return found

    def now(self) -> Catalog:
        """Return all that counts by now, of its kernels: what finals choose from, and what they decided."""
        return self.records.only(replace(self._counting, workloads=frozenset(self.workloads)))

    @property
    def _counting(self) -> Choice:
        """Which records count: those of the run's kind that have not expired, unless a fresh run passes over them."""
        begun = self.begun
        stale = frozenset(self.workloads) if begun.start.fresh else frozenset()
        return Choice(self.key, moment=begun.start.time, since=begun.place, renewed=stale)
