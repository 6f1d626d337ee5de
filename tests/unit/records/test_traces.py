import json

import pytest

from tests.support import nightly
from tests.support.tuning_client import backend, lowered
from toolchain import board
from toolchain.backends import backend_of
from toolchain.records import tasks
from toolchain.records.tasks import workload_hash
from toolchain.records.traces import Rebuilder, as_json, space_generator
from toolchain.tuning.search import Search


@pytest.mark.parametrize("source", ["mlp", nightly.left("squeezenet_v1.1")])
def test_a_schedule_comes_back_from_json_as_it_was(source):
    search = Search(backend(), "random", 1)
    for task in tasks.extract(lowered(source), backend())[:6]:
        rebuilder = Rebuilder(task.module, backend().target)
        _own, *candidates = search.propose(task, 0, 4)
        assert candidates
        for candidate in candidates:
            again = rebuilder.from_json(json.loads(json.dumps(candidate.trace)))
            assert workload_hash(again.mod) == candidate.key
            assert as_json(again) == candidate.trace


def test_a_trace_of_another_kernel_does_not_fit():
    first, *_, last = tasks.extract(lowered("mlp"), backend())
    _own, candidate = Search(backend(), "random", 1).propose(last, 0, 2)
    assert Rebuilder(first.module, backend().target).from_json(candidate.trace) is None


@pytest.mark.parametrize("trace", [[], [[["NoSuchStep", [], [], []]], []], [[["GetSBlock", [], [], []]], []]])
def test_a_damaged_trace_does_not_fit(trace):
    first, *_ = tasks.extract(lowered("mlp"), backend())
    assert Rebuilder(first.module, backend().target).from_json(trace) is None


@pytest.mark.parametrize("name", ["rpi4", "rk3588", "vta-sim-x86_64"])
def test_each_target_has_its_space(name):
    kind = board.load(name)
    space = space_generator(backend_of(kind).target)
    rules = {str(rule).partition("(")[0] for rule in space.sch_rules}
    assert rules
    assert any("AutoBind" in rule for rule in rules) == (kind.backend == "mali")
