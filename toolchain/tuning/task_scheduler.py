"""Which task to tune next: the gradient task scheduler of Ansor (Zheng et al., OSDI 2020, section 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_ALPHA = 0.2  # weight of the gain of the last rounds, against the optimistic guess
_WINDOW = 3  # rounds over which that gain is averaged


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
