"""A tuning run: rounds of candidates, searched, built, measured and recorded, until a limit or nothing is left.

What a round proposes follows from the results of the rounds that ended `lag + 1` rounds before it, whatever order
results come in. So a run goes on from its records alone: rounds that are whole there are learned from, the first one
that is not is proposed again, and of it only what is missing is measured. Once the search is over, finals decide.
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
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import tvm

from toolchain import files
from toolchain.backends.base import Backend, Choice
from toolchain.device.deploy import Stages
from toolchain.errors import BuildError
from toolchain.records import Key, Record, RecordFile, Records, Start, Workload, traces
from toolchain.records.lines import modelled_by
from toolchain.records.results import LEAST_S, PRUNED, Verdict
from toolchain.records.tasks import Task, args_of, layer_of
from toolchain.tuning import finals, task_scheduler
from toolchain.tuning.finals import Decision, Final
from toolchain.tuning.prune import Pruner
from toolchain.tuning.search import Search, Tuner
from toolchain.tuning.seen import Seen
from toolchain.tuning.template_search import Candidate
from toolchain.tuning.trials import Builds, Built, Measured, Measures, Options, Trial

BATCH, FIRST_BATCH = 16, 8
"""Candidates of one round; of the first one of a task, so that few trials reach every task."""

_TICK_S = 0.5
_TOO_SHORT = "a run took less than the board's clock can tell; raise --number or --min-repeat-ms"
_HOPELESS = 48  # failures without a single success after which a run has no prospects
_GIVEN_UP = 64  # the same of one task
_MOST_PASSING = 64 << 20  # twice what the caches of most boards hold
_NEGLIGIBLE = 0.01
_MOST_EARLIER = 1000  # earlier records that the cost model learns from


@dataclass(frozen=True)
class Plan:
    """What a run is asked for.

    Attributes:
        tuner: Search strategy.
        trials: Trials of the whole run, those of an earlier part of it included.
        seed: Seed of the search.
        per_task: Most trials of one task; 0 for no limit.
        early_stop: Trials without a gain after which a task is left; 0 for never.
        budget_s: Seconds after which no new round begins; 0 for no limit.
        options: How candidates are measured.
        lag: Rounds that are searched and built while others are measured: 0 where that would disturb the measuring.
        passing_bytes: Bytes of the model's weights.
        prune: How many times as much as the best known a candidate may cost by a model, which must not see it spill
            either, to be measured; 0 where no model is asked.
        fresh: Whether all is measured anew, and what there is of these kernels is passed over.
    """

    tuner: Tuner = "evolutionary-xgb"
    trials: int = 500
    seed: int = 0
    per_task: int = 0
    early_stop: int = 0
    budget_s: float = 0.0
    options: Options = field(default_factory=Options)
    lag: int = 1
    passing_bytes: int = 0
    prune: float = 0.0
    fresh: bool = False

    def run_id(self, key: Key, tasks: Sequence[Task], pruned_by: str = "") -> str:
        """Name the run that these settings make: records of the same name are a part of it.

        Args:
            key: What its records are found under.
            tasks: What is tuned.
            pruned_by: Which model rules candidates out: another one rules out others.
        """
        settings = asdict(self)
        for limit in ("trials", "budget_s", "fresh"):  # where a run ends or begins does not change the way there
            del settings[limit]
        if not self.prune:  # such runs are called what they were before there was pruning
            del settings["prune"]
        named = [settings, key.id, sorted(task.workload for task in tasks), *([pruned_by] if pruned_by else [])]
        return files.sha256_bytes(files.canonical_json(named))[:12]


@dataclass
class TaskState:
    """How far one task is.

    Attributes:
        task: The task.
        planned: Candidates of the rounds so far.
        measured: Trials with a result, failures included.
        failed: Failures among them.
        pruned: Those among them that no board was asked about.
        best_s: Best latency after each round that was learned from; a first value may come from earlier records.
        fastest_s: Best latency so far, of rounds that still run too; infinite while there is none.
        stale: Trials since the best was found.
        exhausted: Whether there is nothing left to try.
        decision: What its final decided; None while none was held.
    """

    task: Task
    planned: int = 0
    measured: int = 0
    failed: int = 0
    pruned: int = 0
    best_s: tuple[float, ...] = ()
    fastest_s: float = math.inf
    stale: int = 0
    exhausted: bool = False
    decision: Record | None = None


@dataclass(frozen=True)
class Point:
    """The estimate at one moment: seconds since the run began, trials so far, seconds of one run of the model."""

    seconds: float
    trials: int
    estimated_s: float


@dataclass
class _Round:
    """One round on its way.

    Attributes:
        number: Its number in the run.
        state: Its task.
        candidates: What it tries; None for one whose recorded trace does not fit any more.
        results: One record per candidate, once there is one.
        waiting: What is measured, and the events that tell that each result is recorded.
    """

    number: int
    state: TaskState
    candidates: list[Candidate | None]
    results: list[Record | None]
    of: int
    waiting: list[tuple[Future[Measured], threading.Event]] = field(default_factory=list)


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
        stages = ("search", *(("model",) if pruner else ()), "build", "run", "finals")
        self.shares = Stages(dict.fromkeys(stages, 0.0))
        self.causes: Counter[str] = Counter()
        self.resumed = 0
        self.current: TaskState | None = None
        self.id = plan.run_id(key, tasks, modelled_by(pruner.model.name, pruner.model.identity) if pruner else "")
        self._beginning = Start(run=self.id, time=round(time.time(), 3), fresh=plan.fresh)
        self._key = key
        self._target = json.loads(key.target)
        self._file = file
        self._builds = builds
        self._measures = measures
        self._pruner = pruner
        self._on_tick = on_tick
        self._tvm_target = backend.target
        self._completed = backend.completed
        self._search = Search(backend, plan.tuner, plan.seed, shipped)
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._fault: Exception | None = None
        self._last_error = ""
        self._pending: deque[_Round] = deque()
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
        for number in itertools.count():
            self._learn_until(self.plan.lag)
            planned = self._planned(number)
            if planned is None:
                break
            self._start(planned)
            self._pending.append(planned)
        self._learn_until(0)
        with self.shares.timed("finals"):
            self._hold_finals()

    def untuned_s(self) -> dict[str, float]:
        """Return the latency of each kernel as it is untuned, by workload: in its final, or else the best of trials."""
        keys = {(state.task.workload, self._search.base(state.task).key) for state in self.states}
        found: dict[str, float] = {}
        for record in self._file.read().of(self._key):
            if record.samples_s and (record.workload, record.candidate) in keys:
                found[record.workload] = min(found.get(record.workload, math.inf), record.latency_s)
        held = {state.task.workload: state.decision for state in self.states if state.decision}
        in_turns = {name: one.base_latency_s for name, one in held.items()}
        return found | {name: seconds for name, seconds in in_turns.items() if seconds}

    def _take_up(self) -> None:
        """Learn what earlier records tell, and find those of this very run."""
        seen = self._seen(self._file.begin(self._beginning))
        self._own = seen.own()
        with self.shares.timed("search"):
            self._learn_earlier(seen.earlier(), seen.records.workloads)
        self._file.append(_workload(state.task) for state in self.states)

    def _seen(self, records: Records) -> Seen:
        return Seen(records, self._key, self._beginning, {state.task.workload for state in self.states})

    def _learn_earlier(self, earlier: Sequence[Record], workloads: Mapping[str, Workload]) -> None:
        states = {state.task.workload: state for state in self.states}
        for workload, group in itertools.groupby(earlier[-_MOST_EARLIER:], key=lambda record: record.workload):
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
        state.fastest_s = min([state.fastest_s, *(record.latency_s for _, record in known)])
        if not math.isinf(state.fastest_s):
            state.best_s = (state.fastest_s,)

    def _planned(self, number: int) -> _Round | None:
        """Decide what the next round tries; None if the run is over."""
        whole = self._recorded(number)
        if whole is not None:
            return whole
        left = self.plan.trials - sum(state.planned for state in self.states)
        if left <= 0 or (self.plan.budget_s and self.seconds >= self.plan.budget_s):
            return None
        while (place := task_scheduler.pick([self._progress(state) for state in self.states])) is not None:
            state = self.states[place]
            with self.shares.timed("search"):
                found = self._search.propose(state.task, number, BATCH if state.planned else FIRST_BATCH)
            if found:
                of_task = self.plan.per_task - state.planned if self.plan.per_task else left
                return self._round(number, state, found, min(left, of_task))
            state.exhausted = True
        return None

    def _recorded(self, number: int) -> _Round | None:
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
        return _Round(number, state, candidates, list(ordered), len(ordered))

    def _round(self, number: int, state: TaskState, found: Sequence[Candidate], left: int) -> _Round:
        known = {record.candidate: record for record in self._own.get(number, [])}
        results = [known.get(candidate.key) for candidate in found]
        # What is recorded is done, even if fewer trials are asked for now.
        kept = [place for place, record in enumerate(results) if record is not None or place < left]
        self.resumed += sum(results[place] is not None for place in kept)
        self._search.exclude(state.task, (found[place].key for place in kept))
        state.planned += len(kept)
        return _Round(number, state, [found[place] for place in kept], [results[place] for place in kept], len(found))

    def _progress(self, state: TaskState) -> task_scheduler.Progress:
        plan = self.plan
        done = (
            state.exhausted
            or bool(plan.per_task and state.planned >= plan.per_task)
            or bool(plan.early_stop and state.stale >= plan.early_stop)
            or (state.failed >= _GIVEN_UP and math.isinf(state.fastest_s))
            or self._is_negligible(state)
        )
        return task_scheduler.Progress(state.task.weight, state.planned, state.best_s, done)

    def _is_negligible(self, state: TaskState) -> bool:
        """Whether a kernel beside those of templates takes too little of the model's time to be worth a search."""
        if state.task.layer or not any(other.task.layer for other in self.states):
            return False
        known = [other.task.weight * other.best_s[-1] for other in self.states if other.best_s]
        mine = state.task.weight * state.best_s[-1] if state.best_s else math.inf
        return len(known) == len(self.states) and mine < _NEGLIGIBLE * sum(known)

    # --- building and measuring ---

    def _start(self, planned: _Round) -> None:
        """Build what has no result yet and hand it to the boards."""
        self.current = planned.state
        for record in planned.results:
            if record is not None:
                self._count(planned.state, record)
        self._prune(planned)
        missing = [place for place, record in enumerate(planned.results) if record is None]
        if not missing:
            return
        with self.shares.timed("build"):
            built = self._builds.build([self._completed(_module(planned.candidates[place])) for place in missing])
        for place, one in zip(missing, built, strict=True):
            if one.library is None:
                self._record(planned, place, Measured((), "build", one.error, seconds=one.seconds))
                continue
            args = args_of(_module(planned.candidates[place]), packed=True)
            task = planned.state.task
            trial = Trial(one.library, args, task.name, self._passing(task), task.gflop)
            future = self._measures.submit(trial)
            recorded = threading.Event()  # a future wakes who waits for it before it calls back
            planned.waiting.append((future, recorded))
            future.add_done_callback(partial(self._measured, planned, place, one, recorded))
        self._check()

    def _prune(self, planned: _Round) -> None:
        """Record what the model rules out, so that no board is asked about it."""
        if self._pruner is None or planned.state.task.layer:
            return
        with self.shares.timed("model"):
            verdicts = self._pruner.verdicts(planned.state.task.workload, self._as_built(planned.candidates))
        for place, one in enumerate(verdicts):
            if one is not None and planned.results[place] is None:
                self._record(planned, place, Measured((), one.cause, one.error))

    def _as_built(self, candidates: Sequence[Candidate | None]) -> list[Candidate | None]:
        return [None if one is None else replace(one, module=self._completed(one.module)) for one in candidates]

    def _passing(self, task: Task) -> int:
        """Return the bytes of weights that pass the caches between two runs of a layer that a template computes."""
        return min(self.plan.passing_bytes, _MOST_PASSING) if task.layer else 0

    def _measured(
        self, planned: _Round, place: int, built: Built, recorded: threading.Event, future: Future[Measured]
    ) -> None:
        """Record a result the moment it comes, in the thread that it comes in."""
        try:
            self._builds.discard(built)
            if not future.cancelled() and future.exception() is None:  # whoever waits for it is told otherwise
                self._record(planned, place, future.result())
        except Exception as fault:  # noqa: BLE001 - a callback has nobody to tell; `_check` raises it
            self._fault = self._fault or fault
        finally:
            recorded.set()

    def _record(self, planned: _Round, place: int, measured: Measured) -> None:
        candidate = planned.candidates[place]
        if candidate is None:
            return
        record = self._line(planned.state.task, candidate, measured, round=planned.number, index=place, of=planned.of)
        with self._lock:
            self._file.append([record])
            planned.results[place] = record
            self._count(planned.state, record)

    def _line(self, task: Task, candidate: Candidate, measured: Measured, **fields: Any) -> Record:
        """Return the record of something that this run measured."""
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
            run=self.id,
            tuner=self.plan.tuner,
            seed=self.plan.seed,
            time=round(time.time(), 3),
            threads=self._key.threads,
            options=self.plan.options.recorded,
            **fields,
        )

    def _count(self, state: TaskState, record: Record) -> None:
        state.measured += 1
        state.pruned += record.cause in PRUNED
        state.failed += bool(record.cause) and record.cause not in PRUNED
        self.causes[record.cause or "ok"] += 1
        self._last_error = record.error or self._last_error
        if record.latency_s < state.fastest_s:
            state.fastest_s = record.latency_s
            if self.estimated_s is not None:
                self.points.append(Point(self.seconds, self.trials, self.estimated_s))

    # --- finals ---

    def _hold_finals(self) -> None:
        """Let the best candidates of each kernel compete with what it is untuned; record who wins."""
        known = self._seen(self._file.read()).now()
        decided = known.decided(self._key)
        for state in self.states:
            state.decision = decided.get(state.task.workload)
        due = finals.due([state.task for state in self.states], self._search, known)
        # All are built before the first is held, which building would disturb.
        built = [self._builds.build([self._completed(one.module) for one in final.candidates]) for final in due]
        held = [self._hold(final, several) for final, several in zip(due, built, strict=True)]
        for future, recorded in held:
            self._wait(recorded)
            future.result()
        self._check()

    def _hold(self, final: Final, built: Sequence[Built]) -> tuple[Future[Measured], threading.Event]:
        """Hand a final to a board; where there is nothing to measure, it is decided at once."""
        recorded = threading.Event()
        trial = finals.trial(final, built, self._passing(final.task))
        if trial is None:
            future: Future[Measured] = Future()
            future.set_result(Measured(()))
        else:
            future = self._measures.submit(trial)
        future.add_done_callback(partial(self._ended, final, built, recorded))
        return future, recorded

    def _ended(self, final: Final, built: Sequence[Built], recorded: threading.Event, future: Future[Measured]) -> None:
        """Record what a final decided the moment that it is known, in the thread that it comes in."""
        try:
            for one in built:
                self._builds.discard(one)
            if future.cancelled() or future.exception() is not None:  # whoever waits for it is told otherwise
                return
            measured = future.result()
            if measured.samples_s or measured.cause:
                self._decide(final, finals.decided(final, built, measured))
            else:
                self._decide(final, finals.undecided(final, built, by_model=bool(self._key.modelled)))
        except Exception as fault:  # noqa: BLE001 - a callback has nobody to tell; `_check` raises it
            self._fault = self._fault or fault
        finally:
            recorded.set()

    def _decide(self, final: Final, decision: Decision) -> None:
        """Record a decision; a final that failed decides nothing, and is held again by the next run."""
        won: Verdict = "faster" if decision.winner.key != final.base.key else "untuned"
        measured = replace(decision.measured, error=decision.measured.error or decision.why)
        record = self._line(
            final.task,
            decision.winner,
            measured,
            verdict="" if measured.cause else won,
            base_s=decision.base_s,
            among=final.among,
        )
        with self._lock:
            self._file.append([record])
            if record.verdict:
                state = next(state for state in self.states if state.task.workload == final.task.workload)
                state.decision = record

    # --- learning ---

    def _learn_until(self, left: int) -> None:
        """Wait for the oldest rounds and learn from them, until only so many are on their way."""
        while len(self._pending) > left:
            oldest = self._pending.popleft()
            with self.shares.timed("run"):
                for future, recorded in oldest.waiting:
                    self._wait(recorded)
                    future.result()
            self._check()
            with self.shares.timed("search"):
                self._learn(oldest)
            self._on_tick()

    def _wait(self, recorded: threading.Event) -> None:
        while not recorded.wait(_TICK_S):
            self._check()
            self._on_tick()

    def _learn(self, ended: _Round) -> None:
        state = ended.state
        pairs = list(zip(ended.candidates, ended.results, strict=True))
        known = [(one, record) for one, record in pairs if one is not None and record is not None]
        self._search.learn(state.task, [one for one, _ in known], [record.samples_s for _, record in known])
        before = state.best_s[-1] if state.best_s else math.inf
        best = min([before, *(record.latency_s for _, record in known)])
        state.stale = 0 if best < before else state.stale + len(known)
        state.best_s = (*state.best_s, best)

    def _check(self) -> None:
        """Stop where going on makes no sense."""
        if self._fault is not None:
            raise self._fault
        hopeless = min(_HOPELESS, self.plan.trials)
        if self.trials >= hopeless and all(math.isinf(state.fastest_s) for state in self.states):
            boards = "" if self._key.modelled else "; `toolchain farm status` shows the boards"
            raise BuildError(
                f"none of {self.trials} candidates of {len(self.states)} task(s) gave a latency",
                details=f"{_causes(self.causes)}\nthe last one said: {self._last_error}",
                hint=f"`toolchain records show {shlex.quote(str(self._file.path))}` lists the failures{boards}",
            )


def _workload(task: Task) -> Workload:
    return Workload.of(task.workload, task.name, task.gflop * 1e9, tvm.ir.save_json(task.module))


def _module(candidate: Candidate | None) -> tvm.IRModule:
    if candidate is None:
        raise AssertionError("only candidates without a result are built")
    return candidate.module


def _causes(causes: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {cause}" for cause, number in sorted(causes.items()) if cause != "ok")
