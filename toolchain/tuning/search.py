"""How candidates are found: MetaSchedule's strategies and cost models, made repeatable.

A round proposes candidates for one task. What it proposes depends on the seed, on the round's number, and on the
results that were known when it began, and on nothing else: every round starts MetaSchedule anew with random states of
its own, one for each half of the search, each on one thread, since its own threads share out the work as they come. So
a run that was interrupted goes on exactly where it would have been, from its records alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tvm
from tvm.ir.utils import derived_object

from toolchain import files
from toolchain.backends.base import Backend, Choice
from toolchain.records import traces
from toolchain.records.metaschedule import meta_schedule
from toolchain.records.tasks import Task, workload_hash
from toolchain.tuning.template_search import Candidate, TemplateSearch

Tuner = Literal["evolutionary-xgb", "evolutionary-random", "random", "grid"]
TUNERS: tuple[Tuner, ...] = ("evolutionary-xgb", "evolutionary-random", "random", "grid")

# Facts of a two-core machine: the stock 512 x 4 spend 20 s on 16 candidates that are hardly better.
_POPULATION, _GENERATIONS = 48, 2  # of each half
_HALVES = 2  # whatever machine this is: other halves would find other candidates
_ENDLESS = 1 << 30
_WARM_UP = 48  # results before the cost model is asked
_MOST_ASKED = 4  # times the wanted number, to have enough left when those are out that were tried before
_BEST = 64  # of a kernel; MetaSchedule mutates a fifth of its population from those, and looks at no others
_MOST_LEARNED = 4096  # results that the cost model keeps; the features of one take tens of kilobytes
_FAILED_S = 1e10  # what the cost model learns of a candidate that failed, as in MetaSchedule


@dataclass
class Known:
    """What is known of one task at the beginning of a round.

    Attributes:
        database: MetaSchedule's, with the best of the candidates that ran.
        workload: The task's entry in it.
        rebuilder: Makes its schedules again.
        tried: Keys of all candidates that were measured, that failed, or that are under way.
        untuned: The backend's own schedule, once it was asked for.
    """

    database: Any
    workload: Any
    rebuilder: traces.Rebuilder
    tried: set[str] = field(default_factory=set)
    untuned: Candidate | None = None

    def forget_slow(self) -> None:
        """Keep the best candidates alone where there are many: each takes tens of kilobytes."""
        if len(self.database) > 2 * _BEST:
            best = self.database.get_top_k(self.workload, _BEST)
            self.database = meta_schedule().database.MemoryDatabase()
            self.workload = self.database.commit_workload(self.workload.mod)
            for one in best:
                self.database.commit_tuning_record(one)


class Search:
    """The search over the schedules of a model's kernels.

    Of a layer that a template computes, the template's few candidates are proposed, whatever the strategy.

    Args:
        backend: The board's.
        tuner: Which strategy.
        seed: The run's seed.
        shipped: How layers are computed by records that come with the toolchain, by workload.
    """

    def __init__(self, backend: Backend, tuner: Tuner, seed: int, shipped: Mapping[str, Choice] | None = None) -> None:
        self._templates = TemplateSearch(backend.templates)
        self._default = backend.schedule
        self._target = backend.target
        self._tuner = tuner
        self._seed = seed
        self._shipped = shipped or {}
        self._known: dict[str, Known] = {}
        self._spaces: dict[str, Sequence[Any]] = {}
        self._grids: dict[str, Iterator[Candidate]] = {}
        self._learned = meta_schedule().cost_model.XGBModel(num_warmup_samples=0, num_tuning_cores=1)

    def known(self, task: Task) -> Known:
        """Return what is known of a task so far."""
        if task.workload not in self._known:
            database = meta_schedule().database.MemoryDatabase()
            rebuilder = traces.Rebuilder(task.module, self._target)
            self._known[task.workload] = Known(database, database.commit_workload(task.module), rebuilder)
        return self._known[task.workload]

    # --- proposing ---

    def propose(self, task: Task, number: int, count: int) -> list[Candidate]:
        """Find candidates that were not tried yet.

        Args:
            task: The kernel.
            number: The round's number in the run; part of the random state.
            count: How many.

        Returns:
            At most `count`, the most promising first; none if nothing is left to try.
        """
        if task.layer:
            return self._templates.propose(task, count)
        found = self._grid(task) if self._tuner == "grid" else self._found(task, number, count)
        return self._fresh(task, itertools.chain([self._untuned(task)], found), count)

    def _fresh(self, task: Task, proposed: Iterable[Candidate], count: int) -> list[Candidate]:
        tried = set(self.known(task).tried)
        found = []
        for candidate in proposed:
            if candidate.key not in tried:
                tried.add(candidate.key)
                found.append(candidate)
            if len(found) == count:
                break
        return found

    def _untuned(self, task: Task) -> Candidate:
        """Return what a kernel is where nothing was tuned: a record is to be faster than that, or it is of no use."""
        known = self.known(task)
        if known.untuned is None:
            module = self._default(task.module)
            known.untuned = Candidate(workload_hash(module), traces.DEFAULT, module)
        return known.untuned

    def base(self, task: Task) -> Candidate:
        """Return what a kernel is where the user tuned nothing, and what a final is held against."""
        if task.layer:
            return self._templates.base(task, self._shipped.get(task.workload))
        return self._untuned(task)

    def _found(self, task: Task, number: int, count: int) -> Iterator[Candidate]:
        """Search in two halves at a time, each on one thread, and take turns in picking of what they found."""
        self.known(task), self._space_of(task)  # made here, since the halves share them
        with ThreadPoolExecutor(_HALVES) as threads:
            halves = list(
                threads.map(lambda half: self._half(task, self._state(task, number, half), count), range(_HALVES))
            )
        turns = itertools.chain.from_iterable(itertools.zip_longest(*halves))
        tried = self.known(task).tried
        return (_candidate(schedule) for schedule in turns if schedule is not None and _key(schedule) not in tried)

    def _half(self, task: Task, state: int, count: int) -> list[Any]:
        known = self.known(task)
        asked = min(count + len(known.tried), _MOST_ASKED * count)
        context = self._context(task, self._strategy(), state)
        context.pre_tuning(_ENDLESS, asked, self._space_of(task), known.database, self._model(state))
        found = context.generate_measure_candidates()
        context.post_tuning()
        return [one.sch for one in found or []]

    def _state(self, task: Task, number: int, half: int = 0) -> int:
        """Return a random state for a round: 1 to 2**31 - 1, the same for the same run, round and kernel."""
        digest = files.sha256_bytes(f"{self._seed} {number} {half} {task.workload}".encode())
        return int(digest[:8], 16) % (2**31 - 2) + 1

    def _model(self, state: int) -> Any:
        """Return the cost model of a round; one that guesses draws from the round's own random state."""
        informed = self._tuner == "evolutionary-xgb" and self._learned.data_size >= _WARM_UP
        return self._learned if informed else _guessing(state)

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
        if self._tuner == "random":
            return strategies.ReplayTrace()
        return strategies.EvolutionarySearch(
            population_size=_POPULATION, genetic_num_iters=_GENERATIONS, init_min_unmeasured=1
        )

    def _space_of(self, task: Task) -> Sequence[Any]:
        if task.workload not in self._spaces:
            traces.know_rule(task.module, self._target)
            context = self._context(task, None, self._state(task, -1))
            self._spaces[task.workload] = context.generate_design_space()
        return self._spaces[task.workload]

    def _grid(self, task: Task) -> Iterator[Candidate]:
        if task.workload not in self._grids:
            self._grids[task.workload] = _enumerated(self._space_of(task), self.known(task))
        return self._grids[task.workload]

    def exclude(self, task: Task, keys: Iterable[str]) -> None:
        """Propose some candidates no more: they are being measured."""
        tried = self._templates.tried(task) if task.layer else self.known(task).tried
        tried.update(keys)

    # --- learning ---

    def learn(self, task: Task, candidates: Sequence[Candidate], samples: Sequence[Sequence[float]]) -> None:
        """Take the results of a round into account.

        Args:
            task: The kernel.
            candidates: What was measured.
            samples: The seconds of each one's samples; empty for one that failed.
        """
        if task.layer:
            self.exclude(task, (one.key for one in candidates))
            return
        known = self.known(task)
        for candidate, seconds in zip(candidates, samples, strict=True):
            known.tried.add(candidate.key)
            if seconds and candidate.schedule is not None:
                known.database.commit_tuning_record(self._record(known, candidate, seconds))
        known.forget_slow()
        searched = [place for place, one in enumerate(candidates) if one.schedule is not None]
        self.learn_costs(
            task.module, [candidates[one].schedule for one in searched], [samples[one] for one in searched]
        )

    def learn_costs(self, module: tvm.IRModule, tried: Sequence[Any], samples: Sequence[Sequence[float]]) -> None:
        """Teach the cost model alone, by schedules of any kernel: what it learns of one carries over to the others."""
        if self._tuner != "evolutionary-xgb" or not tried:
            return
        runner = meta_schedule().runner
        results = [runner.RunnerResult([float(np.median(one))] if one else [_FAILED_S], None) for one in samples]
        context = meta_schedule().TuneContext(mod=module, target=self._target, num_threads=1)
        self._learned.update(context, [measure_candidate(one) for one in tried], results)
        self._forget_old()

    def _forget_old(self) -> None:
        """Let the cost model keep the newer half of each kernel's results where it has too many."""
        groups = self._learned.data.values()
        if sum(len(one.features) for one in groups) > _MOST_LEARNED:
            for one in groups:
                half = len(one.features) // 2
                del one.features[:half]
                one.costs = one.costs[half:]

    def _record(self, known: Known, candidate: Candidate, seconds: Sequence[float]) -> Any:
        args = meta_schedule().arg_info.ArgInfo.from_entry_func(candidate.module, True)  # noqa: FBT003 - TVM's way
        mean = [float(np.median(seconds))]
        return meta_schedule().database.TuningRecord(candidate.schedule.trace, known.workload, mean, self._target, args)

    def rebuilt(self, task: Task, trace: Any) -> Candidate | None:
        """Make a candidate again from its trace; None if it does not fit the kernel any more."""
        if task.layer:
            return self._templates.rebuilt(task, trace)
        if trace == traces.DEFAULT:
            return self._untuned(task)
        schedule = self.known(task).rebuilder.from_json(trace)
        return None if schedule is None else _candidate(schedule)


def _guessing(state: int) -> Any:
    """Return a cost model that guesses, by a stream of its own; MetaSchedule's goes through a state that all share."""
    stream = np.random.default_rng(state)

    @derived_object
    class Guessing(meta_schedule().cost_model.PyCostModel):  # type: ignore[misc]
        def update(self, context: Any, candidates: Any, results: Any) -> None:
            """Learn nothing."""

        def predict(self, context: Any, candidates: Any) -> Any:
            del context
            return stream.random(len(candidates))

    return Guessing()


def _candidate(schedule: Any) -> Candidate:
    return Candidate(_key(schedule), traces.as_json(schedule), schedule.mod, schedule)


def _key(schedule: Any) -> str:
    return workload_hash(schedule.mod)


def measure_candidate(schedule: Any) -> Any:
    """Return MetaSchedule's name for a schedule with its arguments."""
    args = meta_schedule().arg_info.ArgInfo.from_entry_func(schedule.mod, True)  # noqa: FBT003 - TVM's way
    return meta_schedule().search_strategy.MeasureCandidate(schedule, args)


# --- the grid --------------------------------------------------------------------------------------------------------


def _enumerated(spaces: Sequence[Any], known: Known) -> Iterator[Candidate]:
    """Yield every schedule of the design spaces in the order of their decisions, the last one changing fastest."""
    for space in spaces:
        trace = space.trace
        free = [(one, _choices(one, trace.decisions[one])) for one in trace.insts if one in trace.decisions]
        for decisions in itertools.product(*(choices for _inst, choices in free)):
            decided = trace
            for (instruction, _choices_of_it), decision in zip(free, decisions, strict=True):
                decided = decided.with_decision(instruction, decision, remove_postproc=True)
            schedule = known.rebuilder.from_trace(decided)
            if schedule is not None:
                yield _candidate(schedule)


def _choices(instruction: Any, decision: Any) -> list[Any]:
    """List what one sampling instruction may decide; what cannot be listed keeps its decision."""
    kind = str(instruction.kind.name)
    if kind == "SamplePerfectTile":
        factors = [int(one) for one in decision]
        most = int(instruction.attrs[1])
        return [tile for tile in _tilings(math.prod(factors), len(factors)) if most <= 0 or tile[-1] <= most]
    if kind == "SampleCategorical":
        return list(range(len(instruction.attrs[0])))
    return [decision]


def _tilings(extent: int, parts: int) -> list[list[int]]:
    """List the ways to write a number as an ordered product."""
    if parts == 1:
        return [[extent]]
    divisors = [one for one in range(1, extent + 1) if extent % one == 0]
    return [[first, *rest] for first in divisors for rest in _tilings(extent // first, parts - 1)]
