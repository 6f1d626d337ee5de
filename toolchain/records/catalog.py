"""Queries on the records of a file: the `Catalog` interface, and `Records`, which answers them from memory."""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from toolchain.records.lines import EARLIER, Key, Line, Record, Start, Workload

EXPIRY_S = 180 * 86400.0
"""Seconds after which a record expires: a run measures its candidate again. Builds still apply it."""


@dataclass(frozen=True)
class RunStart:
    """The beginning of a run.

    Attributes:
        start: Its line.
        index: Number of trials before that line.
    """

    start: Start
    index: int


@dataclass(frozen=True)
class RecordFilter:
    """Conditions for records; all that are given must hold. An index is the number of trials before a record.

    Attributes:
        key: The key of the record.
        workloads: The record is of one of these kernels.
        run: It is of this run.
        other_than: It is of any other run.
        without: It has none of these causes.
        trials: It is of a trial, not of a final.
        moment: It has not expired at this time, in seconds since 1970 (UTC).
        before: Its index is lower.
        since: Its index is at least this, if it is of one of the kernels `renewed`.
        renewed: See `since`.
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

    def fits(self, index: int, record: Record) -> bool:
        """Whether all conditions hold for a record with an index."""
        return (
            (self.before is None or index < self.before)
            and (self.workloads is None or record.workload in self.workloads)
            and (self.run is None or record.run == self.run)
            and (self.other_than is None or record.run != self.other_than)
            and record.cause not in self.without
            and not (self.trials and record.is_final)
            and (self.moment is None or self.moment - record.time <= EXPIRY_S)
            and not (index < self.since and record.workload in self.renewed)
            and self.key in {None, record.key}
        )


class Catalog(Protocol):
    """The contents of a file at one time: `Records` answers from memory, `Indexed` from an index of a large file."""

    @property
    def workloads(self) -> Mapping[str, Workload]:
        """The kernels by their hash."""

    @property
    def runs(self) -> Mapping[str, RunStart]:
        """The last beginning of each run."""

    @property
    def trials(self) -> Collection[Record]:
        """All trials and decisions, in the order of the file."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of all records, in the order of their first record."""

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        """Return the trials for a key, or those of one workload among them, in the order of the file."""

    def ranked(self, key: Key, workload: str, schema: int | None = None) -> Iterator[Record]:
        """Yield the possible trials of a workload, only the best of each candidate, the fastest first.

        Args:
            key: Their key.
            workload: Hash of the workload.
            schema: Their schema; None for any.
        """

    def fastest(self, key: Key, keep: int = 1) -> dict[str, tuple[Record, ...]]:
        """Return for each workload up to `keep` trials as `ranked` yields them."""

    def decided(self, key: Key) -> dict[str, Record]:
        """Return the last decision of each workload that has one."""

    def best(self, key: Key) -> dict[str, Record]:
        """Return the record that decides about each workload: its last decision.

        Without a decision, the fastest trial of schema 1 decides, as it did before there were finals. A workload that
        has neither is left out: its trials only nominate candidates for a final.
        """

    def tallies(self, key: Key) -> dict[str, Counter[str]]:
        """Count the trials of each workload by their cause, which is empty for those with a latency."""

    def latency_s(self, key: Key, workload: str, candidate: str) -> float:
        """Return the lowest latency of a candidate, in seconds; infinite if there is none."""

    def newest(self) -> dict[Key, float]:
        """Return when the last record for each key was measured; of equals, the one that stands first is first."""

    def by_time(self) -> Iterator[Record]:
        """Yield all records in the order of their time; those of the same time stay in the order of the file."""

    def last(self, count: int) -> tuple[Record, ...]:
        """Return up to `count` records from the end, in the order of the file."""

    def only(self, condition: RecordFilter) -> Catalog:
        """Return the records that fit a filter, without runs.

        Indices are those in the whole file, so a part must not be filtered by index again.
        """

    def beginning(self, start: Start) -> Catalog:
        """Return the same contents with a run beginning at the end of the file."""


class CatalogBase(ABC):
    """The answers that `Records` and `Indexed` derive from others; see `Catalog`."""

    @abstractmethod
    def _fastest(self, key: Key, keep: int, schema: int | None = None) -> dict[str, tuple[Record, ...]]: ...

    @abstractmethod
    def decided(self, key: Key) -> dict[str, Record]: ...

    def fastest(self, key: Key, keep: int = 1) -> dict[str, tuple[Record, ...]]:
        return self._fastest(key, keep)

    def best(self, key: Key) -> dict[str, Record]:
        earlier = {workload: records[0] for workload, records in self._fastest(key, 1, EARLIER).items()}
        return dict(sorted({**earlier, **self.decided(key)}.items()))


@dataclass(frozen=True)
class Records(CatalogBase):
    """The contents of a file in memory; see `Catalog`."""

    workloads: Mapping[str, Workload] = field(default_factory=dict)
    trials: tuple[Record, ...] = ()
    runs: Mapping[str, RunStart] = field(default_factory=dict)

    @classmethod
    def collect(cls, items: Iterable[Line]) -> Records:
        """Sort lines by kind. Of several lines of one workload the first counts, of one run the last."""
        workloads: dict[str, Workload] = {}
        trials: list[Record] = []
        runs: dict[str, RunStart] = {}
        for item in items:
            if isinstance(item, Workload):
                workloads.setdefault(item.workload, item)
            elif isinstance(item, Start):
                runs[item.run] = RunStart(item, len(trials))
            else:
                trials.append(item)
        return cls(workloads, tuple(trials), runs)

    @functools.cached_property
    def keys(self) -> tuple[Key, ...]:
        return tuple(dict.fromkeys(trial.key for trial in self.trials))

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        records = (record for record in self.trials if workload in {None, record.workload} and record.key == key)
        return tuple(record for record in records if not record.is_final)

    def ranked(self, key: Key, workload: str, schema: int | None = None) -> Iterator[Record]:
        trials = (trial for trial in self.of(key, workload) if schema in {None, trial.schema})
        return best_of_candidates(sorted(trials, key=sort_key))

    def _fastest(self, key: Key, keep: int, schema: int | None = None) -> dict[str, tuple[Record, ...]]:
        by_workload: dict[str, list[Record]] = {}
        for trial in self.of(key):
            if schema in {None, trial.schema}:
                by_workload.setdefault(trial.workload, []).append(trial)
        fastest = {}
        for workload in sorted(by_workload):
            ranked = best_of_candidates(sorted(by_workload[workload], key=sort_key))
            fastest[workload] = tuple(itertools.islice(ranked, keep))
        return {workload: trials for workload, trials in fastest.items() if trials}

    def decided(self, key: Key) -> dict[str, Record]:
        return {record.workload: record for record in self.trials if record.verdict and record.key == key}

    def tallies(self, key: Key) -> dict[str, Counter[str]]:
        counts: dict[str, Counter[str]] = {}
        for trial in self.of(key):
            counts.setdefault(trial.workload, Counter())[trial.cause] += 1
        return counts

    def latency_s(self, key: Key, workload: str, candidate: str) -> float:
        trials = (trial for trial in self.of(key, workload) if trial.candidate == candidate)
        return min((trial.latency_s for trial in trials), default=math.inf)

    def newest(self) -> dict[Key, float]:
        latest: dict[Key, tuple[float, int]] = {}
        for index, record in enumerate(self.trials):
            if record.key not in latest or record.time > latest[record.key][0]:
                latest[record.key] = record.time, index
        return {key: latest[key][0] for key in sorted(latest, key=lambda key: latest[key][1])}

    def last(self, count: int) -> tuple[Record, ...]:
        return self.trials[-count:] if count else ()

    def only(self, condition: RecordFilter) -> Records:
        fitting = (record for index, record in enumerate(self.trials) if condition.fits(index, record))
        return Records(self.workloads, tuple(fitting))

    def beginning(self, start: Start) -> Records:
        return replace(self, runs={**self.runs, start.run: RunStart(start, len(self.trials))})

    def by_time(self) -> Iterator[Record]:
        return iter(sorted(self.trials, key=lambda record: record.time))

    def lines(self) -> Iterator[Line]:
        """Yield the lines of a file with these contents; see `to_lines`."""
        return to_lines(self.workloads.values(), self.trials, self.runs.values())


def to_lines(workloads: Iterable[Workload], trials: Iterable[Record], runs: Iterable[RunStart]) -> Iterator[Line]:
    """Yield the lines of a file: workloads, then trials, with the beginning of each run at its index."""
    yield from workloads
    waiting = deque(sorted(runs, key=lambda run: run.index))
    for index, trial in enumerate(trials):
        while waiting and waiting[0].index <= index:
            yield waiting.popleft().start
        yield trial
    yield from (run.start for run in waiting)


def best_of_candidates(trials: Iterable[Record]) -> Iterator[Record]:
    """Yield of sorted trials the possible ones, the first of each candidate."""
    candidates: set[str] = set()
    for trial in trials:
        if trial.samples_s and trial.is_possible and trial.candidate not in candidates:
            candidates.add(trial.candidate)
            yield trial


def sort_key(trial: Record) -> tuple[float, str, str, tuple[float, ...]]:
    """Return what trials are ordered by.

    Equal latencies are common with a coarse clock; the order of a file must not decide between them.
    """
    return trial.latency_s, trial.candidate, trial.trace, trial.samples_s
