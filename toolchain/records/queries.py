"""Queries on tuning records, which SQLite answers: of a small file in memory, of a large one by its index."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolchain.records import index
from toolchain.records.lines import EARLIER, Key, Line, Record, Start, Workload, encode, parse
from toolchain.records.tables import Tables, candidate_sum, key_of, key_text, row

EXPIRY_S = 180 * 86400.0
"""Seconds after which a record expires: a run measures its candidate again. Builds still apply it."""

Tell = Callable[[str], None]
"""Called with the steps of a long operation."""

_FASTEST_FIRST = "ORDER BY latency, position"


def silent(_line: str) -> None:
    """Report nothing."""


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
        keys: The record has one of these keys.
        workloads: It is of one of these kernels.
        run: It is of this run.
        other_than: It is of any other run.
        board: It was measured on the board of this name.
        without: It has none of these causes.
        trials: It is of a trial, not of a final.
        moment: It has not expired at this time, in seconds since 1970 (UTC).
        older: It was measured before this time, in seconds since 1970 (UTC).
        before: Its index is lower.
        since: Its index is at least this, if it is of one of the kernels `renewed`.
        renewed: See `since`.
    """

    keys: frozenset[Key] | None = None
    workloads: frozenset[str] | None = None
    run: str | None = None
    other_than: str | None = None
    board: str | None = None
    without: frozenset[str] = frozenset()
    trials: bool = False
    moment: float | None = None
    older: float | None = None
    before: int | None = None
    since: int = 0
    renewed: frozenset[str] = frozenset()

    def to_sql(self, tables: Tables) -> tuple[str, tuple[float, ...]]:
        """Return the condition in SQL, and the values of its parameters."""
        limits = {f"? - time <= {EXPIRY_S}": self.moment, "time < ?": self.older}
        values = {text: value for text, value in limits.items() if value is not None}
        is_in = tables.is_in
        conditions: dict[str, bool] = {
            **dict.fromkeys(values, True),
            is_in("key", map(key_text, self.keys or ())): self.keys is not None,
            is_in("workload", self.workloads or ()): self.workloads is not None,
            is_in("run", [self.run or ""]): self.run is not None,
            f"NOT {is_in('run', [self.other_than or ''])}": self.other_than is not None,
            is_in("board", [self.board or ""]): self.board is not None,
            f"NOT {is_in('cause', self.without)}": bool(self.without),
            "NOT final": self.trials,
            f"position < {self.before}": self.before is not None,
            f"NOT (position < {self.since} AND {is_in('workload', self.renewed)})": bool(self.renewed),
        }
        return " AND ".join([text for text, applies in conditions.items() if applies] or ["1"]), tuple(values.values())


@dataclass(frozen=True)
class Records:
    """The contents of a file at one time, or a part of them.

    Attributes:
        tables: The facts of all lines of the file.
        runs: The last beginning of each run.
        condition: SQL condition for the records of this part.
        values: Values of its parameters.
    """

    tables: Tables
    runs: Mapping[str, RunStart] = field(default_factory=dict)
    condition: str = "1"
    values: tuple[float, ...] = ()

    @classmethod
    def open(cls, path: Path, tell: Tell = silent) -> Records:
        """Read a file, or the index of a large one, which is created or updated.

        Raises:
            InputError: A line is damaged.
            OSError: The file cannot be read.
        """
        if path.stat().st_size < index.LEAST:
            return cls.collect(parse(path.read_bytes(), str(path)))
        return cls._in(index.open_index(path, tell))

    @classmethod
    def collect(cls, lines: Iterable[Line] = ()) -> Records:
        items = list(lines)
        tables = Tables(lambda at, _size, _checksum: items[at])
        tables.add(row(item, at) for at, item in enumerate(items))
        tables.create_index()
        return cls._in(tables)

    @classmethod
    def _in(cls, tables: Tables) -> Records:
        starts = ((line, index) for line, index in tables.lines("run") if isinstance(line, Start))
        return cls(tables, {start.run: RunStart(start, index) for start, index in starts})

    @functools.cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """The kernels by their hash; the first line of each counts."""
        workloads: dict[str, Workload] = {}
        for line, _ in self.tables.lines("workload"):
            if isinstance(line, Workload):
                workloads.setdefault(line.workload, line)
        return workloads

    @property
    def trials(self) -> tuple[Record, ...]:
        """All trials and decisions, in the order of the file; `records` reads them lazily."""
        return tuple(self.records())

    def count(self, *, decisions: bool = False) -> int:
        """Return the number of records, or of decisions among them."""
        (count,) = next(self._select("count(*)", "decision" if decisions else "1"))
        return int(count)

    @functools.cached_property
    def keys(self) -> tuple[Key, ...]:
        """The keys of all records, in the order of their first record."""
        numbers = self._select("key", end="GROUP BY key ORDER BY min(position)")
        return tuple(key_of(self.tables.texts[number]) for (number,) in numbers)

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        """Return the trials for a key, or those of one workload among them, in the order of the file."""
        return tuple(self.records(f"{self._matches(key, workload)} AND NOT final"))

    def ranked(self, key: Key, workload: str, schema: int | None = None) -> Iterator[Record]:
        """Yield the possible trials of a workload, only the best of each candidate, the fastest first.

        Args:
            key: Their key.
            workload: Hash of the workload.
            schema: Their schema; None for any.
        """
        return self._best_of_candidates(f"{self._matches(key, workload)} AND {_ranked(schema)}")

    def _best_of_candidates(self, condition: str, *values: float) -> Iterator[Record]:
        trials = self.records(condition, _FASTEST_FIRST, *values)
        by_latency = itertools.groupby(trials, lambda trial: trial.latency_s)
        candidates: set[str] = set()
        # Lazily, since callers take only the first few.
        for _, equals in by_latency:
            # Equal latencies are common with a coarse clock; the order of a file must not decide between them.
            for trial in sorted(equals, key=lambda trial: (trial.candidate, trial.trace, trial.samples_s)):
                if trial.candidate not in candidates:
                    candidates.add(trial.candidate)
                    yield trial

    def fastest(self, key: Key, keep: int = 1, schema: int | None = None) -> dict[str, tuple[Record, ...]]:
        """Return for each workload up to `keep` trials as `ranked` yields them."""
        condition = f"{self._matches(key)} AND {_ranked(schema)}"
        fastest = {}
        for name in sorted(self.names("workload", condition)) if keep else ():
            # With a parameter, SQLite compiles the query once: that takes longer than to run it.
            ranked = self._best_of_candidates(f"workload = ? AND {condition}", self.tables.numbers[name])
            fastest[name] = tuple(itertools.islice(ranked, keep))
        return fastest

    def decided(self, key: Key) -> dict[str, Record]:
        """Return the last decision of each workload that has one."""
        condition = f"{self._matches(key)} AND decision"
        # Decisions of a workload are in the order of the file, so the last one has the highest position.
        rows = self._select("max(position)", condition, "GROUP BY workload ORDER BY min(position)")
        records = (record for (position,) in list(rows) for record in self.records("position = ?", "", position))
        return {record.workload: record for record in records}

    def best(self, key: Key) -> dict[str, Record]:
        """Return the record that decides about each workload: its last decision.

        Without a decision, the fastest trial of schema 1 decides, as it did before there were finals. A workload that
        has neither is left out: its trials only nominate candidates for a final.
        """
        fastest = {workload: records[0] for workload, records in self.fastest(key, 1, EARLIER).items()}
        return dict(sorted({**fastest, **self.decided(key)}.items()))

    def tallies(self, key: Key) -> dict[str, Counter[str]]:
        """Count the trials of each workload by their cause, which is empty for those with a latency."""
        counts: dict[str, Counter[str]] = {}
        condition, end = f"{self._matches(key)} AND NOT final", "GROUP BY workload, cause ORDER BY min(position)"
        for workload, cause, count in self._select("workload, cause, count(*)", condition, end):
            counts.setdefault(self.tables.texts[workload], Counter())[self.tables.texts[cause]] = count
        return counts

    def latency_s(self, key: Key, workload: str, candidate: str) -> float:
        """Return the lowest latency of a candidate, in seconds; infinite if there is none."""
        # The checksum of a candidate is not unique, so the candidate itself is compared, too.
        same_sum = f"{self._matches(key, workload)} AND NOT final AND candidate = {candidate_sum(candidate)}"
        trials = self.records(f"{same_sum} AND latency IS NOT NULL", _FASTEST_FIRST)
        return next((trial.latency_s for trial in trials if trial.candidate == candidate), math.inf)

    def newest(self) -> dict[Key, float]:
        """Return when the last record for each key was measured; of equals, the one that stands first is first."""
        latest = dict(self._select("key, max(time)", end="GROUP BY key"))
        first = {
            key: next(self._select("position", f"key = {key} AND time = ?", "ORDER BY position LIMIT 1", moment))
            for key, moment in latest.items()
        }
        return {key_of(self.tables.texts[key]): latest[key] for key in sorted(latest, key=first.__getitem__)}

    def by_time(self) -> Iterator[Record]:
        """Yield all records in the order of their time; those of the same time stay in the order of the file."""
        return self.records(end="ORDER BY time, position")

    def last(self, count: int) -> tuple[Record, ...]:
        """Return up to `count` records from the end, in the order of the file."""
        return tuple(self.records(end=f"ORDER BY position DESC LIMIT {count}"))[::-1]

    def names(self, column: str, condition: str = "1") -> set[str]:
        """Return the different texts of a column."""
        return {self.tables.texts[number] for (number,) in self._select(f"DISTINCT {column}", condition)}

    def only(self, condition: RecordFilter, *, fits: bool = True) -> Records:
        """Return the records that fit a filter, or those that do not. Indices stay those in the whole file."""
        text, values = condition.to_sql(self.tables)
        part = f"({self.condition}) AND {'' if fits else 'NOT '}({text})"
        return replace(self, condition=part, values=(*self.values, *values))

    def beginning(self, start: Start) -> Records:
        """Return the same contents with a run beginning at the end of the file."""
        return replace(self, runs={**self.runs, start.run: RunStart(start, self.count())})

    def lines(self) -> Iterator[Line]:
        """Yield the lines of a file: workloads, then trials, with the beginning of each run at its index."""
        yield from self.workloads.values()
        waiting = deque(sorted(self.runs.values(), key=lambda run: run.index))
        for position, *at in self._select("position, at, size, checksum", end="ORDER BY position"):
            while waiting and waiting[0].index <= position:
                yield waiting.popleft().start
            yield self.tables.read(*at)
        yield from (run.start for run in waiting)

    def records(self, condition: str = "1", end: str = "ORDER BY position", *values: float) -> Iterator[Record]:
        """Read the records of which an SQL condition is true, lazily.

        Raises:
            InputError: A line has changed since the index was made.
        """
        lines = itertools.starmap(self.tables.read, self._select("at, size, checksum", condition, end, *values))
        return (line for line in lines if isinstance(line, Record))

    def _select(self, columns: str, condition: str = "1", end: str = "", *values: float) -> Iterator[tuple[Any, ...]]:
        """Query columns of the rows of these records of which an SQL condition is true."""
        query = f"SELECT {columns} FROM trial WHERE ({self.condition}) AND ({condition}) {end}"  # noqa: S608 - of ours
        return self.tables.database.execute(query, (*self.values, *values))

    def _matches(self, key: Key, workload: str | None = None) -> str:
        """Return the SQL condition that records are for a key, and of a workload."""
        of_key = self.tables.is_in("key", [key_text(key)])
        return of_key if workload is None else f"{of_key} AND {self.tables.is_in('workload', [workload])}"


def _ranked(schema: int | None) -> str:
    """Return the SQL condition that trials have a possible latency, and a schema unless it is None."""
    return f"NOT final AND possible AND latency IS NOT NULL AND {'1' if schema is None else f'schema = {schema}'}"


def best_bytes(records: Records, key: Key, only: Collection[str] | None = None) -> bytes:
    """Return the deciding record of each workload as the bytes of a file, without who measured it, where and when.

    `only` has the hashes of the workloads to return; all by default.
    """
    best = {name: record for name, record in records.best(key).items() if only is None or name in only}
    workloads = [records.workloads[name] for name in best if name in records.workloads]
    return encode([*workloads, *(record.canonical() for record in best.values())])
