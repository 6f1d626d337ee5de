"""What kernels cost by Mesa's machine code: kernels whose answer is known, on the compiler itself."""

from __future__ import annotations

import json
import os
import random
import warnings
from pathlib import Path

import onnx
import pytest
from onnx import helper

from benchmarks import mali
from tests.support import images, mali_judged, nightly
from tests.support.commands import toolchain
from toolchain import board
from toolchain.backends.mali import cost
from toolchain.backends.mali.cost import KernelCost, Root, emulator
from toolchain.compile.compiler import schedule
from toolchain.compile.request import BuildRequest
from toolchain.models import zoo
from toolchain.models.inputs import Source
from toolchain.models.request import Model

LOADS = """
__kernel void nest(__global float* restrict y, __global const float* restrict x, int s) {
  int i = get_global_id(0);
  float a = y[i * 7];
  for (int c = 0; c < 64; ++c) {
    a += x[c * s + i];
    for (int k = 0; k < 100; ++k) { a = a * x[c * 777 + k * s + i] + x[c * 12345 + k * s * 3 + i]; }
  }
  y[i] = a;
}
__kernel void two(__global float* restrict y, __global const float* restrict x, int s) {
  int i = get_global_id(0);
  float a = 0;
  for (int c = 0; c < 64; ++c) { a += x[c * s + i]; }
  for (int k = 0; k < 40; ++k) { a = a * x[k * 3 * s + i]; }
  y[i] = a;
}
__kernel void unrolled(__global float* restrict y, __global const float* restrict x) {
  int i = get_global_id(0);
  float a = 0;
  for (int c = 0; c < 3; ++c) { a += x[c * 1024 + i]; }
  y[i] = a;
}
"""
# The brace that a macro writes ends the loop, which so has no end in the source.
CLOSED = """#define CLOSE }
__kernel void closed(__global float* restrict y, __global const float* restrict x, int s) {
  int i = get_global_id(0);
  float a = 0;
  for (int c = 0; c < 64; ++c) { a += x[c * s + i]; CLOSE
  y[i] = a;
}
"""
BROKEN = "__kernel void broken(__global float* y) { y[0] = nothing; }"


@pytest.fixture(scope="module")
def compiler() -> Root:
    return cost.root(print)


def by_name(costs: tuple[KernelCost, ...]) -> dict[str, KernelCost]:
    return {cost.name: cost for cost in costs}


@pytest.mark.parametrize("gpu", ["g610", "g52"])
def test_every_turn_of_a_loop_counts(compiler: Root, gpu: str) -> None:
    kernels = by_name(cost.statistics(LOADS, gpu, compiler))
    assert kernels["nest"].load_store == 2 + 64 * (1 + 100 * 2)
    assert kernels["two"].load_store == 1 + 64 + 40
    assert kernels["unrolled"].load_store == 1 + 3
    assert all(kernel_cost.spills == 0 for kernel_cost in kernels.values())


def test_what_the_compiler_refuses_is_told_with_its_words(compiler: Root) -> None:
    broken, two = cost.statistics(BROKEN + LOADS[LOADS.index("__kernel void two") :], "g610", compiler)[:2]
    assert broken.statistics is None
    assert "nothing" in broken.fault
    assert two.statistics is not None


def test_a_loop_that_cannot_be_had_twice_is_open(compiler: Root) -> None:
    (kernel_cost,) = cost.statistics(CLOSED, "g610", compiler)
    assert kernel_cost.load_store == 2
    assert kernel_cost.open_loops == 1


def test_refused_kernels_end_the_command_when_all_was_said(compiler: Root, tmp_path: Path) -> None:
    del compiler
    source, page = tmp_path / "broken.cl", tmp_path / "costs.html"
    source.write_text(BROKEN, encoding="utf-8")
    outcome = toolchain("inspect", "kernels", source, "--gpu", "Mali-G610", "--gpu", "g610", "--html", page)
    assert outcome.code == 3
    assert "files on g610: 1 kernels, 0 of them spill, 1 are refused" in outcome.out
    assert "refuses 1 of 1 kernels" in outcome.err
    assert "nothing" in outcome.err
    bogus = toolchain("inspect", "kernels", source, "--gpu", "g610", "--cl-option", "-bogus", "--json")
    assert bogus.code == 3
    assert json.loads(bogus.out)[0]["failed"] == 1


def test_the_command_says_it_all(compiler: Root, tmp_path: Path) -> None:
    del compiler  # it is there
    source, page = tmp_path / "mine.cl", tmp_path / "costs.html"
    source.write_text(LOADS, encoding="utf-8")
    outcome = toolchain("inspect", "kernels", source, "--gpu", "g610", "--json", "--html", page)
    (costs,) = json.loads(outcome.out)
    assert costs["gpu"] == "g610"
    assert costs["stamp"].startswith("modelled (Mesa 25.")
    assert {kernel["name"]: kernel["item"]["load_store"] for kernel in costs["kernels"]} == {
        "nest": 12866.0,
        "two": 105.0,
        "unrolled": 4.0,
    }
    assert "modelled" in page.read_text(encoding="utf-8")
    listing = toolchain("inspect", "kernels", source, "--gpu", "g610").out
    assert "0 of them spill; modelled (Mesa 25." in listing
    assert "no board has confirmed it" in " ".join(listing.split())


def test_a_network_without_kernels_for_a_gpu_is_refused(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", ends[:1], ends[1:])
    path = tmp_path / "same.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    outcome = toolchain("inspect", "kernels", path, "--board", "rk3588")
    assert outcome.code == 2
    assert "has no kernel for a GPU" in outcome.err


def test_an_older_backend_finds_nothing_of_todays_but_the_model_of_costs(tmp_path: Path) -> None:
    for name in ("tiles.py", "half/sums.py", "schedules/__init__.py", "cost/sources.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    mali.clear(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["cost", "sources.py"]


ALL = os.environ.get("TOOLCHAIN_MALI_ZOO", "")
NETWORKS = zoo.NAMES if ALL else ("mobilenet",)
AT_ONCE = 24  # kernels that a campaign compiles before it saves them


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("gpu", "maximum"), [("g610", 4), ("g52", 2) if ALL else nightly.left("g52", 2)])
def test_no_kernel_of_the_zoo_spills(compiler: Root, name: str, gpu: str, maximum: int) -> None:
    """Those that a campaign has compiled are looked up, and one of them is compiled again; of the others, the longest.

    TOOLCHAIN_MALI_ZOO=1 is the campaign: all others, some seconds each, into tests/data/mali as it goes.
    """
    judge, texts = cost.Compiler(compiler, cost.gpu(gpu)), mali_judged.sources_of(name, mali_judged.BOARDS[gpu])
    judged = mali_judged.spills(judge)
    known_spills = {text: judged[key] for text in texts if (key := mali_judged.digest(text)) in judged}
    fresh = [text for text in texts if text not in known_spills][: None if ALL else maximum]
    again = random.sample(sorted(known_spills), min(1, len(known_spills)))  # whichever: the file holds for all of them
    spills: dict[str, int] = {}
    sources = [*again, *fresh]
    for chunk in (sources[first : first + AT_ONCE] for first in range(0, len(sources), AT_ONCE)):
        outcomes = judge.outcomes(chunk)
        assert [result.fault for result in outcomes if result.statistics is None] == []
        spills |= {
            text: result.statistics.spills for text, result in zip(chunk, outcomes, strict=True) if result.statistics
        }
        if ALL:
            mali_judged.record(judge, spills.items())
    assert {text: spills[text] for text in again} == {text: known_spills[text] for text in again}, (
        "the file is not true"
    )
    assert [text for text, spills in {**known_spills, **spills}.items() if spills] == []
    if skipped := len(texts) - len(known_spills) - len(fresh):
        warnings.warn(
            f"{skipped} of {len(texts)} kernels of {name} for {gpu} were compiled by no campaign", stacklevel=1
        )


def test_kernels_are_the_same_but_for_their_names() -> None:
    first, second, other = (
        f"__kernel void fused_{name}_kernel(__global float* {out}_ptr, __global float* lv{number}_ptr) {{ {body}; }}"
        for name, out, number, body in (
            ("conv2d1", "T_relu", 4, "T_relu_ptr[0] = lv4_ptr[0]"),
            ("conv2d2", "T_add", 9, "T_add_ptr[0] = lv9_ptr[0]"),
            ("conv2d3", "T_add", 9, "T_add_ptr[0] = T_add_ptr[0]"),
        )
    )
    assert mali_judged.nameless(first) == mali_judged.nameless(second) != mali_judged.nameless(other)
    assert mali_judged.nameless(first) == (
        "__kernel void n0_kernel(__global float* n1_ptr, __global float* n2_ptr) { n1_ptr[0] = n2_ptr[0]; }"
    )


def test_what_a_campaign_found_holds_for_its_compiler_alone(compiler: Root, tmp_path: Path) -> None:
    path = tmp_path / "judged.json"
    path.write_text("{}", encoding="utf-8")
    g610, g52 = (cost.Compiler(compiler, cost.gpu(name)) for name in ("g610", "g52"))
    mali_judged.record(g610, [("a", 0)], path)
    mali_judged.record(g610, [("b", 3)], path)
    mali_judged.record(g52, [("a", 9)], path)
    assert mali_judged.spills(g610, path) == {mali_judged.digest("a"): 0, mali_judged.digest("b"): 3}
    assert mali_judged.spills(g52, path) == {mali_judged.digest("a"): 9}
    assert mali_judged.spills(cost.Compiler(compiler, cost.gpu("g610"), ("-DN=1",)), path) == {}
    mali_judged.keep(g610, ["b", "c"], path)
    assert mali_judged.spills(g610, path) == {mali_judged.digest("b"): 3}
    assert mali_judged.spills(g52, path) == {mali_judged.digest("a"): 9}


def test_a_kernel_is_ranked_without_a_board_and_found_by_those_who_ask_for_that(
    compiler: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del compiler
    monkeypatch.setenv("TOOLCHAIN_RECORDS", str(tmp_path))
    command = ("mlp", "--board", "rk3588", "--op", "3", "--trials", 3, "--tuner", "random", "--modelled", "--json")
    report = json.loads(toolchain("tune", *command).out)
    assert report["modelled"].startswith("modelled (Mesa 25.")
    assert report["emulated"] is True
    (task,) = report["tasks"]
    assert task["best_s"] <= task["untuned_s"]
    ranking = json.loads(toolchain("tasks", "mlp", "--board", "rk3588", "--op", "3", "--cost", "--json").out)
    assert ranking[0]["modelled"]["ms"] == pytest.approx(task["untuned_s"] * 1e3)
    (line,) = [line for line in told_of(emulated=True, modelled=True) if line.startswith("tuning records for")]
    won = int(task["verdict"] == "faster")
    assert f"for {won} of 5 kernels: {won} from " in line
    assert "(by the model of g610, 4 cores, 1000 MHz; Mesa 25." in line
    for others in ({}, {"emulated": True}):
        assert any("which has none for this target" in line for line in told_of(**others))


def told_of(**options: bool) -> list[str]:
    """Return what is told where the kernels of a network are scheduled, with records of this kind."""
    messages: list[str] = []
    kind = board.load("rk3588").resolved()
    schedule(BuildRequest(Model("mlp", {}, Source()), kind, messages.append, **options))  # type: ignore[arg-type]
    return messages


@pytest.mark.nightly
def test_the_image_runs_the_compiler_where_this_machine_has_no_qemu(
    compiler: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.require("mali")
    here = cost.statistics(LOADS, "g610", compiler)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path))  # or nothing would be compiled again
    contained = emulator.ImageEmulator("mali", "qemu-aarch64-static")
    monkeypatch.setattr("toolchain.backends.mali.cost.compiler.emulator", lambda: contained)
    assert cost.statistics(LOADS, "g610", compiler) == here
