"""Tasks with what they cost, by a model that is a formula."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support import tuning_client
from tests.support.cost_models import FormulaCosts
from toolchain.backends.base.costs import Estimate
from toolchain.pipeline import task_costs
from toolchain.pipeline.task_costs import CostedTask
from toolchain.records import tasks
from toolchain.tables import plain

BACKEND = tuning_client.backend()


@pytest.fixture(scope="module")
def kernels():
    found = tasks.extract(tuning_client.lowered("mlp"), BACKEND)
    return [dataclasses.replace(one, weight=place + 1) for place, one in enumerate(found)]


def test_without_a_model_tasks_are_as_they_come(kernels):
    found = task_costs.estimate_costs(kernels, BACKEND, None)
    assert [one.task for one in found] == kernels
    assert task_costs.summary(found, None) == []
    assert "SPILLS" not in plain([task_costs.table(found)])


def test_what_costs_most_in_a_run_comes_first(kernels):
    model = FormulaCosts()
    found = task_costs.estimate_costs(kernels, BACKEND, model)
    assert {one.task.id for one in found} == {one.id for one in kernels}
    times = [one.ms for one in found if one.ms is not None]
    assert times == sorted(times, reverse=True)
    for one in found:
        assert one.estimate == model.of(BACKEND.scheduled(one.task.module))
        assert one.ms is None or one.ms == one.task.weight * one.estimate.ms


def test_unknown_costs_come_last_and_are_told(kernels):
    refused = CostedTask(kernels[0], Estimate(fault="no such thing"), "modelled (x)")
    known = CostedTask(kernels[1], Estimate(2.0, 7), "modelled (x)")
    model = FormulaCosts(obstacle="it is weak")
    first, fault, weak = task_costs.summary([known, refused], model)
    assert first.startswith("untuned, estimated 4 ms a run of 1 tasks, 1 spill: formula")
    assert model.stamp in first
    assert "no such thing" in fault
    assert weak == "it is weak"
    assert "refused" in plain([task_costs.table([known, refused])])
    silent = CostedTask(kernels[0], Estimate(fault="qemu is gone", answered=False), "modelled (x)")
    assert "no answer" in plain([task_costs.table([known, silent])])
    assert known.document() == {"stamp": "modelled (x)", "ms": 2.0, "run_ms": 4.0, "spills": 7, "fault": ""}
