"""What each query on records means, in plain Python over a list of lines, with random records to compare with it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.support.tunings import KEY, OTHER, TARGET, workload
from toolchain.records import EXPIRY_S, Key, Line, Record, RecordFilter, Records, RunStart, Start, Workload
from toolchain.records.lines import EARLIER
from toolchain.records.results import PRUNED

NOW = 1e9
NAMES = [f"{number:016x}" for number in range(4)]
KEYS = (KEY, Key.of(OTHER), Key.of(TARGET, threads=1), Key.of(TARGET, emulated=True), Key.of({"kind": "none"}))
RUNS = ("", "me", "other")
BOARDS = ("", "bench-1", "bench-2")
TIMES = (0.0, NOW - 1, NOW, NOW - EXPIRY_S)


@st.composite
def trials(draw: st.DrawFn) -> Record:
    """Draw records as equal to each other as those of a coarse clock."""
    samples = draw(st.lists(st.sampled_from([1e-12, 1e-3, 2e-3, 2.0]), max_size=2))
    verdict = draw(st.sampled_from(["", "", "faster", "untuned"])) if samples else ""
    schema = 2 if verdict else draw(st.sampled_from([1, 2]))
    return Record(
        schema=schema,
        workload=draw(st.sampled_from(NAMES)),
        target=draw(st.sampled_from([TARGET, OTHER])),
        tvm=KEY.tvm,
        emulated=draw(st.booleans()),
        candidate=draw(st.sampled_from(NAMES)),
        trace=draw(st.sampled_from(["[]", "[1]", "é\n"])),
        samples_s=tuple(samples),
        cause="" if samples else draw(st.sampled_from(["crash", "spills"])),
        board=draw(st.sampled_from(BOARDS)),
        run=draw(st.sampled_from(RUNS)),
        round=draw(st.integers(0, 2)),
        time=draw(st.sampled_from(TIMES)),
        threads=draw(st.sampled_from([0, 1])) if schema > 1 else 0,
        verdict=verdict,
        among=(NAMES[0],) if verdict or (schema > 1 and draw(st.booleans())) else (),
    )


_WORKLOADS = st.builds(workload, st.integers(0, 3), st.sampled_from(["conv", "dense"]))
_STARTS = st.builds(Start, run=st.sampled_from(RUNS), time=st.just(NOW), fresh=st.booleans())
_NAMES = st.frozensets(st.sampled_from(NAMES))
LINES = st.lists(st.one_of(_WORKLOADS, _STARTS, trials(), trials(), trials()), max_size=12)
FILTERS = st.builds(
    RecordFilter,
    keys=st.none() | st.frozensets(st.sampled_from(KEYS)),
    workloads=st.none() | _NAMES,
    run=st.sampled_from([None, *RUNS]),
    other_than=st.sampled_from([None, *RUNS]),
    board=st.sampled_from([None, None, *BOARDS]),
    without=st.sampled_from([frozenset(), PRUNED]),
    trials=st.booleans(),
    moment=st.sampled_from([None, NOW, NOW + 1]),
    older=st.sampled_from([None, None, *TIMES]),
    before=st.none() | st.integers(0, 9),
    since=st.integers(0, 9),
    renewed=_NAMES,
)


def does_fit(condition: RecordFilter, index: int, record: Record) -> bool:
    """Whether all conditions hold for a record with an index."""
    return (
        (condition.keys is None or record.key in condition.keys)
        and (condition.workloads is None or record.workload in condition.workloads)
        and (condition.run is None or record.run == condition.run)
        and (condition.other_than is None or record.run != condition.other_than)
        and (condition.board is None or record.board == condition.board)
        and record.cause not in condition.without
        and not (condition.trials and record.is_final)
        and (condition.moment is None or condition.moment - record.time <= EXPIRY_S)
        and (condition.older is None or record.time < condition.older)
        and (condition.before is None or index < condition.before)
        and not (index < condition.since and record.workload in condition.renewed)
    )


@dataclass(frozen=True)
class ReferenceRecords:
    """The contents of a file, or a part of its trials with their indices; see `Records`."""

    workloads: dict[str, Workload]
    numbered: tuple[tuple[int, Record], ...]
    runs: dict[str, RunStart]

    @classmethod
    def collect(cls, lines: Iterable[Line]) -> ReferenceRecords:
        """Sort lines by kind. Of several lines of one workload the first counts, of one run the last."""
        workloads: dict[str, Workload] = {}
        trials: list[Record] = []
        runs: dict[str, RunStart] = {}
        for item in lines:
            if isinstance(item, Workload):
                workloads.setdefault(item.workload, item)
            elif isinstance(item, Start):
                runs[item.run] = RunStart(item, len(trials))
            else:
                trials.append(item)
        return cls(workloads, tuple(enumerate(trials)), runs)

    @property
    def trials(self) -> tuple[Record, ...]:
        return tuple(record for _, record in self.numbered)

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(dict.fromkeys(trial.key for trial in self.trials))

    def count(self, *, decisions: bool = False) -> int:
        return sum(bool(trial.verdict) or not decisions for trial in self.trials)

    def of(self, key: Key, workload: str | None = None) -> tuple[Record, ...]:
        records = (record for record in self.trials if workload in {None, record.workload} and record.key == key)
        return tuple(record for record in records if not record.is_final)

    def ranked(self, key: Key, workload: str, schema: int | None = None) -> Iterator[Record]:
        trials = [trial for trial in self.of(key, workload) if schema in {None, trial.schema}]
        candidates: set[str] = set()
        for trial in sorted(trials, key=lambda trial: (trial.latency_s, trial.candidate, trial.trace, trial.samples_s)):
            if trial.samples_s and trial.is_possible and trial.candidate not in candidates:
                candidates.add(trial.candidate)
                yield trial

    def fastest(self, key: Key, keep: int = 1, schema: int | None = None) -> dict[str, tuple[Record, ...]]:
        names = sorted({trial.workload for trial in self.trials})
        ranked = {name: tuple(itertools.islice(self.ranked(key, name, schema), keep)) for name in names}
        return {name: trials for name, trials in ranked.items() if trials}

    def decided(self, key: Key) -> dict[str, Record]:
        return {record.workload: record for record in self.trials if record.verdict and record.key == key}

    def best(self, key: Key) -> dict[str, Record]:
        earlier = {workload: trials[0] for workload, trials in self.fastest(key, 1, EARLIER).items()}
        return dict(sorted({**earlier, **self.decided(key)}.items()))

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
        for index, record in self.numbered:
            if record.key not in latest or record.time > latest[record.key][0]:
                latest[record.key] = record.time, index
        return {key: latest[key][0] for key in sorted(latest, key=lambda key: latest[key][1])}

    def by_time(self) -> Iterator[Record]:
        return iter(sorted(self.trials, key=lambda record: record.time))

    def last(self, count: int) -> tuple[Record, ...]:
        return self.trials[-count:] if count else ()

    def only(self, condition: RecordFilter, *, fits: bool = True) -> ReferenceRecords:
        selected = ((index, record) for index, record in self.numbered if does_fit(condition, index, record) == fits)
        return ReferenceRecords(self.workloads, tuple(selected), self.runs)

    def beginning(self, start: Start) -> ReferenceRecords:
        runs = {**self.runs, start.run: RunStart(start, len(self.numbered))}
        return ReferenceRecords(self.workloads, self.numbered, runs)

    def lines(self) -> Iterator[Line]:
        """Yield the workloads, then the trials, with the beginning of each run at its index."""
        starts = sorted(self.runs.values(), key=lambda run: run.index)
        yield from self.workloads.values()
        for index, trial in self.numbered:
            yield from (run.start for run in starts if run.index <= index)
            starts = [run for run in starts if run.index > index]
            yield trial
        yield from (run.start for run in starts)


def answers(records: Records | ReferenceRecords, condition: RecordFilter | None = None, *, fits: bool = True) -> Any:
    """Return the answers to all queries, in the order in which they come."""
    starting = records.beginning(Start(run="me", time=NOW + 5)).runs
    selected = records.only(condition or RecordFilter(), fits=fits)
    return [
        list(records.workloads.items()),
        list(records.runs.items()),
        starting,
        *_answers(records),
        *_answers(selected),
    ]


def _answers(records: Records | ReferenceRecords) -> list[Any]:
    general = [
        records.trials,
        records.count(),
        records.count(decisions=True),
        records.keys,
        list(records.newest().items()),
        records.last(2),
        records.last(0),
        list(records.by_time()),
        list(records.lines()),
    ]
    return [*general, *(_answers_of_key(records, key) for key in KEYS)]


def _answers_of_key(records: Records | ReferenceRecords, key: Key) -> list[Any]:
    return [
        records.of(key),
        [records.of(key, name) for name in NAMES],
        [list(records.ranked(key, name, schema)) for name in NAMES for schema in (None, 1, 2)],
        [list(records.fastest(key, keep).items()) for keep in (1, 2, 9)],
        list(records.decided(key).items()),
        list(records.best(key).items()),
        list(records.tallies(key).items()),
        [records.latency_s(key, name, candidate) for name in NAMES for candidate in NAMES],
    ]
