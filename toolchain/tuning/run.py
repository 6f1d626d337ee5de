"""A tuning run: rounds of candidates, searched, built, measured and recorded, until a limit or nothing is left.

While one round is searched, earlier ones are built and measured: as many as the run's pace says. What a round proposes
follows from the results of the rounds before those, whatever order results come in. So a run goes on from its records
alone: rounds that are whole there are learned from, the first one that is not is proposed again, and of it only what is
missing is measured. Once the search is over, finals decide.
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
from toolchain.device.stages import Stages
from toolchain.errors import BuildError
from toolchain.records import Catalog, Key, Record, RecordFile, Start, Workload, traces
from toolchain.records.lines import modelled_by
from toolchain.records.tasks import Task, layer_of
from toolchain.tuning import finals, task_scheduler
from toolchain.tuning.conveyor import STAGES, Conveyor, Round
from toolchain.tuning.decider import Decider
from toolchain.tuning.ledger import Ledger
from toolchain.tuning.plan import Pace, Plan
from toolchain.tuning.prune import Pruner
from toolchain.tuning.search import Search
from toolchain.tuning.seen import Seen
from toolchain.tuning.task_state import Point, TaskState
from toolchain.tuning.template_search import Candidate
from toolchain.tuning.trials import Builds, Measured, Measures

_TICK_S = 0.5
_HOPELESS = 48  # failures without a single success after which a run has no prospects
_GIVEN_UP = 64  # the same of one task
_MOST_PASSING = 64 << 20  # twice what the caches of most boards hold
_NEGLIGIBLE = 0.01
_MOST_EARLIER = 1000  # earlier records that the cost model learns from


class Tuning:
    """One run.

    Args:
        tasks: What is tuned.
        backend: The board's.
        key: What its records are found under.
        file: Where the records go, and earlier ones are.
        plan: What is asked for.
        builds: Compiles candidates.
        measures: Measures them.
        pruner: Rules out candidates before they are built; None to measure all.
        shipped: How layers are computed by records that come with the toolchain, by workload: what finals are held
            against there.
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
        self._way = tuple(stage for stage in STAGES if pruner or stage != "model")
        self.shares = Stages(seconds=dict.fromkeys(("search", *self._way, "finals"), 0.0))
        self.causes: Counter[str] = Counter()
        self.resumed = 0
        self.ended = ""  # why, where it ends before all trials are made
        self.current: TaskState | None = None
        self.id = plan.run_id(key, tasks, modelled_by(pruner.model.name, pruner.model.identity) if pruner else "")
        pace = plan.pace
        self._beginning = Start(
            run=self.id, time=round(time.time(), 3), fresh=plan.fresh, batch=pace.batch, ahead=pace.ahead
        )
        self._key = key
        self._file = file
        self._ledger = Ledger(file, self.id, key, plan)
        self._on_tick = on_tick
        self._tvm_target = backend.target
        how = {"completed": backend.add_half_blocks, "passing": self._passing}
        self._conveyor = Conveyor(builds, measures, pruner, note=self._record, **how)
        by_model = bool(key.modelled)
        self._decider = Decider(builds, measures, ledger=self._ledger, by_model=by_model, note=self._decided, **how)
        self._search = Search(backend, plan.tuner, plan.seed, shipped)
        self._began = time.monotonic()
        self._pace = pace
        self._last_error = ""
        self._pending: deque[Round] = deque()
        self._own: dict[int, list[Record]] = {}

    # --- what others see ---

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
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

    # --- the loop ---

    def run(self) -> None:
        """Tune until a limit is reached or nothing is left to try.

        Raises:
            BuildError: No candidate of any task works; the cause is in the details.
            DeviceError: No board is left.
            InputError: The records cannot be written.
        """
        self._take_up()
        with self._conveyor:
            self._search_all()
        with self.shares.timed("finals"):
            self._hold_finals()

    def _search_all(self) -> None:
        for number in itertools.count():
            self._learn_until(self._pace.ahead)
            planned = self._planned(number)
            if planned is None:
                break
            self._begin(planned)
        self._learn_until(0)

    def untuned_s(self) -> dict[str, float]:
        """Return the latency of each kernel as it is untuned, by workload: in its final, or else the best of trials."""
        known, keys = self._file.catalog(), {one.task.workload: self._search.base(one.task).key for one in self.states}
        least = {name: known.latency_s(self._key, name, candidate) for name, candidate in keys.items()}
        found = {name: seconds for name, seconds in least.items() if not math.isinf(seconds)}
        held = {state.task.workload: state.decision for state in self.states if state.decision}
        in_turns = {name: one.base_latency_s for name, one in held.items()}
        return found | {name: seconds for name, seconds in in_turns.items() if seconds}

    def _take_up(self) -> None:
        """Learn what earlier records tell, and find those of this very run."""
        seen = self._seen(self._file.begin(self._beginning))
        self._pace = Pace(seen.begun.start.batch, seen.begun.start.ahead)
        self._own = seen.own()
        with self.shares.timed("search"):
            self._learn_earlier(seen.earlier(_MOST_EARLIER), seen.records.workloads)
        self._file.append(_workload(state.task) for state in self.states)

    def _seen(self, records: Catalog) -> Seen:
        return Seen(records, self._key, self._beginning, {state.task.workload for state in self.states})

    def _learn_earlier(self, earlier: Sequence[Record], workloads: Mapping[str, Workload]) -> None:
        states = {state.task.workload: state for state in self.states}
        for workload, group in itertools.groupby(earlier, key=lambda record: record.workload):
            if workload in states:
                self._learn_of(states[workload], list(group))
            elif workload in workloads:
                self._learn_costs_of(workloads[workload], list(group))

    def _learn_costs_of(self, workload: Workload, group: Sequence[Record]) -> None:
        """Let the cost model learn of another model's kernel."""
        module = tvm.ir.load_json(workload.text())
        if layer_of(module["main"]):
            return  # a template's; no trace of a schedule tells how fast it is
        rebuilder = traces.Rebuilder(module, self._tvm_target)
        pairs = [(rebuilder.from_json(json.loads(record.trace)), record.samples_s) for record in group]
        known = [(schedule, samples) for schedule, samples in pairs if schedule is not None]
        self._search.learn_costs(module, [one for one, _ in known], [samples for _, samples in known])

    def _learn_of(self, state: TaskState, group: Sequence[Record]) -> None:
        pairs = [(self._search.rebuilt(state.task, json.loads(record.trace)), record) for record in group]
        known = [(candidate, record) for candidate, record in pairs if candidate is not None]
        self._search.learn(state.task, [one for one, _ in known], [record.samples_s for _, record in known])
        state.begin(min((record.latency_s for _, record in known), default=math.inf))

    def _planned(self, number: int) -> Round | None:
        """Decide what the next round tries; None if the run is over."""
        whole = self._recorded(number)
        if whole is not None:
            return whole
        left = self.plan.trials - sum(state.planned for state in self.states)
        if left <= 0:
            return None
        if self.plan.budget_s and self.seconds >= self.plan.budget_s:
            self.ended = "the time of --time-budget is used up"
            return None
        while (place := task_scheduler.pick([self._progress(state) for state in self.states])) is not None:
            state = self.states[place]
            with self.shares.timed("search"):
                count = self._pace.batch if state.planned else self._pace.first_batch
                found = self._search.propose(state.task, number, count)
            if found:
                of_task = self.plan.per_task - state.planned if self.plan.per_task else left
                return self._round(number, state, found, min(left, of_task))
            state.exhausted = True
        counts = Counter(map(self.why_done, self.states))
        self.ended = ", ".join(f"{reason} for {number} kernels" for reason, number in counts.items())
        return None

    def _recorded(self, number: int) -> Round | None:
        """Return a round that the records have whole."""
        known = self._own.get(number, [])
        by_place = {record.index: record for record in known}
        if not known or len(by_place) < known[0].of:
            return None
        ordered = [by_place[place] for place in sorted(by_place)]
        state = next(state for state in self.states if state.task.workload == known[0].workload)
        with self.shares.timed("search"):
            candidates = [self._search.rebuilt(state.task, json.loads(record.trace)) for record in ordered]
        self._search.exclude(state.task, (record.candidate for record in ordered))
        state.planned += len(ordered)
        self.resumed += len(ordered)
        return Round(number, state, candidates, list(ordered), len(ordered))

    def _round(self, number: int, state: TaskState, found: Sequence[Candidate], left: int) -> Round:
        known = {record.candidate: record for record in self._own.get(number, [])}
        results = [known.get(candidate.key) for candidate in found]
        # What is recorded is done, even if fewer trials are asked for now.
        kept = [place for place, record in enumerate(results) if record is not None or place < left]
        self.resumed += sum(results[place] is not None for place in kept)
        self._search.exclude(state.task, (found[place].key for place in kept))
        state.planned += len(kept)
        return Round(number, state, [found[place] for place in kept], [results[place] for place in kept], len(found))

    def _progress(self, state: TaskState) -> task_scheduler.Progress:
        under_way = sum(one.state is state for one in self._pending)
        done = bool(self.why_done(state))
        return task_scheduler.Progress(state.task.weight, state.planned, state.best_s, under_way, done)

    def why_done(self, state: TaskState) -> str:
        """Say why a task is not searched any further; empty while it is."""
        plan = self.plan
        reasons = (
            (state.exhausted, "no candidates left"),
            (plan.per_task and state.planned >= plan.per_task, "--trials-per-task reached"),
            (plan.early_stop and state.stale >= plan.early_stop, "no gain for --early-stop trials"),
            (state.hopeless >= _GIVEN_UP, "nothing but failures"),
            (self._is_negligible(state), "too little of the model's time"),
        )
        return next((reason for is_done, reason in reasons if is_done), "")

    @property
    def first_batch(self) -> int:
        """Trials of the first round of a task; each task gets one before any task gets a second."""
        return self._pace.first_batch

    def _is_negligible(self, state: TaskState) -> bool:
        """Whether a kernel beside those of templates takes too little of the model's time to be worth a search."""
        if state.task.layer or not any(other.task.layer for other in self.states):
            return False
        known = [other.task.weight * other.known_s for other in self.states if other.best_s]
        return len(known) == len(self.states) and state.task.weight * state.known_s < _NEGLIGIBLE * sum(known)

    # --- building and measuring ---

    def _begin(self, planned: Round) -> None:
        """Send a round on its way."""
        self.current = planned.state
        with self._ledger.lock:
            for record in planned.results:
                if record is not None:
                    self._count(planned.state, record)
        self._pending.append(planned)
        self._conveyor.put(planned)
        self._check()

    def _passing(self, task: Task) -> int:
        """Return the bytes of weights that pass the caches between two runs of a layer that a template computes."""
        return min(self.plan.passing_bytes, _MOST_PASSING) if task.layer else 0

    def _record(self, planned: Round, place: int, measured: Measured) -> None:
        """Write down what became of a candidate."""
        candidate = planned.candidates[place]
        if candidate is None:
            return
        task = planned.state.task
        record = self._ledger.line(task, candidate, measured, round=planned.number, index=place, of=planned.of)

        def note() -> None:
            planned.results[place] = record
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
        """Let the best candidates of each kernel compete with what it is untuned; record who wins."""
        known = self._seen(self._file.catalog()).now()
        decided = known.decided(self._key)
        for state in self.states:
            state.decision = decided.get(state.task.workload)
        due = finals.due([state.task for state in self.states], self._search, known, self._key)
        self._decider.hold(due, self._wait)

    def _decided(self, record: Record) -> None:
        if record.verdict:
            state = next(state for state in self.states if state.task.workload == record.workload)
            state.decision = record

    # --- learning ---

    def _learn_until(self, left: int) -> None:
        """Wait for the oldest rounds and learn from them, until only so many candidates are on their way."""
        while self._pending and sum(one.of for one in self._pending) > left:
            oldest = self._pending[0]
            for stage in self._way:
                with self.shares.timed(stage):
                    self._wait(oldest.passed[stage])
            self._check()
            del self._pending[0]
            with self.shares.timed("search"):
                self._learn(oldest)
            self._on_tick()

    def _wait(self, passed: threading.Event) -> None:
        while not passed.wait(_TICK_S):
            self._check()
            self._on_tick()

    def _learn(self, ended: Round) -> None:
        pairs = list(zip(ended.candidates, ended.results, strict=True))
        known = [(one, record) for one, record in pairs if one is not None and record is not None]
        self._search.learn(ended.state.task, [one for one, _ in known], [record.samples_s for _, record in known])
        ended.state.learn([record for _, record in known])

    def _check(self) -> None:
        """Stop where going on makes no sense, or nobody wants it any more."""
        interrupts.check()
        self._conveyor.check()
        hopeless = min(_HOPELESS, self.plan.trials)
        if self.trials >= hopeless and all(math.isinf(state.fastest_s) for state in self.states):
            boards = "" if self._key.modelled else "; `toolchain farm status` shows the boards"
            raise BuildError(
                f"none of {self.trials} candidates of {len(self.states)} task(s) gave a latency",
                details=f"{_causes(self.causes)}\nlast error: {self._last_error}",
                hint=f"`toolchain records show {shlex.quote(str(self._file.path))}` lists the failures{boards}",
            )


def _workload(task: Task) -> Workload:
    return Workload.of(task.workload, task.name, task.gflop * 1e9, tvm.ir.save_json(task.module))


def _causes(causes: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {cause}" for cause, number in sorted(causes.items()) if cause != "ok")
