"""What is asked of the records of a file, answered by its index: the same answers as those of `Records`."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolchain.records.catalog import EXPIRY_S, Begun, Choice, in_rank, speed, whats_best
from toolchain.records.index.rows import FINAL, FIRST_SCHEMA, POSSIBLE, VERDICT, candidate_sum, key_of, key_text
from toolchain.records.index.store import Store
from toolchain.records.lines import EARLIER, Key, Record, Start, Workload

_RANKED = f"latency IS NOT NULL AND flags & {FINAL | POSSIBLE} = {POSSIBLE}"
_TRIAL = f"flags & {FINAL} = 0"
_FASTEST_FIRST = "ORDER BY latency, place"


@dataclass(frozen=True)
class Indexed:
    """What was in a file at one moment; see `Catalog` for what may be asked.

    Attributes:
        store: The rows.
        runs: Where each run began, the last time that it did.
        condition: What is true of the records that are looked at, in SQL.
        values: What its question marks stand for.
    """

    store: Store
    runs: Mapping[str, Begun] = field(default_factory=dict)
    condition: str = "1"
    values: tuple[float, ...] = ()

    @functools.cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """As `Catalog` has it."""
        return self.store.workloads()

    @property
    def trials(self) -> Collection[Record]:
        """As `Catalog` has it; each is read when its turn comes."""
        return _Trials(self)

    @functools.cached_property
    def keys(self) -> tuple[Key, ...]:
        """As `Catalog` has it."""
        found = [number for (number,) in self.select("DISTINCT key")]
        first = {number: next(self.select("place", f"key = {number}", "ORDER BY place LIMIT 1")) for number in found}
        return tuple(key_of(self.store.texts[number]) for number in sorted(found, key=first.__getitem__))

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        """As `Catalog` has it."""
        return tuple(self.records(f"{self._are(key, workload)} AND {_TRIAL}"))

    def ranked(self, key: Key, workload: str, schema: int | None = None) -> Iterator[Record]:
        """As `Catalog` has it; no more are read than are taken."""
        return in_rank(self._by_speed(f"{self._are(key, workload)} AND {_RANKED} AND {_of_schema(schema)}"))

    def _by_speed(self, condition: str) -> Iterator[Record]:
        for _, equals in itertools.groupby(self.records(condition, _FASTEST_FIRST), lambda one: one.latency_s):
            yield from sorted(equals, key=speed)

    def fastest(self, key: Key, keep: int = 1) -> dict[str, tuple[Record, ...]]:
        """As `Catalog` has it."""
        return self._fastest(key, keep)

    def _fastest(self, key: Key, keep: int, schema: int | None = None) -> dict[str, tuple[Record, ...]]:
        condition = f"{self._are(key)} AND {_RANKED} AND {_of_schema(schema)}"
        names = sorted(self.store.texts[number] for (number,) in self.select("DISTINCT workload", condition))
        return {name: tuple(itertools.islice(self.ranked(key, name, schema), keep)) for name in names if keep}

    def decided(self, key: Key) -> dict[str, Record]:
        """As `Catalog` has it."""
        condition = f"{self._are(key)} AND flags & {VERDICT}"
        rows = self.select("max(place)", condition, "GROUP BY workload ORDER BY min(place)")
        found = (record for (place,) in list(rows) for record in self.records(f"place = {place}"))
        return {record.workload: record for record in found}

    def best(self, key: Key) -> dict[str, Record]:
        """As `Catalog` has it."""
        return whats_best(self._fastest(key, 1, EARLIER), self.decided(key))

    def tallies(self, key: Key) -> dict[str, Counter[str]]:
        """As `Catalog` has it."""
        found: dict[str, Counter[str]] = {}
        condition, end = f"{self._are(key)} AND {_TRIAL}", "GROUP BY workload, cause ORDER BY min(place)"
        for workload, cause, count in self.select("workload, cause, count(*)", condition, end):
            found.setdefault(self.store.texts[workload], Counter())[self.store.texts[cause]] = count
        return found

    def latency_s(self, key: Key, workload: str, candidate: str) -> float:
        """As `Catalog` has it."""
        same = f"{self._are(key, workload)} AND {_TRIAL} AND candidate = {candidate_sum(candidate)}"
        found = self.records(f"{same} AND latency IS NOT NULL", _FASTEST_FIRST)
        return next((one.latency_s for one in found if one.candidate == candidate), math.inf)

    def newest(self) -> dict[Key, float]:
        """As `Catalog` has it."""
        latest = dict(self.select("key, max(time)", end="GROUP BY key"))
        first = {
            key: next(self.select("place", f"key = {key} AND time = ?", "ORDER BY place LIMIT 1", moment))
            for key, moment in latest.items()
        }
        return {key_of(self.store.texts[key]): latest[key] for key in sorted(latest, key=first.__getitem__)}

    def by_time(self) -> Iterator[Record]:
        """As `Catalog` has it."""
        return self.records(end="ORDER BY time, place")

    def last(self, most: int) -> tuple[Record, ...]:
        """As `Catalog` has it."""
        return tuple(self.records(end=f"ORDER BY place DESC LIMIT {most}"))[::-1]

    def only(self, choice: Choice) -> Indexed:
        """As `Catalog` has it."""
        conditions = [self.condition, *self._chosen(choice)]
        values = self.values
        if choice.moment is not None:
            conditions.append(f"? - time <= {EXPIRY_S}")
            values = (*values, choice.moment)
        return Indexed(self.store, {}, " AND ".join(conditions), values)

    def _chosen(self, choice: Choice) -> Iterator[str]:
        if choice.key is not None:
            yield self._are(choice.key)
        if choice.workloads is not None:
            yield self._among("workload", choice.workloads)
        if choice.run is not None:
            yield self._among("run", [choice.run])
        if choice.other_than is not None:
            yield f"NOT {self._among('run', [choice.other_than])}"
        if choice.trials:
            yield _TRIAL
        if choice.before is not None:
            yield f"place < {choice.before}"
        yield f"NOT {self._among('cause', choice.without)}"
        yield f"NOT (place < {choice.since} AND {self._among('workload', choice.renewed)})"

    def beginning(self, start: Start) -> Indexed:
        """As `Catalog` has it."""
        return replace(self, runs={**self.runs, start.run: Begun(start, len(self.trials))})

    def records(self, condition: str = "1", end: str = "ORDER BY place") -> Iterator[Record]:
        """Read the records of which a condition is true, each when its turn comes.

        Raises:
            InputError: A line is not any more what it was when the index was made.
        """
        columns = "at, size, key, workload, run, cause, flags, candidate, time, latency"
        return itertools.starmap(self.store.record, self.select(columns, condition, end))

    def select(self, columns: str, condition: str = "1", end: str = "", *values: float) -> Iterator[tuple[Any, ...]]:
        """Ask the database for some columns of the rows of these records of which a condition is true."""
        query = f"SELECT {columns} FROM trial WHERE ({self.condition}) AND ({condition}) {end}"  # noqa: S608 - of ours
        return self.store.database.execute(query, (*self.values, *values))

    def _are(self, key: Key, workload: str | None = None) -> str:
        """Return the condition that records are for a key, and of a workload."""
        of_key = self._among("key", [key_text(key)])
        return of_key if workload is None else f"{of_key} AND {self._among('workload', [workload])}"

    def _among(self, column: str, texts: Collection[str]) -> str:
        """Return the condition that a column has one of some texts; only the numbers of texts are ever in a query."""
        numbers = sorted(self.store.words[text] for text in texts if text in self.store.words)
        return f"{column} IN ({', '.join(map(str, numbers))})"


def _of_schema(schema: int | None) -> str:
    return "1" if schema is None else f"(flags & {FIRST_SCHEMA} != 0) = {int(schema == EARLIER)}"


@dataclass(frozen=True)
class _Trials(Collection[Record]):
    """Some records of a file in the order of the file, each read when its turn comes."""

    of: Indexed

    def __len__(self) -> int:
        return int(next(self.of.select("count(*)"))[0])

    def __iter__(self) -> Iterator[Record]:
        return self.of.records()

    def __contains__(self, record: object) -> bool:
        return any(one == record for one in self)
