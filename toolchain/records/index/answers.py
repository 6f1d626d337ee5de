"""Queries on the records of a file, answered by its index with the same results as `Records`."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolchain.records.catalog import EXPIRY_S, CatalogBase, RecordFilter, RunStart, best_of_candidates, sort_key
from toolchain.records.index.rows import FINAL, FIRST_SCHEMA, POSSIBLE, VERDICT, candidate_sum, key_of, key_text
from toolchain.records.index.store import Store
from toolchain.records.lines import EARLIER, Key, Record, Start, Workload

_RANKED = f"latency IS NOT NULL AND flags & {FINAL | POSSIBLE} = {POSSIBLE}"
_TRIAL = f"flags & {FINAL} = 0"
_FASTEST_FIRST = "ORDER BY latency, place"


@dataclass(frozen=True)
class Indexed(CatalogBase):
    """The contents of a file through its index; see `Catalog`.

    Attributes:
        store: The index.
        runs: The last beginning of each run.
        condition: SQL condition for the records.
        values: Values of its parameters.
    """

    store: Store
    runs: Mapping[str, RunStart] = field(default_factory=dict)
    condition: str = "1"
    values: tuple[float, ...] = ()

    @functools.cached_property
    def workloads(self) -> Mapping[str, Workload]:
        return self.store.workloads()

    @property
    def trials(self) -> Collection[Record]:
        return _Trials(self)

    @functools.cached_property
    def keys(self) -> tuple[Key, ...]:
        numbers = [number for (number,) in self.select("DISTINCT key")]
        first = {number: next(self.select("place", f"key = {number}", "ORDER BY place LIMIT 1")) for number in numbers}
        return tuple(key_of(self.store.texts[number]) for number in sorted(numbers, key=first.__getitem__))

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        return tuple(self.records(f"{self._matches(key, workload)} AND {_TRIAL}"))

    def ranked(self, key: Key, workload: str, schema: int | None = None) -> Iterator[Record]:
        condition = f"{self._matches(key, workload)} AND {_RANKED} AND {_of_schema(schema)}"
        by_latency = itertools.groupby(self.records(condition, _FASTEST_FIRST), lambda trial: trial.latency_s)
        # Lazily, since callers take only the first few.
        return best_of_candidates(trial for _, equals in by_latency for trial in sorted(equals, key=sort_key))

    def _fastest(self, key: Key, keep: int, schema: int | None = None) -> dict[str, tuple[Record, ...]]:
        condition = f"{self._matches(key)} AND {_RANKED} AND {_of_schema(schema)}"
        names = sorted(self.store.texts[number] for (number,) in self.select("DISTINCT workload", condition))
        return {name: tuple(itertools.islice(self.ranked(key, name, schema), keep)) for name in names if keep}

    def decided(self, key: Key) -> dict[str, Record]:
        condition = f"{self._matches(key)} AND flags & {VERDICT}"
        # Decisions of a workload are in the order of the file, so the last one has the highest place.
        rows = self.select("max(place)", condition, "GROUP BY workload ORDER BY min(place)")
        records = (record for (index,) in list(rows) for record in self.records(f"place = {index}"))
        return {record.workload: record for record in records}

    def tallies(self, key: Key) -> dict[str, Counter[str]]:
        counts: dict[str, Counter[str]] = {}
        condition, end = f"{self._matches(key)} AND {_TRIAL}", "GROUP BY workload, cause ORDER BY min(place)"
        for workload, cause, count in self.select("workload, cause, count(*)", condition, end):
            counts.setdefault(self.store.texts[workload], Counter())[self.store.texts[cause]] = count
        return counts

    def latency_s(self, key: Key, workload: str, candidate: str) -> float:
        # The checksum of a candidate is not unique, so the candidate itself is compared, too.
        same_sum = f"{self._matches(key, workload)} AND {_TRIAL} AND candidate = {candidate_sum(candidate)}"
        trials = self.records(f"{same_sum} AND latency IS NOT NULL", _FASTEST_FIRST)
        return next((trial.latency_s for trial in trials if trial.candidate == candidate), math.inf)

    def newest(self) -> dict[Key, float]:
        latest = dict(self.select("key, max(time)", end="GROUP BY key"))
        first = {
            key: next(self.select("place", f"key = {key} AND time = ?", "ORDER BY place LIMIT 1", moment))
            for key, moment in latest.items()
        }
        return {key_of(self.store.texts[key]): latest[key] for key in sorted(latest, key=first.__getitem__)}

    def by_time(self) -> Iterator[Record]:
        return self.records(end="ORDER BY time, place")

    def last(self, count: int) -> tuple[Record, ...]:
        return tuple(self.records(end=f"ORDER BY place DESC LIMIT {count}"))[::-1]

    def only(self, condition: RecordFilter) -> Indexed:
        conditions = [self.condition, *self._to_sql(condition)]
        values = self.values
        if condition.moment is not None:
            conditions.append(f"? - time <= {EXPIRY_S}")
            values = (*values, condition.moment)
        return Indexed(self.store, {}, " AND ".join(conditions), values)

    def _to_sql(self, condition: RecordFilter) -> Iterator[str]:
        if condition.key is not None:
            yield self._matches(condition.key)
        if condition.workloads is not None:
            yield self._is_in("workload", condition.workloads)
        if condition.run is not None:
            yield self._is_in("run", [condition.run])
        if condition.other_than is not None:
            yield f"NOT {self._is_in('run', [condition.other_than])}"
        if condition.trials:
            yield _TRIAL
        if condition.before is not None:
            yield f"place < {condition.before}"
        yield f"NOT {self._is_in('cause', condition.without)}"
        yield f"NOT (place < {condition.since} AND {self._is_in('workload', condition.renewed)})"

    def beginning(self, start: Start) -> Indexed:
        return replace(self, runs={**self.runs, start.run: RunStart(start, len(self.trials))})

    def records(self, condition: str = "1", end: str = "ORDER BY place") -> Iterator[Record]:
        """Read the records of which an SQL condition is true, lazily.

        Raises:
            InputError: A line has changed since the index was made.
        """
        columns = "at, size, key, workload, run, cause, flags, candidate, time, latency"
        return itertools.starmap(self.store.record, self.select(columns, condition, end))

    def select(self, columns: str, condition: str = "1", end: str = "", *values: float) -> Iterator[tuple[Any, ...]]:
        """Query columns of the rows of these records of which an SQL condition is true."""
        query = f"SELECT {columns} FROM trial WHERE ({self.condition}) AND ({condition}) {end}"  # noqa: S608 - of ours
        return self.store.database.execute(query, (*self.values, *values))

    def _matches(self, key: Key, workload: str | None = None) -> str:
        """Return the SQL condition that records are for a key, and of a workload."""
        of_key = self._is_in("key", [key_text(key)])
        return of_key if workload is None else f"{of_key} AND {self._is_in('workload', [workload])}"

    def _is_in(self, column: str, texts: Collection[str]) -> str:
        """Return the SQL condition that a column is one of some texts. Only numbers of texts are ever in a query."""
        numbers = sorted(self.store.words[text] for text in texts if text in self.store.words)
        return f"{column} IN ({', '.join(map(str, numbers))})"


def _of_schema(schema: int | None) -> str:
    return "1" if schema is None else f"(flags & {FIRST_SCHEMA} != 0) = {int(schema == EARLIER)}"


@dataclass(frozen=True)
class _Trials(Collection[Record]):
    """Records in the order of the file, read lazily."""

    indexed: Indexed

    def __len__(self) -> int:
        return int(next(self.indexed.select("count(*)"))[0])

    def __iter__(self) -> Iterator[Record]:
        return self.indexed.records()

    def __contains__(self, record: object) -> bool:
        return any(other == record for other in self)
