"""A tuning run: search rounds of candidates, build, measure and record them, until a limit is reached.

While one round is searched, earlier ones are built and measured: as many as the run's pace says. What a round proposes
depends only on the results of the rounds before those, whatever order results arrive in. So a run resumes from its
records alone: complete rounds in the records are learned from, the first incomplete one is proposed again, and only its
missing candidates are measured. After the search, finals decide.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

import tvm

from toolchain import interrupts
from toolchain.backends.base import Backend, Choice
from toolchain.errors import BuildError
from toolchain.progress import Stages
from toolchain.records import Key, Record, RecordFile, Records, Start, Workload
from toolchain.records.lines import modelled_by
from toolchain.records.tasks import Task
from toolchain.tuning import finals, task_state
from toolchain.tuning.conveyor import STAGES, Conveyor, Pruner, Round
from toolchain.tuning.finals import Decider
from toolchain.tuning.plan import Pace, Plan
from toolchain.tuning.records_view import Ledger, RecordsView, learn_earlier
from toolchain.tuning.search import Candidate, Search
from toolchain.tuning.task_state import Point, TaskState
from toolchain.tuning.trials import Builds, Measured, Measures, Trials

_TICK_S = 0.5
_HOPELESS = 48  # failures without a single success after which a run is aborted
_GIVEN_UP = 64  # the same of one task
_MOST_PASSING = 64 << 20  # bytes; twice the caches of most boards
_NEGLIGIBLE = 0.01  # share of the model's time


class Tuning:
    """One run.

    Args:
        key: What the records are made for.
        file: Where records are read from and appended to.
        pruner: Rules out candidates before they are built; None to measure all.
        shipped: By workload, how records that come with the toolchain compute a layer: finals compare with that.
        on_tick: Called about twice a second, and after each round.
    """

    def __init__(  # noqa: PLR0913 - a run has these independent parts
        self,
        tasks: Sequence[Task],
        backend: Backend,
        key: Key,
        *,
        file: RecordFile,
        plan: Plan,
        builds: Builds,
        measures: Measures,
        pruner: Pruner | None = None,
        shipped: Mapping[str, Choice] | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan = plan
        self.states = [TaskState(task) for task in tasks]
        self.points: list[Point] = []
        self._stages = tuple(stage for stage in STAGES if pruner or stage != "model")
        self.shares = Stages(seconds=dict.fromkeys(("search", *self._stages, "finals"), 0.0))
        self.causes: Counter[str] = Counter()
        self.resumed = 0
        self.ended = ""  # why the run ends before all its trials are used
        self.current: TaskState | None = None
        self.id = plan.run_id(key, tasks, modelled_by(pruner.model.name, pruner.model.identity) if pruner else "")
        self._pace = plan.pace
        self._start = Start(
            run=self.id, time=round(time.time(), 3), fresh=plan.fresh, batch=self._pace.batch, ahead=self._pace.ahead
        )
        self._key = key
        self._file = file
        self._ledger = Ledger(file, self.id, key, plan)
        self._on_tick = on_tick
        self._tvm_target = backend.target

        def passing_bytes(task: Task) -> int:
            # Kernels of templates are timed with cold weights, as in the model; those of MetaSchedule with warm ones.
            return min(plan.passing_bytes, _MOST_PASSING) if task.layer else 0

        trials = Trials(builds, measures, backend.add_half_blocks, passing_bytes)
        self._conveyor = Conveyor(trials, pruner, self._record)
        self._decider = Decider(trials, self._ledger, by_model=bool(key.modelled), note=self._note_decision)
        self._search = Search(backend, plan.tuner, plan.seed, shipped)
        self._began = time.monotonic()
        self._last_error = ""
        self._pending: deque[Round] = deque()
        self._recorded: dict[int, list[Record]] = {}

    # --- progress ---

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def trials(self) -> int:
        """Trials with a result, those of an earlier part of the run included."""
        return sum(state.measured for state in self.states)

    @property
    def estimated_s(self) -> float | None:
        """Seconds of one run of the model, estimated from the best latencies; None while a task has none."""
        total = sum(state.task.weight * state.fastest_s for state in self.states)
        return None if math.isinf(total) else total

    @property
    def first_batch(self) -> int:
        return self._pace.first_batch

    def untuned_s(self) -> dict[str, float]:
        """Return the latency of each untuned kernel by workload: from its final, or else from its best trial."""
        records, latencies = self._file.read(), {}
        for state in self.states:
            workload, base = state.task.workload, self._search.base(state.task).key
            decision_s = state.decision.base_latency_s if state.decision else None
            latencies[workload] = decision_s or records.latency_s(self._key, workload, base)
        return {workload: seconds for workload, seconds in latencies.items() if not math.isinf(seconds)}

    # --- the loop ---

    def run(self) -> None:
        """Tune until a limit is reached or nothing is left to try.

        Raises:
            BuildError: No candidate of any task works; the cause is in the details.
            DeviceError: No board is left.
            InputError: The records cannot be written.
        """
        self._resume()
        with self._conveyor:
            for number in itertools.count():
                self._learn_until(self._pace.ahead)
                planned = self._plan_round(number)
                if planned is None:
                    break
                self.current = planned.state
                with self._ledger.lock:
                    for record in planned.results:
                        if record is not None:
                            self._count(planned.state, record)
                self._pending.append(planned)
                self._conveyor.put(planned)
                self._check()
            self._learn_until(0)
        with self.shares.timed("finals"):
            self._hold_finals()

    def _resume(self) -> None:
        """Learn from earlier records, and load those of an earlier part of this run."""
        view = self._view(self._file.begin(self._start))
        # The pace decides what each round learns from, so a resumed run keeps the pace that it began with.
        self._pace = Pace(view.run_start.start.batch, view.run_start.start.ahead)
        self._recorded = view.own()
        with self.shares.timed("search"):
            learn_earlier(view, self._search, self.states, self._tvm_target)
        self._file.append(
            Workload.of(task.workload, task.name, task.gflop * 1e9, tvm.ir.save_json(task.module))
            for task in (state.task for state in self.states)
        )

    def _view(self, records: Records) -> RecordsView:
        return RecordsView(records, self._key, self._start, {state.task.workload for state in self.states})

    def _plan_round(self, number: int) -> Round | None:
        """Decide what the next round tries; None if the run is over."""
        recorded = self._recorded_round(number)
        # The limits do not apply: these trials were made already.
        if recorded is not None:
            return recorded
        remaining = self.plan.trials - sum(state.planned for state in self.states)
        if remaining <= 0:
            return None
        if self.plan.budget_s and self.seconds >= self.plan.budget_s:
            self.ended = "the time of --time-budget is used up"
            return None
        while (index := self._next_task()) is not None:
            state = self.states[index]
            with self.shares.timed("search"):
                count = self._pace.batch if state.planned else self._pace.first_batch
                candidates = self._search.propose(state.task, number, count)
            if candidates:
                of_task = self.plan.per_task - state.planned if self.plan.per_task else remaining
                return self._new_round(number, state, candidates, min(remaining, of_task))
            # The search has no candidates left for this task; the next one is tried.
            state.exhausted = True
        counts = Counter(map(self.why_done, self.states))
        self.ended = ", ".join(f"{reason} for {count} kernels" for reason, count in counts.items())
        return None

    def _recorded_round(self, number: int) -> Round | None:
        """Return a round of which the records have every candidate."""
        records = self._recorded.get(number, [])
        by_index = {record.index: record for record in records}
        # An incomplete round is proposed again, which makes the same candidates; only the missing ones are measured.
        if not records or len(by_index) < records[0].of:
            return None
        ordered = [by_index[index] for index in sorted(by_index)]
        state = next(state for state in self.states if state.task.workload == records[0].workload)
        with self.shares.timed("search"):
            candidates = [self._search.rebuild(state.task, json.loads(record.trace)) for record in ordered]
        self._search.exclude(state.task, (record.candidate for record in ordered))
        state.planned += len(ordered)
        self.resumed += len(ordered)
        return Round(number, state, candidates, list(ordered), len(ordered))

    def _new_round(self, number: int, state: TaskState, proposed: Sequence[Candidate], limit: int) -> Round:
        by_candidate = {record.candidate: record for record in self._recorded.get(number, [])}
        results = [by_candidate.get(candidate.key) for candidate in proposed]
        # Recorded results count even beyond the limit, which may have been lowered since.
        indices = [index for index, record in enumerate(results) if record is not None or index < limit]
        self.resumed += sum(results[index] is not None for index in indices)
        self._search.exclude(state.task, (proposed[index].key for index in indices))
        state.planned += len(indices)
        candidates: list[Candidate | None] = [proposed[index] for index in indices]
        return Round(number, state, candidates, [results[index] for index in indices], len(proposed))

    def _next_task(self) -> int | None:
        pending = Counter(planned.state.task.workload for planned in self._pending)
        return task_state.pick(
            [
                task_state.Progress(
                    weight=state.task.weight,
                    trials=state.planned,
                    best_s=state.best_s,
                    pending=pending[state.task.workload],
                    done=bool(self.why_done(state)),
                )
                for state in self.states
            ]
        )

    def why_done(self, state: TaskState) -> str:
        """Return why a task is not searched any further; empty while it is."""
        plan = self.plan
        reasons = (
            (state.exhausted, "no candidates left"),
            (plan.per_task and state.planned >= plan.per_task, "--trials-per-task reached"),
            (plan.early_stop and state.stale >= plan.early_stop, "no gain for --early-stop trials"),
            (state.hopeless >= _GIVEN_UP, "nothing but failures"),
            (self._is_negligible(state), "too little of the model's time"),
        )
        return next((reason for is_done, reason in reasons if is_done), "")

    def _is_negligible(self, state: TaskState) -> bool:
        """Whether a kernel beside those of templates takes too little of the model's time to be worth a search."""
        if state.task.layer or not any(other.task.layer for other in self.states):
            return False
        # Shares are known only once every task has a latency.
        totals = [other.task.weight * other.known_s for other in self.states if other.best_s]
        return len(totals) == len(self.states) and state.task.weight * state.known_s < _NEGLIGIBLE * sum(totals)

    # --- building and measuring ---

    def _record(self, planned: Round, index: int, measured: Measured) -> None:
        candidate = planned.candidates[index]
        if candidate is None:
            return
        task = planned.state.task
        record = self._ledger.line(task, candidate, measured, round=planned.number, index=index, of=planned.of)

        # Called under the lock of the ledger, so that the counts agree with the file.
        def note() -> None:
            planned.results[index] = record
            self._count(planned.state, record)

        self._ledger.write(record, note)

    def _count(self, state: TaskState, record: Record) -> None:
        before = state.fastest_s
        state.count(record)
        self.causes[record.cause or "ok"] += 1
        self._last_error = record.error or self._last_error
        if state.fastest_s < before and self.estimated_s is not None:
            self.points.append(Point(self.seconds, self.trials, self.estimated_s))

    # --- finals ---

    def _hold_finals(self) -> None:
        """Measure the best candidates of each kernel against the untuned kernel, and record the winners."""
        records = self._view(self._file.read()).now()
        decided = records.decided(self._key)
        for state in self.states:
            state.decision = decided.get(state.task.workload)
        due = finals.due([state.task for state in self.states], self._search, records, self._key)
        self._decider.hold(due, self._wait)

    def _note_decision(self, record: Record) -> None:
        if record.verdict:
            state = next(state for state in self.states if state.task.workload == record.workload)
            state.decision = record

    # --- learning ---

    def _learn_until(self, limit: int) -> None:
        """Wait for the oldest rounds and learn from them, until at most `limit` candidates are pending."""
        while self._pending and sum(planned.of for planned in self._pending) > limit:
            # In the order of the rounds, whatever order results arrive in, so that a resumed run learns the same.
            oldest = self._pending[0]
            for stage in self._stages:
                with self.shares.timed(stage):
                    self._wait(oldest.passed[stage])
            self._check()
            del self._pending[0]
            results = zip(oldest.candidates, oldest.results, strict=True)
            pairs = [(candidate, record) for candidate, record in results if candidate and record]
            samples = [record.samples_s for _, record in pairs]
            with self.shares.timed("search"):
                self._search.learn(oldest.state.task, [candidate for candidate, _ in pairs], samples)
                oldest.state.learn([record for _, record in pairs])
            self._on_tick()

    def _wait(self, passed: threading.Event) -> None:
        while not passed.wait(_TICK_S):
            self._check()
            self._on_tick()

    def _check(self) -> None:
        """Raise if the run was interrupted, a background thread failed, or no candidate works."""
        interrupts.check()
        self._conveyor.check()
        # A run with few trials is aborted when all of them have failed.
        hopeless = min(_HOPELESS, self.plan.trials)
        if self.trials >= hopeless and all(math.isinf(state.fastest_s) for state in self.states):
            boards = "" if self._key.modelled else "; `toolchain farm status` shows the boards"
            failures = ", ".join(f"{count} {cause}" for cause, count in sorted(self.causes.items()) if cause != "ok")
            raise BuildError(
                f"none of {self.trials} candidates of {len(self.states)} task(s) gave a latency",
                details=f"{failures}\nlast error: {self._last_error}",
                hint=f"`toolchain records show {shlex.quote(str(self._file.path))}` lists the failures{boards}",
            )
