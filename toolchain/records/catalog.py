"""What is asked of the records of a file, wherever they are held, and the answers of those that are held in memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from toolchain.records.lines import EARLIER, Key, Line, Record, Start, Workload

EXPIRY_S = 180 * 86400.0
"""Seconds after which a record is no longer the last word: a run measures anew what it says. Builds still apply it."""


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
class Choice:
    """Which records are looked at: those of which all is true that is given here.

    Attributes:
        key: They were found for this.
        workloads: They are of one of these kernels.
        run: They are of this run.
        other_than: They are of any run but this.
        without: They have none of these causes.
        trials: They are of single trials, and not of finals.
        moment: They have not expired by this moment, in seconds since 1970 (UTC).
        before: They stand before this place, counted in trials from the top of the file.
        since: They stand at this place or behind it, if they are of one of the kernels `renewed`.
        renewed: Those kernels.
    """

    key: Key | None = None
    workloads: frozenset[str] | None = None
    run: str | None = None
    other_than: str | None = None
    without: frozenset[str] = frozenset()
    trials: bool = False
    moment: float | None = None
    before: int | None = None
    since: int = 0
    renewed: frozenset[str] = frozenset()

    def fits(self, place: int, record: Record) -> bool:
        """Tell whether a record is one of them.

        Args:
            place: How many trials stand before it in its file.
            record: It.
        """
        return (
            (self.before is None or place < self.before)
            and (self.workloads is None or record.workload in self.workloads)
            and (self.run is None or record.run == self.run)
            and (self.other_than is None or record.run != self.other_than)
            and record.cause not in self.without
            and not (self.trials and record.is_final)
            and (self.moment is None or self.moment - record.time <= EXPIRY_S)
            and not (place < self.since and record.workload in self.renewed)
            and self.key in {None, record.key}
        )


class Catalog(Protocol):
    """What was in a file at one moment, and what may be asked of it: `Records` are in memory, `Indexed` in the file."""

    @property
    def workloads(self) -> Mapping[str, Workload]:
        """The kernels by their hash."""

    @property
    def runs(self) -> Mapping[str, Begun]:
        """Where each run began, the last time that it did."""

    @property
    def trials(self) -> Collection[Record]:
        """All trials and what finals decided, in the order of the file."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """What there are trials for, in the order of their first."""

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        """Return the trials for a key, or those of one workload among them, in the order of the file."""

    def ranked(self, key: Key, workload: str, schema: int | None = None) -> Iterator[Record]:
        """Yield the trials of a workload whose times can be true, each of another candidate, the fastest first.

        Args:
            key: What they were found for.
            workload: Hash of the workload.
            schema: Of which schema they are; None for any.
        """

    def fastest(self, key: Key, keep: int = 1) -> dict[str, tuple[Record, ...]]:
        """Return for each workload up to `keep` trials, each of another candidate, the fastest first."""

    def decided(self, key: Key) -> dict[str, Record]:
        """Return what the last final of each workload decided; a workload without one is not among them."""

    def best(self, key: Key) -> dict[str, Record]:
        """Return what is to be done with each workload: what its last final decided.

        Where no final was, the fastest trial of schema 1 counts, as it did when there were none. A workload without
        either is not among them: its trials only tell what may be worth a final.
        """

    def tallies(self, key: Key) -> dict[str, Counter[str]]:
        """Count the trials of each workload by their cause, which is empty for those with a latency."""

    def latency_s(self, key: Key, workload: str, candidate: str) -> float:
        """Return the lowest latency of a candidate, in seconds; infinite if there is none."""

    def newest(self) -> dict[Key, float]:
        """Return when the last record for each key was measured; of equals, the one that stands first is first."""

    def by_time(self) -> Iterator[Record]:
        """Yield all records in the order of their time; those of one moment stay in the order of the file."""

    def last(self, most: int) -> tuple[Record, ...]:
        """Return up to so many records from the end, in the order of the file."""

    def only(self, choice: Choice) -> Catalog:
        """Return a part of the records; of its runs nothing is known.

        Places are those in the whole file, so that a part has no part by place.
        """

    def beginning(self, start: Start) -> Catalog:
        """Return the same after a run has begun at the end of the file."""


@dataclass(frozen=True)
class Records:
    """What was in a file at one moment, in memory; see `Catalog` for what may be asked.

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
        """As `Catalog` has it."""
        return tuple(dict.fromkeys(trial.key for trial in self.trials))

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        """As `Catalog` has it."""
        found = (one for one in self.trials if workload in {None, one.workload} and one.key == key)
        return tuple(one for one in found if not one.is_final)

    def ranked(self, key: Key, workload: str, schema: int | None = None) -> Iterator[Record]:
        """As `Catalog` has it."""
        return in_rank(sorted((one for one in self.of(key, workload) if schema in {None, one.schema}), key=speed))

    def fastest(self, key: Key, keep: int = 1) -> dict[str, tuple[Record, ...]]:
        """As `Catalog` has it."""
        return self._fastest(key, keep)

    def _fastest(self, key: Key, keep: int, schema: int | None = None) -> dict[str, tuple[Record, ...]]:
        grouped: dict[str, list[Record]] = {}
        for one in self.of(key):
            if schema in {None, one.schema}:
                grouped.setdefault(one.workload, []).append(one)
        found = {name: tuple(itertools.islice(in_rank(sorted(grouped[name], key=speed)), keep)) for name in grouped}
        return {name: found[name] for name in sorted(found) if found[name]}

    def decided(self, key: Key) -> dict[str, Record]:
        """As `Catalog` has it."""
        return {one.workload: one for one in self.trials if one.verdict and one.key == key}

    def best(self, key: Key) -> dict[str, Record]:
        """As `Catalog` has it."""
        return whats_best(self._fastest(key, 1, EARLIER), self.decided(key))

    def tallies(self, key: Key) -> dict[str, Counter[str]]:
        """As `Catalog` has it."""
        found: dict[str, Counter[str]] = {}
        for one in self.of(key):
            found.setdefault(one.workload, Counter())[one.cause] += 1
        return found

    def latency_s(self, key: Key, workload: str, candidate: str) -> float:
        """As `Catalog` has it."""
        return min((one.latency_s for one in self.of(key, workload) if one.candidate == candidate), default=math.inf)

    def newest(self) -> dict[Key, float]:
        """As `Catalog` has it."""
        found: dict[Key, tuple[float, int]] = {}
        for place, one in enumerate(self.trials):
            if one.key not in found or one.time > found[one.key][0]:
                found[one.key] = one.time, place
        return {key: found[key][0] for key in sorted(found, key=lambda key: found[key][1])}

    def last(self, most: int) -> tuple[Record, ...]:
        """As `Catalog` has it."""
        return self.trials[-most:] if most else ()

    def only(self, choice: Choice) -> Records:
        """As `Catalog` has it."""
        kept = (one for place, one in enumerate(self.trials) if choice.fits(place, one))
        return Records(self.workloads, tuple(kept))

    def beginning(self, start: Start) -> Records:
        """As `Catalog` has it."""
        return replace(self, runs={**self.runs, start.run: Begun(start, len(self.trials))})

    def by_time(self) -> Iterator[Record]:
        """As `Catalog` has it."""
        return iter(sorted(self.trials, key=lambda one: one.time))

    def lines(self) -> Iterator[Line]:
        """Yield workloads, then trials, and the beginning of each run in its place."""
        return laid_out(self.workloads.values(), self.trials, self.runs.values())


def laid_out(workloads: Iterable[Workload], trials: Iterable[Record], begun: Iterable[Begun]) -> Iterator[Line]:
    """Yield the lines of a file: workloads, then trials, and the beginning of each run in its place."""
    yield from workloads
    waiting = deque(sorted(begun, key=lambda one: one.place))
    for place, trial in enumerate(trials):
        while waiting and waiting[0].place <= place:
            yield waiting.popleft().start
        yield trial
    yield from (one.start for one in waiting)


def whats_best(earlier: Mapping[str, Sequence[Record]], decided: Mapping[str, Record]) -> dict[str, Record]:
    """Return what is to be done with each workload, from the fastest of schema 1 and what finals decided."""
    return dict(sorted({**{name: found[0] for name, found in earlier.items()}, **decided}.items()))


def in_rank(trials: Iterable[Record]) -> Iterator[Record]:
    """Yield those trials whose times can be true, the first of each candidate."""
    seen: set[str] = set()
    for trial in trials:
        if trial.samples_s and trial.is_possible and trial.candidate not in seen:
            seen.add(trial.candidate)
            yield trial


def speed(trial: Record) -> tuple[float, str, str, tuple[float, ...]]:
    """Return what trials are ordered by.

    Equal latencies are common with a coarse clock; the order of a file must not decide between them.
    """
    return trial.latency_s, trial.candidate, trial.trace, trial.samples_s
