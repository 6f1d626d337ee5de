"""Tasks with what they cost, by a model that is a formula."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support import tuning_client
from tests.support.cost_models import FormulaCosts
from toolchain.backends.base import Estimate
from toolchain.pipeline import task_costs
from toolchain.pipeline.task_costs import CostedTask
from toolchain.records import tasks
from toolchain.report import plain

BACKEND = tuning_client.backend()


@pytest.fixture(scope="module")
def kernels():
    extracted = tasks.extract(tuning_client.lowered("mlp"), BACKEND)
    return [dataclasses.replace(task, weight=index + 1) for index, task in enumerate(extracted)]


def test_without_a_model_tasks_are_as_they_come(kernels):
    costs = task_costs.estimate_costs(kernels, BACKEND, None)
    assert [cost.task for cost in costs] == kernels
    assert task_costs.summary(costs, None) == []
    assert "SPILLS" not in plain([task_costs.table(costs)])


def test_what_costs_most_in_a_run_comes_first(kernels):
    model = FormulaCosts()
    costs = task_costs.estimate_costs(kernels, BACKEND, model)
    assert {cost.task.id for cost in costs} == {task.id for task in kernels}
    times = [cost.ms for cost in costs if cost.ms is not None]
    assert times == sorted(times, reverse=True)
    for cost in costs:
        assert cost.estimate == model.of(BACKEND.schedule(cost.task.module))
        assert cost.ms is None or cost.ms == cost.task.weight * cost.estimate.ms


def test_unknown_costs_come_last_and_are_told(kernels):
    refused = CostedTask(kernels[0], Estimate(fault="no such thing"), "modelled (x)")
    estimated = CostedTask(kernels[1], Estimate(2.0, 7), "modelled (x)")
    model = FormulaCosts(obstacle="it is weak")
    first, fault, weak = task_costs.summary([estimated, refused], model)
    assert first.startswith("untuned, estimated 4 ms a run of 1 tasks, 1 spill: formula")
    assert model.stamp in first
    assert "no such thing" in fault
    assert weak == "it is weak"
    assert "refused" in plain([task_costs.table([estimated, refused])])
    silent = CostedTask(kernels[0], Estimate(fault="qemu is gone", answered=False), "modelled (x)")
    assert "no answer" in plain([task_costs.table([estimated, silent])])
    assert estimated.document() == {"stamp": "modelled (x)", "ms": 2.0, "run_ms": 4.0, "spills": 7, "fault": ""}
