"""The way of candidates from the search to the boards: what was found is built and measured while more is searched."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

import tvm

from toolchain.records import Record
from toolchain.records.tasks import Task, args_of
from toolchain.tuning.prune import Pruner
from toolchain.tuning.task_state import TaskState
from toolchain.tuning.template_search import Candidate
from toolchain.tuning.trials import Builds, Built, Measured, Measures, Trial

STAGES = ("model", "build", "run")
"""What happens to a round on its way, in this order."""


@dataclass(eq=False)
class Round:
    """One round on its way.

    Attributes:
        number: Its number in the run.
        state: Its task.
        candidates: What it tries; None for one whose recorded trace does not fit any more.
        results: One record per candidate, once there is one.
        of: Candidates that the search found for it.
        passed: The stages of its way, and the events that tell that it has passed each.
    """

    number: int
    state: TaskState
    candidates: list[Candidate | None]
    results: list[Record | None]
    of: int
    passed: dict[str, threading.Event] = field(
        default_factory=lambda: {stage: threading.Event() for stage in STAGES}, repr=False
    )

    @property
    def missing(self) -> list[int]:
        """Places of the candidates without a result."""
        return [place for place, record in enumerate(self.results) if record is None]

    def module(self, place: int) -> tvm.IRModule:
        """Return the module of a candidate without a result."""
        candidate = self.candidates[place]
        if candidate is None:
            raise AssertionError("only candidates without a result are built")
        return candidate.module


Note = Callable[[Round, int, Measured], None]
"""Is told the result of a candidate of a round: the round, the candidate's place there, and what became of it."""


class Conveyor:
    """Builds rounds in the order that they come, and hands what was built to the boards; to be used in a `with`.

    Its one thread takes a round after the other, as all that can build work on the candidates of one at once.

    Args:
        builds: Compiles candidates.
        measures: Measures them.
        pruner: Rules out candidates before they are built; None to measure all.
        completed: Makes of a candidate's module what a build makes of it.
        passing: Bytes that pass the caches between two runs of a task's kernel.
        note: Is told each result the moment that it is known, in the thread that it comes in.
    """

    def __init__(
        self,
        builds: Builds,
        measures: Measures,
        pruner: Pruner | None,
        *,
        completed: Callable[[tvm.IRModule], tvm.IRModule],
        passing: Callable[[Task], int],
        note: Note,
    ) -> None:
        self._builds = builds
        self._measures = measures
        self._pruner = pruner
        self._completed = completed
        self._passing = passing
        self._note = note
        self._rounds: queue.SimpleQueue[Round | None] = queue.SimpleQueue()
        self._fault: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conveyor", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take nothing more; what a builder that is ended says from now on is no result."""
        self._ended.set()
        self._rounds.put(None)
        if fault is None:
            self._thread.join()

    def put(self, planned: Round) -> None:
        """Take a round; nobody else changes it until all its events are set."""
        self._rounds.put(planned)

    def check(self) -> None:
        """Raise what has gone wrong on the way, if anything has.

        Raises:
            BuildError: No candidate can be built.
            DeviceError: No board is left.
            InputError: A result cannot be written down.
        """
        if self._fault is not None:
            raise self._fault

    def _fail(self, fault: Exception) -> None:
        self._fault = self._fault or fault

    def _run(self) -> None:
        while (planned := self._rounds.get()) is not None:
            try:
                self._send(planned)
            except Exception as fault:  # noqa: BLE001 - whoever waits for the round is told; see `check`
                self._fail(fault)
                return

    def _send(self, planned: Round) -> None:
        self._prune(planned)
        planned.passed["model"].set()
        missing = planned.missing
        modules = [self._completed(planned.module(place)) for place in missing]
        built = self._builds.build(modules) if modules else []
        if self._ended.is_set():
            return
        planned.passed["build"].set()
        self._measure(planned, list(zip(missing, built, strict=True)))

    def _prune(self, planned: Round) -> None:
        """Note what the model rules out, so that no board is asked about it."""
        if self._pruner is None or planned.state.task.layer:
            return
        as_built = [one and replace(one, module=self._completed(one.module)) for one in planned.candidates]
        verdicts = self._pruner.verdicts(planned.state.task.workload, as_built)
        for place, one in enumerate(verdicts):
            if one is not None and planned.results[place] is None:
                self._note(planned, place, Measured((), one.cause, one.error))

    def _measure(self, planned: Round, built: Sequence[tuple[int, Built]]) -> None:
        left = _Left(sum(one.library is not None for _, one in built), planned.passed["run"])
        for place, one in built:
            if one.library is None:
                self._note(planned, place, Measured((), "build", one.error, seconds=one.seconds))
                continue
            task = planned.state.task
            args = args_of(planned.module(place), packed=True)
            trial = Trial(one.library, args, task.name, self._passing(task), task.gflop)
            future = self._measures.submit(trial)
            future.add_done_callback(partial(self._measured, planned, place, one, left))

    def _measured(self, planned: Round, place: int, built: Built, left: _Left, future: Future[Measured]) -> None:
        """Pass a result on the moment that it comes, in the thread that it comes in."""
        try:
            self._builds.discard(built)
            self._note(planned, place, future.result())
        except Exception as fault:  # noqa: BLE001 - a callback has nobody to tell; whoever waits is told
            self._fail(fault)
        finally:
            left.one_less()


class _Left:
    """Counts down, and sets an event at the end.

    Args:
        count: How many are left.
        event: What is set when none is.
    """

    def __init__(self, count: int, event: threading.Event) -> None:
        self._count, self._event, self._lock = count, event, threading.Lock()
        if not count:
            event.set()

    def one_less(self) -> None:
        """Note that there is one less."""
        with self._lock:
            self._count -= 1
            if not self._count:
                self._event.set()
