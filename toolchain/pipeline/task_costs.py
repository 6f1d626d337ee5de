"""The tasks of a model with the cost of their untuned kernels, estimated by a model of the board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolchain.backends.base import Backend, CostModel, Estimate
from toolchain.records.tasks import Task
from toolchain.report import Table

_HEAD = ("ID", "TASK", "OPERATOR", "SHAPE", "WEIGHT", "GFLOPs")
_COSTS = ("EST. MS", "SPILLS")
_NO_VALUE = "-"


@dataclass(frozen=True)
class CostedTask:
    """A task and the cost of its untuned kernel; `stamp` names the model behind it."""

    task: Task
    estimate: Estimate | None = None
    stamp: str = ""

    @property
    def ms(self) -> float | None:
        """Estimated milliseconds of all calls in a run of the model."""
        return None if self.estimate is None or self.estimate.ms is None else self.task.weight * self.estimate.ms

    def document(self) -> dict[str, Any]:
        estimate = self.estimate or Estimate()
        return {
            "stamp": self.stamp,
            "ms": estimate.ms,
            "run_ms": self.ms,
            "spills": estimate.spills,
            "fault": estimate.fault,
        }


def estimate_costs(tasks: Sequence[Task], backend: Backend, model: CostModel | None) -> list[CostedTask]:
    """Estimate the untuned kernels of tasks; the most expensive come first, unknown costs last.

    Without a model, the tasks keep their order and have no costs.

    Raises:
        BuildError: The model's compiler does not work here.
    """
    if model is None:
        return [CostedTask(task) for task in tasks]
    estimates = model.estimates([backend.schedule(task.module) for task in tasks])
    costs = [CostedTask(task, estimate, model.stamp) for task, estimate in zip(tasks, estimates, strict=True)]
    return sorted(costs, key=lambda cost: -1.0 if cost.ms is None else cost.ms, reverse=True)


def table(costs: Sequence[CostedTask]) -> Table:
    rows = []
    with_costs = any(cost.estimate for cost in costs)
    for cost in costs:
        task, estimate = cost.task, cost.estimate
        cells = (str(task.id), task.name, task.operator, task.shape, str(task.weight), f"{task.gflop:.4f}")
        if estimate is None:
            ms, spills = _NO_VALUE, _NO_VALUE
        elif estimate.fault:
            ms, spills = _NO_VALUE, "refused" if estimate.answered else "no answer"
        else:
            ms, spills = _NO_VALUE if cost.ms is None else f"{cost.ms:.3f}", str(estimate.spills)
        rows.append((*cells, ms, spills) if with_costs else cells)
    head, numbers = ((*_HEAD, *_COSTS), [0, 4, 5, 6, 7]) if with_costs else (_HEAD, [0, 4, 5])
    return Table(rows, head, numbers=numbers, spare=[1])


def summary(costs: Sequence[CostedTask], model: CostModel | None) -> list[str]:
    """Describe the total and its model; nothing without a model."""
    if model is None:
        return []
    ms = [cost.ms for cost in costs if cost.ms is not None]
    total = f"estimated {sum(ms):.3g} ms a run" if ms else "no estimate"
    partly = f" of {len(ms)} tasks" if ms and len(ms) < len(costs) else ""
    faults = [f"{cost.task.name}: {cost.estimate.fault}" for cost in costs if cost.estimate and cost.estimate.fault]
    spilling = sum(bool(cost.estimate and cost.estimate.spills) for cost in costs)
    obstacles = [model.obstacle] if model.obstacle else []
    return [f"untuned, {total}{partly}, {spilling} spill: {model.name}, {model.stamp}", *faults, *obstacles]
