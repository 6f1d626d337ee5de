"""Mesa's compiler as a model of scheduled kernels: what it says of those that it takes, and of the others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tvm

from tests.support import candidates
from toolchain import board
from toolchain.backends import backend_of
from toolchain.backends.base import Estimate
from toolchain.backends.mali.cost import Compiler, KernelCost, Root, gpu, kernel_cost, model, network
from toolchain.backends.mali.cost.model import Model
from toolchain.backends.mali.cost.shaderdb import Statistics
from toolchain.records import Key
from toolchain.records.lines import modelled_by
from toolchain.report import Text

RK3588 = board.load("rk3588").resolved()
ROOT = Root(Path("none"), "k", "1", is_pinned=True)


def statistics(spills: int = 0, work_group: int = 1024) -> Statistics:
    return Statistics(9, 8.0, {"load_store": 8.0}, 2, 0, spills, spills, work_group)


def asked(monkeypatch: pytest.MonkeyPatch, measured: Statistics | None, name: str = "g610") -> Model:
    """Return a model whose compiler says the same of each kernel."""

    def costs(_asked: object, kernels: list[object], *, spilling: bool = True) -> tuple[KernelCost, ...]:
        del spilling
        fault = "" if measured else "refused"
        return tuple(KernelCost("k", name, measured, {"load_store": 4000.0}, fault=fault) for _ in kernels)

    monkeypatch.setattr(kernel_cost, "costs", costs)
    assert RK3588.gpu is not None
    return Model(Compiler(ROOT, gpu(name)), RK3588.gpu, backend_of(RK3588).target)


def test_a_kernel_takes_what_its_machine_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    (estimate,) = asked(monkeypatch, statistics()).estimates([candidates.on_a_gpu()])
    # 8 work-items are one group of one core, which waits as long as with 128, 1000 cycles each.
    assert (estimate.ms, estimate.spills, estimate.fault) == (pytest.approx(0.128), 0, "")


def test_the_time_of_one_that_spills_is_told_if_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = asked(monkeypatch, statistics(spills=5))
    assert [estimate.spills for estimate in asking.estimates([candidates.on_a_gpu()])] == [5]
    assert asking.estimates([candidates.on_a_gpu()])[0].ms is not None
    assert asking.estimates([candidates.on_a_gpu()], spilling=False)[0].ms is None


def test_work_groups_that_have_not_registers_enough_would_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    (estimate,) = asked(monkeypatch, statistics(work_group=4)).estimates([candidates.on_a_gpu()])
    assert estimate.ms is None
    assert "registers for 4" in estimate.fault


def test_of_several_each_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, unbound, last = asked(monkeypatch, statistics()).estimates(
        [candidates.on_a_gpu(), candidates.matmul(), candidates.on_a_gpu()]
    )
    assert first == last
    assert first.ms is not None
    assert unbound.ms is None
    assert unbound.fault


def test_what_the_compiler_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, None).estimates([candidates.on_a_gpu()])[0].fault == "refused"


def test_what_has_no_answer_is_not_said_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = KernelCost("k", "g610", statistics(), {"load_store": 4.0}, 1, fault="qemu is gone", answered=False)
    asking = asked(monkeypatch, None)
    monkeypatch.setattr(kernel_cost, "costs", lambda _asked, kernels, **_more: (silent,) * len(kernels))
    assert asking.estimates([candidates.on_a_gpu()]) == [Estimate(fault="qemu is gone", answered=False)]


def test_a_weak_compiler_judges_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Mali-T860" in asked(monkeypatch, statistics(), "t860").obstacle
    assert not asked(monkeypatch, statistics()).obstacle


def test_of_a_network_without_kernels_just_that_is_told() -> None:
    assert RK3588.gpu is not None
    report = Model(Compiler(ROOT, gpu("g610")), RK3588.gpu, backend_of(RK3588).target).network("same", tvm.IRModule())
    sentence = "same has no GPU kernels: the whole model runs on the CPU; modelled (Mesa 1) with -cl-std=CL1.2"
    assert report.shown() == [sentence]
    (section,) = report.sections()
    assert section.parts == [Text(sentence)]
    assert report.document()["kernels"] == []
    assert report.refusal() is None


def test_a_model_is_named_by_what_estimates_depend_on() -> None:
    assert backend_of(RK3588).cost_model_name == "g610, 4 cores, 1000 MHz"
    assert model.name_of(board.Gpu("g52", 2, 800)) == "g52, 2 cores, 800 MHz"


def test_another_compiler_or_formula_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = asked(monkeypatch, statistics())
    assert asking.identity == "Mesa 1, k, -cl-std=CL1.2, formula 3"
    key = Key.of({"kind": "opencl"}, modelled=modelled_by(asking.name, asking.identity))
    assert key.of_any_version == Key.of({"kind": "opencl"}, modelled=asking.name)
    others = [
        Compiler(Root(Path("none"), "k", "2", is_pinned=True), gpu("g610")),
        Compiler(Root(Path("none"), "other", "1", is_pinned=True), gpu("g610")),
        Compiler(ROOT, gpu("g610"), ("-cl-fast-relaxed-math",)),
    ]
    identities = {asking.identity, *(dataclasses.replace(asking, compiler=other).identity for other in others)}
    monkeypatch.setattr(network, "FORMULA", network.FORMULA + 1)
    assert len({*identities, asking.identity}) == 5
