"""Which task is tuned next: the gradient task scheduler of Ansor (Zheng et al., OSDI 2020, section 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_ALPHA = 0.2  # trust in the last rounds' gain, against the optimistic guess
_WINDOW = 3  # rounds that gain is taken over


@dataclass(frozen=True)
class Progress:
    """How far one task is.

    Attributes:
        weight: How many times one run of the model calls the kernel.
        trials: Trials that were planned so far.
        best_s: Best latency in seconds after each round whose results are known; infinite while there is none.
        under_way: Rounds that were planned and whose results are not known.
        done: Whether nothing more is to be gained: nothing is left to try, or a limit is reached.
    """

    weight: int
    trials: int
    best_s: tuple[float, ...]
    under_way: int = 0
    done: bool = False


def pick(tasks: Sequence[Progress]) -> int | None:
    """Choose the task that promises to shorten the model's run most.

    Each task gets a first round in the order of the tasks; then the one with the steepest expected descent is next. A
    task's rounds on their way each take their part of that, so that tasks take turns while nothing is known of them.

    Returns:
        Its place in the sequence, or None if all are done.
    """
    left = [place for place, task in enumerate(tasks) if not task.done]
    for place in left:
        if tasks[place].trials == 0:
            return place
    return max(left, key=lambda place: (_descent(tasks[place]), -tasks[place].trials, -place), default=None)


def _descent(task: Progress) -> float:
    """Return the seconds of the model's run that the next round may gain."""
    best = task.best_s[-1] if task.best_s else math.inf
    if math.isinf(best):  # nothing has worked yet; others first, but it is not forgotten
        return 0.0
    backward = max(task.best_s[-1 - _WINDOW] - best, 0.0) / _WINDOW if len(task.best_s) > _WINDOW else best
    forward = best / len(task.best_s)
    return task.weight * (_ALPHA * min(backward, best) + (1 - _ALPHA) * forward) / (1 + task.under_way)
