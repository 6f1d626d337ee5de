"""The launches of a network, and the estimate, on values that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import toolchain
from toolchain import board
from toolchain.backends.mali import cost
from toolchain.backends.mali.cost import KernelCost, Root, network
from toolchain.backends.mali.cost.compiler import DEFAULT_OPTIONS, check_options
from toolchain.backends.mali.cost.network import Costs, Launch, Row, refusal, summary, table
from toolchain.backends.mali.cost.shaderdb import Outcome, Statistics
from toolchain.backends.mali.cost.sources import Kernel
from toolchain.compile import compiler
from toolchain.compile.request import BuildRequest
from toolchain.errors import BuildError, InputError
from toolchain.models.inputs import Source
from toolchain.models.request import Model

KERNEL = Kernel("k", "")
STATISTICS = Statistics(10, 8.0, {"load_store": 8.0, "fma": 1.0}, 2, 0, 0, 0)
G610 = board.Gpu("g610", 4, 1000)


def item(**cycles: float) -> KernelCost:
    return KernelCost("k", "g610", STATISTICS, cycles)


def test_a_network_launches_what_it_calls() -> None:
    request = BuildRequest(Model("mlp", {}, Source()), board.load("rk3588").resolved(), tuned=False)
    launches = network.launches(compiler.schedule(request), request.backend.target)
    assert launches
    for launch in launches:
        assert launch.calls >= 1
        assert launch.groups >= 1
        assert f"void {launch.kernel.name}(" in launch.kernel.source
        assert launch.items == launch.groups * launch.group * launch.calls


@pytest.mark.parametrize(
    ("groups", "cycles", "ms"),
    [
        (8, {"load_store": 4000.0}, 0.128),  # two groups of 64 a core, 1000 cycles each
        (9, {"load_store": 4000.0}, 0.192),  # one core has three
        (1, {"load_store": 4000.0}, 0.128),  # one that is alone waits as long as two
        (8, {"load_store": 4000.0, "fma": 5000.0}, 0.640),  # the busiest unit
        (8, {"texture": 7000.0}, 0.896),
    ],
)
def test_the_busiest_unit_of_the_busiest_core_decides(groups: int, cycles: dict[str, float], ms: float) -> None:
    estimate = network.estimated_ms(Launch(KERNEL, groups, 64, 1), item(**cycles), cost.gpu("g610"), G610)
    assert estimate == pytest.approx(ms)


def test_each_launch_waits_by_itself() -> None:
    once, often = (
        network.estimated_ms(Launch(KERNEL, 1, 16, calls), item(load_store=4000.0), cost.gpu("g610"), G610)
        for calls in (1, 10)
    )
    assert once == pytest.approx(0.128)
    assert often == pytest.approx(1.28)


def test_nothing_is_estimated_of_what_nobody_knows() -> None:
    gpu, cost_of_item = cost.gpu("g610"), item(load_store=1.0)
    launch = Launch(KERNEL, 4, 64, 1)
    estimate = network.estimated_ms
    assert estimate(launch, cost_of_item, gpu, None) is None
    assert estimate(Launch(KERNEL, 0, 64, 1), cost_of_item, gpu, G610) is None
    assert estimate(launch, KernelCost("k", "g610", STATISTICS, cost_of_item.item, open_loops=1), gpu, G610) is None
    assert estimate(launch, KernelCost("k", "g610", None, fault="refused"), gpu, G610) is None
    assert estimate(launch, cost_of_item, cost.gpu("t860"), G610) is None


def test_costs_add_up() -> None:
    spilling = KernelCost("s", "g610", Statistics(1, 1.0, {}, 1, 0, 3, 9), {"load_store": 2.0})
    refused = KernelCost("r", "g610", None, fault="no")
    rows = (Row(Launch(KERNEL, 2, 8, 3), spilling, 1.5), Row(Launch(KERNEL, 1, 1, 1), refused))
    costs = Costs("net", cost.gpu("g610"), "modelled (Mesa 1)", rows, G610)
    assert (costs.spilling, costs.failed, costs.load_store, costs.ms) == (1, 1, 96.0, None)
    assert costs.document()["kernels"][1]["fault"] == "no"


def test_cycles_that_the_compiler_does_not_count_by_unit_are_not_said_to_be_none():
    launch = Launch(KERNEL, 8, 64, 1)
    bundles = KernelCost("b", "t860", Statistics(10, 8.0, {}, 2, 0, 0, 0), {"cycles": 8.0})
    costs = Costs("t", cost.gpu("t860"), "", (Row(launch, bundles),))
    assert (costs.load_store, costs.rows[0].load_store) == (None, None)
    assert "load and store" not in summary(costs)
    assert table(costs).rows[0][4:7] == ("-", "-", "-")


def test_boards_name_gpus_that_there_is_a_model_of() -> None:
    having = [kind for kind in map(board.load, board.names()) if kind.gpu]
    assert {kind.name for kind in having} >= {"rk3588", "rk3399", "hikey970", "odroid-n2"}
    assert all(cost.gpu(kind.gpu.name) for kind in having if kind.gpu)


def test_nothing_takes_no_known_time() -> None:
    assert Costs("none", cost.gpu("g610"), "modelled (Mesa 1)", (), G610).ms is None


def test_a_loop_that_cannot_be_had_twice_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one turn of it would be charged with the whole kernel."""
    source = "__kernel void k(__global float* y) { for (int c = 0; c < 64; ++c) { y[c] += 1; } }"
    once = Outcome("k", Statistics(10, 8.0, {"load_store": 8.0}, 2, 1, 0, 0))
    mesa = cost.Compiler(Root(tmp_path, "key", "1", is_pinned=True), cost.gpu("g610"))
    for twice, open_loops, cycles in [
        (Outcome(fault="no"), 1, 8.0),
        (Outcome(fault="gone", answered=False), 1, 8.0),
        (Outcome("k", Statistics(12, 9.0, {"load_store": 9.0}, 2, 1, 0, 0)), 0, 8.0 + 63),
        # Both bodies together spill: 5 values, which are read 16 times.
        (Outcome("k", Statistics(12, 30.0, {"load_store": 30.0}, 2, 1, 5, 16)), 0, 8.0 + 63),
    ]:
        answers = iter([[once], [twice]])
        monkeypatch.setattr(cost.Compiler, "outcomes", lambda _self, _texts, answers=answers: next(answers))
        (kernel_cost,) = cost.costs(mesa, cost.kernels(source))
        assert (kernel_cost.open_loops, kernel_cost.load_store) == (open_loops, cycles)
        assert kernel_cost.answered == twice.answered
        assert kernel_cost.fault == ("" if kernel_cost.answered else "gone")


def test_kernels_are_compiled_as_on_boards() -> None:
    runtime = (Path(toolchain.__file__).parent / "runtime" / "opencl" / "build_options.cc").read_text(encoding="utf-8")
    assert [f'"{option}"' in runtime for option in DEFAULT_OPTIONS] == [True]
    mesa = cost.Compiler(Root(Path(), "key", "1", is_pinned=True), cost.gpu("g610"), ("-DN=4",))
    assert mesa.words == (*DEFAULT_OPTIONS, "-DN=4")
    assert mesa.stamp == "modelled (Mesa 1) with -cl-std=CL1.2 -DN=4"


@pytest.mark.parametrize("option", ["", "-", "--", "--std", "N", "-1", "-D\n", "-D" + "N" * 2000])
def test_what_is_no_option_is_refused(option: str) -> None:
    with pytest.raises(InputError):
        check_options([option])
    assert check_options(["-DN=4", "-D M=1", "-DN=4"]) == ("-DN=4", "-D M=1")


def test_a_command_with_refused_kernels_fails() -> None:
    refused = Costs("f", cost.gpu("g610"), "", (Row(None, KernelCost("r", "g610", None, fault="no such word")),))
    fine = Costs("f", cost.gpu("g610"), "", (Row(None, item(load_store=1.0)),))
    assert refusal([fine]) is None
    fault = refusal([refused, fine])
    assert isinstance(fault, BuildError)
    assert fault.message == "Mesa's compiler refuses 1 of 2 kernels"
    assert fault.details == "r: no such word"
