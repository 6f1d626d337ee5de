"""The tasks of a model with what each costs as it is untuned, by a model of the board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolchain.backends.base import Backend
from toolchain.backends.base.costs import CostModel, Estimate
from toolchain.records.tasks import Task
from toolchain.tables import Table

_HEAD = ("ID", "TASK", "OPERATOR", "SHAPE", "WEIGHT", "GFLOPs")
_COSTS = ("EST. MS", "SPILLS")
_NOTHING = "-"


@dataclass(frozen=True)
class Costed:
    """A task, and what it costs.

    Attributes:
        task: It.
        estimate: What one call costs where nothing is tuned; None if nobody asked.
        stamp: What that is by.
    """

    task: Task
    estimate: Estimate | None = None
    stamp: str = ""

    @property
    def ms(self) -> float | None:
        """Estimated milliseconds of all calls in a run of the model."""
        return None if self.estimate is None or self.estimate.ms is None else self.task.weight * self.estimate.ms

    def document(self) -> dict[str, Any]:
        """Return the costs for --json."""
        found = self.estimate or Estimate()
        return {"stamp": self.stamp, "ms": found.ms, "run_ms": self.ms, "spills": found.spills, "fault": found.fault}


def costed(tasks: Sequence[Task], backend: Backend, model: CostModel | None) -> list[Costed]:
    """Cost the kernels of tasks as they are untuned.

    Args:
        tasks: They.
        backend: The board's.
        model: The board's; None to leave the costs out.

    Returns:
        The tasks in their order, or those that cost most first; those of unknown costs come last.

    Raises:
        BuildError: The model's compiler does not work here.
    """
    if model is None:
        return [Costed(task) for task in tasks]
    estimates = model.estimates([backend.scheduled(task.module) for task in tasks])
    found = [Costed(task, one, model.stamp) for task, one in zip(tasks, estimates, strict=True)]
    return sorted(found, key=lambda one: -1.0 if one.ms is None else one.ms, reverse=True)


def table(found: Sequence[Costed]) -> Table:
    """Return the tasks as a table."""
    if not any(one.estimate for one in found):
        return Table([_cells(one) for one in found], _HEAD, numbers=[0, 4, 5], spare=[1])
    rows = [(*_cells(one), *_costs(one)) for one in found]
    return Table(rows, (*_HEAD, *_COSTS), numbers=[0, 4, 5, 6, 7], spare=[1])


def _cells(one: Costed) -> tuple[str, ...]:
    task = one.task
    return (str(task.id), task.name, task.operator, task.shape, str(task.weight), f"{task.gflop:.4f}")


def _costs(one: Costed) -> tuple[str, str]:
    if one.estimate is None:
        return _NOTHING, _NOTHING
    if one.estimate.fault:
        return _NOTHING, "refused" if one.estimate.answered else "no answer"
    return _NOTHING if one.ms is None else f"{one.ms:.3f}", str(one.estimate.spills)


def summary(found: Sequence[Costed], model: CostModel | None) -> list[str]:
    """Say what all tasks cost, and by what that is known; nothing if nobody asked."""
    if model is None:
        return []
    known = [one.ms for one in found if one.ms is not None]
    total = f"estimated {sum(known):.3g} ms a run" if known else "no estimate"
    partly = f" of {len(known)} tasks" if known and len(known) < len(found) else ""
    faults = [f"{one.task.name}: {one.estimate.fault}" for one in found if one.estimate and one.estimate.fault]
    spilling = sum(bool(one.estimate and one.estimate.spills) for one in found)
    weak = [model.obstacle] if model.obstacle else []
    return [f"untuned, {total}{partly}, {spilling} spill: {model.name}, {model.stamp}", *faults, *weak]
