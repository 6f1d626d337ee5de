"""Which records of a file a tuning run uses, and the records that it writes as soon as their results are known.

It uses those that others had made when it began, and its own. What others append after that changes nothing for the
run, so that a resumed run is the same as one that was never interrupted. Finals use all records that are there by then:
the more candidates they know, the better is their choice.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from toolchain.records import Key, Record, RecordFile, RecordFilter, Records, RunStart, Start, traces
from toolchain.records.results import LEAST_S, PRUNED
from toolchain.records.tasks import Task, layer_of
from toolchain.tuning.plan import Plan
from toolchain.tuning.search import Candidate, Search
from toolchain.tuning.task_state import TaskState
from toolchain.tuning.trials import Measured

_MOST_EARLIER = 1000  # records of other runs that a run learns from: rebuilding a schedule takes milliseconds

_TOO_SHORT = "a run is shorter than the resolution of the board's clock; increase --number or --min-repeat-ms"


@dataclass(frozen=True)
class RecordsView:
    """The records that a run uses.

    Attributes:
        records: All records of the file.
        key: What the run's records are made for.
        start: The beginning of the run.
        workloads: The kernels that it tunes.
    """

    records: Records
    key: Key
    start: Start
    workloads: Collection[str]

    @property
    def run_start(self) -> RunStart:
        """Where the run began; at the top of a file from which that line was removed in the meantime."""
        return self.records.runs.get(self.start.run, RunStart(self.start, 0))

    def earlier(self, most: int = _MOST_EARLIER) -> tuple[Record, ...]:
        """Return the last trials of other runs from before this run began.

        Candidates that a model ruled out for them are not among them: this run may measure those.
        """
        run = self.run_start
        others = replace(self._filter, before=run.index, other_than=self.start.run, without=PRUNED, trials=True)
        return self.records.only(others).last(most)

    def own(self) -> dict[int, list[Record]]:
        rounds: dict[int, list[Record]] = {}
        for record in self.records.only(replace(self._filter, run=self.start.run, trials=True)).trials:
            rounds.setdefault(record.round, []).append(record)
        return rounds

    def now(self) -> Records:
        """Return all present records of the run's kernels: what finals choose from, and what they decided."""
        return self.records.only(replace(self._filter, workloads=frozenset(self.workloads)))

    @property
    def _filter(self) -> RecordFilter:
        """The records for the run's key that have not expired; a fresh run ignores older ones of its kernels."""
        run = self.run_start
        stale = frozenset(self.workloads) if run.start.fresh else frozenset()
        return RecordFilter(frozenset({self.key}), moment=run.start.time, since=run.index, renewed=stale)


def learn_earlier(view: RecordsView, search: Search, states: Sequence[TaskState], target: tvm.target.Target) -> None:
    """Let a search and its tasks learn from the records of other runs, also of kernels that this run does not tune."""
    by_workload = {state.task.workload: state for state in states}
    for workload, group in itertools.groupby(view.earlier(), key=lambda record: record.workload):
        state, records = by_workload.get(workload), list(group)
        if state is not None:
            # Traces of an older toolchain may no longer fit.
            rebuilt = [(search.rebuild(state.task, json.loads(record.trace)), record) for record in records]
            pairs = [(candidate, record) for candidate, record in rebuilt if candidate is not None]
            search.learn(state.task, [candidate for candidate, _ in pairs], [record.samples_s for _, record in pairs])
            state.begin(min((record.latency_s for _, record in pairs), default=math.inf))
        elif workload in view.records.workloads:
            _learn_costs(search, tvm.ir.load_json(view.records.workloads[workload].text()), records, target)


def _learn_costs(search: Search, module: tvm.IRModule, records: Sequence[Record], target: tvm.target.Target) -> None:
    """Teach the cost model by the records of a kernel that the run does not tune."""
    if layer_of(module["main"]):
        return  # a template's kernel has no schedule that the cost model could learn from
    rebuilder = traces.Rebuilder(module, target)
    rebuilt = [(rebuilder.from_json(json.loads(record.trace)), record.samples_s) for record in records]
    pairs = [(schedule, samples) for schedule, samples in rebuilt if schedule is not None]
    search.learn_costs(module, [schedule for schedule, _ in pairs], [samples for _, samples in pairs])


class Ledger:
    """Writes the records of one run; thread-safe.

    Attributes:
        lock: Held while a record is written and noted.
    """

    def __init__(self, file: RecordFile, run: str, key: Key, plan: Plan) -> None:
        self._file = file
        self._run = run
        self._key = key
        self._target = json.loads(key.target)
        self._plan = plan
        self.lock = threading.Lock()

    def write(self, record: Record, note: Callable[[], None]) -> None:
        """Write a record, and call `note` before the next one is written.

        Raises:
            InputError: It cannot be written.
        """
        with self.lock:
            # Both under one lock: the order of the counts is that of the file.
            self._file.append([record])
            note()

    def line(self, task: Task, candidate: Candidate, measured: Measured, **fields: Any) -> Record:
        """Return the record of a measurement with further `fields`; impossibly short times are a failure."""
        # A coarse clock reads 0 for a short run; such a time would win every final.
        if any(sample < LEAST_S for sample in measured.samples_s):
            measured = replace(measured, samples_s=(), cause="suspicious", error=_TOO_SHORT)
        return Record(
            workload=task.workload,
            target=self._target,
            tvm=self._key.tvm,
            emulated=self._key.emulated,
            modelled=self._key.modelled,
            candidate=candidate.key,
            trace=json.dumps(candidate.trace, separators=(",", ":")),
            samples_s=measured.samples_s,
            cause=measured.cause,
            error=measured.error,
            board=measured.board,
            run=self._run,
            tuner=self._plan.tuner,
            seed=self._plan.seed,
            time=round(time.time(), 3),
            threads=self._key.threads,
            options=self._plan.options.recorded,
            **fields,
        )
