"""The progress of the tasks of a tuning run, and which is tuned next.

The choice is the gradient task scheduler of Ansor (Zheng et al., OSDI 2020, section 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.records import Record
from toolchain.records.results import PRUNED
from toolchain.records.tasks import Task

_ALPHA = 0.2  # weight of the gain of the last rounds, against the optimistic guess
_WINDOW = 3  # rounds over which that gain is averaged


@dataclass
class TaskState:
    """The progress of one task.

    Results arrive in any order. What is counted on arrival is only displayed; what decides how the run continues is
    updated when a complete round is learned from, so that a resumed run decides the same.

    Attributes:
        task: The task.
        planned: Candidates of the rounds so far.
        measured: Trials with a result, failures included.
        failed: Failures among them.
        pruned: Those among them that a model ruled out.
        best_s: Best latency after each round that was learned from; a first value may come from earlier records.
        fastest_s: Best latency so far, also of rounds that still run; infinite while there is none.
        stale: Trials that were learned from since the best was found.
        hopeless: Failures that were learned from while no candidate had worked.
        exhausted: Whether there is nothing left to try.
        decision: What its final decided; None before it.
    """

    task: Task
    planned: int = 0
    measured: int = 0
    failed: int = 0
    pruned: int = 0
    best_s: tuple[float, ...] = ()
    fastest_s: float = math.inf
    stale: int = 0
    hopeless: int = 0
    exhausted: bool = False
    decision: Record | None = None

    @property
    def known_s(self) -> float:
        """Best latency of the rounds that were learned from; infinite while there is none."""
        return self.best_s[-1] if self.best_s else math.inf

    def count(self, record: Record) -> None:
        self.measured += 1
        self.pruned += record.cause in PRUNED
        self.failed += _has_failed(record)
        self.fastest_s = min(self.fastest_s, record.latency_s)

    def begin(self, best_s: float) -> None:
        """Start from the best latency of earlier records."""
        self.fastest_s = min(self.fastest_s, best_s)
        if not math.isinf(self.fastest_s):
            self.best_s = (self.fastest_s,)

    def learn(self, records: list[Record]) -> None:
        before = self.known_s
        best = min([before, *(record.latency_s for record in records)])
        # Counted per round, since results within a round arrive in any order.
        self.stale = 0 if best < before else self.stale + len(records)
        self.hopeless = self.hopeless + sum(map(_has_failed, records)) if math.isinf(best) else 0
        self.best_s = (*self.best_s, best)


def _has_failed(record: Record) -> bool:
    return bool(record.cause) and record.cause not in PRUNED


@dataclass(frozen=True)
class Point:
    """The estimate at one moment: seconds since the run began, trials so far, seconds of one run of the model."""

    seconds: float
    trials: int
    estimated_s: float


@dataclass(frozen=True)
class Progress:
    """The progress of one task.

    Attributes:
        weight: How many times one run of the model calls the kernel.
        trials: Trials that were planned so far.
        best_s: Best latency in seconds after each round whose results are known; infinite while there is none.
        pending: Rounds that were planned and whose results are not known.
        done: Whether the task is not tuned any further: nothing is left to try, or a limit is reached.
    """

    weight: int
    trials: int
    best_s: tuple[float, ...]
    pending: int = 0
    done: bool = False


def pick(tasks: Sequence[Progress]) -> int | None:
    """Choose the task that is expected to shorten the model's run most.

    Each task gets a first round in the order of the tasks; then the task with the steepest expected descent is next.
    Pending rounds divide the descent of their task, so that tasks take turns while results are missing.

    Returns:
        Its index, or None if all are done.
    """
    unfinished = [index for index, task in enumerate(tasks) if not task.done]
    for index in unfinished:
        if tasks[index].trials == 0:
            return index
    return max(unfinished, key=lambda index: (_descent(tasks[index]), -tasks[index].trials, -index), default=None)


def _descent(task: Progress) -> float:
    """Estimate the seconds of the model's run that the next round gains."""
    best = task.best_s[-1] if task.best_s else math.inf
    if math.isinf(best):  # no candidate has worked yet: other tasks come first
        return 0.0
    # The gain of the last rounds goes on, or (optimistically) the latency keeps falling as it did on average.
    backward = max(task.best_s[-1 - _WINDOW] - best, 0.0) / _WINDOW if len(task.best_s) > _WINDOW else best
    forward = best / len(task.best_s)
    return task.weight * (_ALPHA * min(backward, best) + (1 - _ALPHA) * forward) / (1 + task.pending)
