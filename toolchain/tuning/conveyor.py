"""Builds and measures rounds of candidates in the background while the search goes on.

A model may rule out candidates before that.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

import tvm

from toolchain.backends.base import CostModel, Estimate
from toolchain.records import Record, traces
from toolchain.records.results import Cause
from toolchain.records.tasks import args_of
from toolchain.tuning.search import Candidate
from toolchain.tuning.task_state import TaskState
from toolchain.tuning.trials import Built, Measured, Trial, Trials

STAGES = ("model", "build", "run")
"""The stages of a round, in this order."""


@dataclass(frozen=True)
class Verdict:
    """Why a candidate is not measured: the cause and the error of its record."""

    cause: Cause
    error: str


@dataclass
class Pruner:
    """Rules out candidates that spill, and those that cost much more than the best of their kernel so far.

    The verdicts of a round depend only on the rounds before it, also in a resumed run: all candidates are estimated
    again, which the model's cache makes cheap. Neither the untuned kernel nor a candidate that the model cannot judge
    is ever ruled out.

    Attributes:
        model: Estimates candidates.
        most: How many times the cost of the best a candidate may cost.
    """

    model: CostModel
    most: float
    _best_ms: dict[str, float] = field(default_factory=dict)

    def verdicts(self, workload: str, candidates: Sequence[Candidate | None]) -> list[Verdict | None]:
        """Judge the candidates of a round.

        A candidate is None if its trace no longer fits.

        Returns:
            For each candidate, why it is not measured; None if it is.

        Raises:
            BuildError: The model's compiler does not work here.
        """
        present = [candidate for candidate in candidates if candidate is not None]
        estimates = self.model.estimates([candidate.module for candidate in present], spilling=False)
        times = [estimate.ms for estimate in estimates if estimate.ms is not None and not estimate.spills]
        best_ms = min([self._best_ms.get(workload, math.inf), *times])
        self._best_ms[workload] = best_ms
        # Estimates exist only for candidates that could be rebuilt.
        remaining = iter(estimates)
        return [
            None if candidate is None else self._verdict(candidate, next(remaining), best_ms)
            for candidate in candidates
        ]

    def _verdict(self, candidate: Candidate, estimate: Estimate, best_ms: float) -> Verdict | None:
        if estimate.fault or candidate.trace == traces.DEFAULT:
            return None
        if estimate.spills:
            return Verdict("spills", f"{estimate.spills} values are spilled; {self.model.stamp}")
        if estimate.ms is not None and estimate.ms > self.most * best_ms:
            return Verdict("costly", f"{estimate.ms / best_ms:.1f} times the best known; {self.model.stamp}")
        return None


@dataclass(eq=False)
class Round:
    """One round of candidates of one task.

    Attributes:
        number: Its number in the run.
        state: Its task.
        candidates: What it tries; None for a candidate whose recorded trace no longer fits the kernel.
        results: The record of each candidate; None until there is a result.
        of: Candidates that the search proposed for it.
        passed: For each stage, an event that is set when the round has passed it.
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
        return [index for index, record in enumerate(self.results) if record is None]

    def module(self, index: int) -> tvm.IRModule:
        candidate = self.candidates[index]
        if candidate is None:
            raise AssertionError("only candidates without a result are built")
        return candidate.module


Note = Callable[[Round, int, Measured], None]
"""Called with the result of a candidate: the round, the candidate's index in it, and the result."""


class Conveyor:
    """Builds rounds in the order in which they are put, and submits the libraries to the boards. Use it in a `with`.

    A single thread builds one round after the other: the builder already spreads the candidates of a round over all
    its workers.

    Args:
        pruner: Rules out candidates before they are built; None to measure all.
        note: Called with each result as soon as it is known, in the thread that produced it.
    """

    def __init__(self, trials: Trials, pruner: Pruner | None, note: Note) -> None:
        self._trials = trials
        self._pruner = pruner
        self._note = note
        self._rounds: queue.SimpleQueue[Round | None] = queue.SimpleQueue()
        self._fault: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conveyor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Results of a builder that is being ended are ignored: they are failures of no candidate."""
        self._ended.set()
        self._rounds.put(None)
        if fault is None:
            self._thread.join()

    def put(self, planned: Round) -> None:
        """Add a round. Only the conveyor changes it until all its events are set."""
        self._rounds.put(planned)

    def check(self) -> None:
        """Raise the first error of the background threads, if there was one.

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
            except Exception as fault:  # noqa: BLE001 - `check` raises it in the thread that waits for the round
                self._fail(fault)
                return

    def _send(self, planned: Round) -> None:
        self._prune(planned)
        planned.passed["model"].set()
        missing = planned.missing
        results = self._trials.build([planned.module(index) for index in missing])
        if self._ended.is_set():
            return
        planned.passed["build"].set()
        # Set up before the first submission, whose result may arrive at once.
        latch = CountDownLatch(sum(built.library is not None for built in results), planned.passed["run"])
        task = planned.state.task
        for index, built in zip(missing, results, strict=True):
            if built.library is None:
                self._note(planned, index, Measured((), "build", built.error, seconds=built.seconds))
                continue
            args = args_of(planned.module(index), packed=True)
            trial = Trial(built.library, args, task.name, self._trials.passing_bytes(task), task.gflop)
            future = self._trials.measures.submit(trial)
            future.add_done_callback(partial(self._finish, planned, index, built, latch))

    def _prune(self, planned: Round) -> None:
        """Note the candidates that the model rules out, so that no board measures them."""
        if self._pruner is None or planned.state.task.layer:
            return
        complete = self._trials.complete
        candidates = [
            candidate and replace(candidate, module=complete(candidate.module)) for candidate in planned.candidates
        ]
        # Recorded candidates are judged, too: the verdicts depend on the best of all candidates so far.
        verdicts = self._pruner.verdicts(planned.state.task.workload, candidates)
        for index, verdict in enumerate(verdicts):
            if verdict is not None and planned.results[index] is None:
                self._note(planned, index, Measured((), verdict.cause, verdict.error))

    def _finish(
        self, planned: Round, index: int, built: Built, latch: CountDownLatch, future: Future[Measured]
    ) -> None:
        try:
            self._trials.builds.discard(built)
            self._note(planned, index, future.result())
        except Exception as fault:  # noqa: BLE001 - an exception in a callback would be lost; `check` raises it
            self._fail(fault)
        finally:
            latch.count_down()


class CountDownLatch:
    """Sets an event after a number of `count_down` calls; at once if that number is 0."""

    def __init__(self, count: int, event: threading.Event) -> None:
        self._count, self._event, self._lock = count, event, threading.Lock()
        if not count:
            event.set()

    def count_down(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._event.set()
