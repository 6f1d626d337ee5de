"""The search for candidates: MetaSchedule's strategies and cost models, made reproducible.

A round proposes candidates for one task. Its proposals depend only on the seed, the round's number, and the results
known when it began: every round starts MetaSchedule anew with its own random states, one for each half of the search.
Each half runs on one thread, since MetaSchedule's own threads share work in no fixed order. So an interrupted run
resumes from its records alone exactly where it would have been.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tvm
from tvm.ir.utils import derived_object

from toolchain import files
from toolchain.backends.base import Backend, Choice, Templates
from toolchain.records import traces
from toolchain.records.metaschedule import meta_schedule
from toolchain.records.tasks import Task, workload_hash

Tuner = Literal["evolutionary-xgb", "evolutionary-random", "random", "grid"]
TUNERS: tuple[Tuner, ...] = ("evolutionary-xgb", "evolutionary-random", "random", "grid")
# Measured on a two-core machine: the stock 512 x 4 spend 20 s on 16 candidates that are hardly better.
_POPULATION, _GENERATIONS = 48, 2  # of each half
_HALVES = 2  # on every machine: another number would find other candidates
_ENDLESS = 1 << 30
_WARM_UP = 48  # results before the cost model is asked
_MOST_ASKED = 4  # times the number to propose, since candidates that were tried before are dropped
_BEST = 64  # candidates of a kernel; MetaSchedule mutates a fifth of its population from those and uses no others
_MOST_LEARNED = 4096  # results that the cost model keeps; the features of each take tens of kilobytes
_FAILED_S = 1e10  # latency of a failed candidate for the cost model, as in MetaSchedule


@dataclass(frozen=True)
class Candidate:
    """One way to schedule a kernel.

    Attributes:
        key: Structural hash of the scheduled module, or hash of a template's settings, in hexadecimal.
        trace: The schedule's trace, or a template's settings, as JSON.
        module: The scheduled TIR module.
        schedule: MetaSchedule's schedule, postprocessing included; None for a template's kernel.
    """

    key: str
    trace: Any
    module: tvm.IRModule
    schedule: Any = None


class TemplateSearch:
    """Proposes candidates for layers that templates of the backend compute."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._tried: dict[str, set[str]] = {}
        self._variants: dict[str, Sequence[Choice]] = {}  # by workload: listing them takes up to a second

    def tried(self, task: Task) -> set[str]:
        """Return the keys of all candidates of a task that are not proposed again; callers may add to it."""
        return self._tried.setdefault(task.workload, set())

    def propose(self, task: Task, count: int) -> list[Candidate]:
        """List up to `count` candidates that were not tried yet."""
        tried = self.tried(task)

        def untried(choices: Sequence[Choice]) -> list[Choice]:
            return [choice for choice in choices if choice_hash(choice) not in tried]

        # The first round is short, so that a run with few trials reaches every kernel.
        choices = untried(self._templates.candidates(task.layer))
        if not choices:
            if task.workload not in self._variants:
                self._variants[task.workload] = self._templates.variants(task.layer)
            choices = untried(self._variants[task.workload])
        candidates = (self.rebuild(task, choice) for choice in choices[:count])
        return [candidate for candidate in candidates if candidate is not None]

    def base(self, task: Task, shipped: Choice | None) -> Candidate:
        """Return the untuned kernel of a layer: by the shipped choice if there is one, else by the first template."""
        choices = (shipped, *self._templates.candidates(task.layer))
        candidates = (self.rebuild(task, choice) for choice in choices if choice is not None)
        return next(candidate for candidate in candidates if candidate is not None)

    def rebuild(self, task: Task, trace: Any) -> Candidate | None:
        """Rebuild a candidate from its settings; None if they do not fit its layer."""
        module = self._templates.module(task.layer, trace) if isinstance(trace, dict) else None
        return None if module is None else Candidate(choice_hash(trace), trace, module)


def choice_hash(choice: Any) -> str:
    # Sorted, so that equal settings have the same hash.
    return files.sha256_bytes(json.dumps(choice, sort_keys=True).encode())[:16]


@dataclass
class TaskSearch:
    """The state of the search of one task.

    Attributes:
        database: MetaSchedule's, with the best of the candidates that ran.
        workload: The task's entry in it.
        rebuilder: Rebuilds its schedules from traces.
        tried: Keys of all candidates that were measured, that failed, or that are pending.
        untuned: The backend's own schedule; None until it is needed.
    """

    database: Any
    workload: Any
    rebuilder: traces.Rebuilder
    tried: set[str] = field(default_factory=set)
    untuned: Candidate | None = None

    def forget_slow(self) -> None:
        """Keep only the best candidates if there are many: each takes tens of kilobytes."""
        if len(self.database) > 2 * _BEST:
            best = self.database.get_top_k(self.workload, _BEST)
            self.database = meta_schedule().database.MemoryDatabase()
            self.workload = self.database.commit_workload(self.workload.mod)
            for record in best:
                self.database.commit_tuning_record(record)


class Search:
    """The search over the schedules of a model's kernels.

    For a layer that a template computes, the template's candidates are proposed, whatever the strategy.

    Args:
        shipped: By workload, how records that come with the toolchain compute a layer.
    """

    def __init__(self, backend: Backend, tuner: Tuner, seed: int, shipped: Mapping[str, Choice] | None = None) -> None:
        self._templates = TemplateSearch(backend.templates)
        self._default = backend.schedule
        self._target = backend.target
        self._tuner = tuner
        self._seed = seed
        self._shipped = shipped or {}
        self._searches: dict[str, TaskSearch] = {}
        self._spaces: dict[str, Sequence[Any]] = {}
        self._grids: dict[str, Iterator[Candidate]] = {}
        self._cost_model = meta_schedule().cost_model.XGBModel(num_warmup_samples=0, num_tuning_cores=1)

    def of_task(self, task: Task) -> TaskSearch:
        """Return the state of the search of a task, which is created the first time."""
        if task.workload not in self._searches:
            database = meta_schedule().database.MemoryDatabase()
            rebuilder = traces.Rebuilder(task.module, self._target)
            self._searches[task.workload] = TaskSearch(database, database.commit_workload(task.module), rebuilder)
        return self._searches[task.workload]

    # --- proposing ---

    def propose(self, task: Task, number: int, count: int) -> list[Candidate]:
        """Return at most `count` candidates that were not tried yet, the most promising first; empty if none is left.

        The number of the round is part of the random state.
        """
        if task.layer:
            return self._templates.propose(task, count)
        if self._tuner != "grid":
            proposals = self._evolve(task, number, count)
        elif task.workload in self._grids:
            proposals = self._grids[task.workload]
        else:
            proposals = self._grids[task.workload] = _enumerate(self._space_of(task), self.of_task(task))
        tried = set(self.of_task(task).tried)
        fresh: list[Candidate] = []
        # The untuned kernel is the first trial: a record must be faster than it to be of any use.
        for candidate in itertools.chain([self._untuned(task)], proposals):
            if candidate.key not in tried:
                tried.add(candidate.key)
                fresh.append(candidate)
            if len(fresh) == count:
                break
        return fresh

    def _untuned(self, task: Task) -> Candidate:
        search = self.of_task(task)
        if search.untuned is None:
            module = self._default(task.module)
            search.untuned = Candidate(workload_hash(module), traces.DEFAULT, module)
        return search.untuned

    def base(self, task: Task) -> Candidate:
        """Return the kernel as a build without the user's records has it, which finals compare with."""
        if task.layer:
            return self._templates.base(task, self._shipped.get(task.workload))
        return self._untuned(task)

    def _evolve(self, task: Task, number: int, count: int) -> Iterator[Candidate]:
        """Search in two halves at a time, each on one thread; return the results of the halves alternately."""
        self.of_task(task), self._space_of(task)  # created before the threads start, since the halves share them
        with ThreadPoolExecutor(_HALVES) as threads:
            halves = list(
                threads.map(
                    lambda half: self._search_half(task, self._state(task, number, half), count), range(_HALVES)
                )
            )
        schedules = itertools.chain.from_iterable(itertools.zip_longest(*halves))
        return (_candidate(schedule) for schedule in schedules if schedule is not None)

    def _search_half(self, task: Task, state: int, count: int) -> list[Any]:
        search = self.of_task(task)
        count_asked = min(count + len(search.tried), _MOST_ASKED * count)
        context = self._context(task, self._strategy(), state)
        # The learned model is used once it has data; before that, candidates get random scores from `state`.
        informed = self._tuner == "evolutionary-xgb" and self._cost_model.data_size >= _WARM_UP
        model = self._cost_model if informed else _random_model(state)
        context.pre_tuning(_ENDLESS, count_asked, self._space_of(task), search.database, model)
        candidates = context.generate_measure_candidates()
        context.post_tuning()
        return [candidate.sch for candidate in candidates or []]

    def _state(self, task: Task, number: int, half: int = 0) -> int:
        """Return a random state for a round: 1 to 2**31 - 1, the same for the same run, round and kernel."""
        # The workload is part of it, so that the order of tasks does not change what is found for each.
        digest = files.sha256_bytes(f"{self._seed} {number} {half} {task.workload}".encode())
        return int(digest[:8], 16) % (2**31 - 2) + 1

    def _context(self, task: Task, strategy: Any, state: int) -> Any:
        return meta_schedule().TuneContext(
            mod=task.module,
            target=self._target,
            space_generator=traces.space_generator(self._target),
            search_strategy=strategy,
            task_name=task.name,
            rand_state=state,
            num_threads=1,
        )

    def _strategy(self) -> Any:
        strategies = meta_schedule().search_strategy
        # ReplayTrace draws each candidate independently, without a cost model.
        if self._tuner == "random":
            return strategies.ReplayTrace()
        return strategies.EvolutionarySearch(
            population_size=_POPULATION, genetic_num_iters=_GENERATIONS, init_min_unmeasured=1
        )

    def _space_of(self, task: Task) -> Sequence[Any]:
        if task.workload not in self._spaces:
            traces.register_rules(task.module, self._target)
            # The generator draws random decisions; a state of its own makes the spaces the same in every run.
            context = self._context(task, None, self._state(task, -1))
            self._spaces[task.workload] = context.generate_design_space()
        return self._spaces[task.workload]

    def exclude(self, task: Task, keys: Iterable[str]) -> None:
        """Do not propose some candidates again: they are being measured."""
        tried = self._templates.tried(task) if task.layer else self.of_task(task).tried
        tried.update(keys)

    # --- learning ---

    def learn(self, task: Task, candidates: Sequence[Candidate], samples: Sequence[Sequence[float]]) -> None:
        """Use the results of a round in later ones; the samples of a failed candidate are empty."""
        if task.layer:
            self.exclude(task, (candidate.key for candidate in candidates))
            return
        search = self.of_task(task)
        stock = meta_schedule()
        scheduled = []  # all but the untuned kernel, which has no schedule of MetaSchedule's
        for candidate, seconds in zip(candidates, samples, strict=True):
            search.tried.add(candidate.key)
            if candidate.schedule is not None:
                scheduled.append((candidate.schedule, seconds))
                if seconds:
                    args = stock.arg_info.ArgInfo.from_entry_func(candidate.module, True)  # noqa: FBT003 - TVM's way
                    latency, trace = [float(np.median(seconds))], candidate.schedule.trace
                    search.database.commit_tuning_record(
                        stock.database.TuningRecord(trace, search.workload, latency, self._target, args)
                    )
        # Failed candidates are not in the database, but the cost model learns from them, too.
        search.forget_slow()
        self.learn_costs(task.module, [schedule for schedule, _ in scheduled], [seconds for _, seconds in scheduled])

    def learn_costs(self, module: tvm.IRModule, schedules: Sequence[Any], samples: Sequence[Sequence[float]]) -> None:
        """Train only the cost model, with schedules of any kernel: what it learns applies to other kernels too."""
        if self._tuner != "evolutionary-xgb" or not schedules:
            return
        runner = meta_schedule().runner
        results = [
            runner.RunnerResult([float(np.median(seconds))] if seconds else [_FAILED_S], None) for seconds in samples
        ]
        context = meta_schedule().TuneContext(mod=module, target=self._target, num_threads=1)
        self._cost_model.update(context, [measure_candidate(schedule) for schedule in schedules], results)
        groups = self._cost_model.data.values()
        if sum(len(group.features) for group in groups) > _MOST_LEARNED:
            for group in groups:  # keep the newer half of each kernel's results
                # Kernels keep the same share, so that none is forgotten.
                half = len(group.features) // 2
                del group.features[:half]
                group.costs = group.costs[half:]

    def rebuild(self, task: Task, trace: Any) -> Candidate | None:
        """Rebuild a candidate from its trace; None if the trace no longer fits the kernel."""
        if task.layer:
            return self._templates.rebuild(task, trace)
        if trace == traces.DEFAULT:
            return self._untuned(task)
        schedule = self.of_task(task).rebuilder.from_json(trace)
        return None if schedule is None else _candidate(schedule)


def _random_model(state: int) -> Any:
    """Return a cost model of random scores with its own stream; MetaSchedule's draws from a state that all share."""
    stream = np.random.default_rng(state)

    @derived_object
    class RandomModel(meta_schedule().cost_model.PyCostModel):  # type: ignore[misc]
        def update(self, context: Any, candidates: Any, results: Any) -> None:
            """Learn nothing."""

        def predict(self, context: Any, candidates: Any) -> Any:
            del context
            return stream.random(len(candidates))

    return RandomModel()


def _candidate(schedule: Any) -> Candidate:
    return Candidate(workload_hash(schedule.mod), traces.as_json(schedule), schedule.mod, schedule)


def measure_candidate(schedule: Any) -> Any:
    """Return a schedule with its arguments, as MetaSchedule's cost models take it."""
    args = meta_schedule().arg_info.ArgInfo.from_entry_func(schedule.mod, True)  # noqa: FBT003 - TVM's way
    return meta_schedule().search_strategy.MeasureCandidate(schedule, args)


# --- the grid --------------------------------------------------------------------------------------------------------


def _enumerate(spaces: Sequence[Any], search: TaskSearch) -> Iterator[Candidate]:
    """Yield every schedule of the design spaces in the order of their decisions, the last one changing fastest."""
    for space in spaces:
        instructions = [instruction for instruction in space.trace.insts if instruction in space.trace.decisions]
        choices = [_choices(instruction, space.trace.decisions[instruction]) for instruction in instructions]
        for decisions in itertools.product(*choices):
            trace = space.trace
            for instruction, decision in zip(instructions, decisions, strict=True):
                trace = trace.with_decision(instruction, decision, remove_postproc=True)
            schedule = search.rebuilder.from_trace(trace)
            if schedule is not None:
                yield _candidate(schedule)


def _choices(instruction: Any, decision: Any) -> list[Any]:
    """List the possible decisions of a sampling instruction; one whose choices cannot be listed keeps its decision."""
    kind = str(instruction.kind.name)
    if kind == "SamplePerfectTile":
        factors = [int(factor) for factor in decision]
        most = int(instruction.attrs[1])
        return [tile for tile in _tilings(math.prod(factors), len(factors)) if most <= 0 or tile[-1] <= most]
    if kind == "SampleCategorical":
        return list(range(len(instruction.attrs[0])))
    return [decision]


def _tilings(extent: int, levels: int) -> list[list[int]]:
    """List the ways to write a number as an ordered product of `levels` factors."""
    if levels == 1:
        return [[extent]]
    divisors = [number for number in range(1, extent + 1) if extent % number == 0]
    return [[first, *rest] for first in divisors for rest in _tilings(extent // first, levels - 1)]
