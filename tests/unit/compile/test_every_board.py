"""Every CPU board compiles small networks with the instructions of its CPU; nothing is linked, and nothing runs."""

from __future__ import annotations

import re

import onnx
import pytest

from tests.support import nets, qdq_nets
from toolchain import backends
from toolchain import board as boards
from toolchain.board import Board
from toolchain.compile import compiler, executable
from toolchain.compile.request import BuildRequest
from toolchain.models.request import Model

BOARDS = {name: boards.load(name).resolved() for name in boards.names()}
CPUS = [name for name, board in BOARDS.items() if board.backend == "cpu" and board.connection == "ssh"]

# The instruction that adds products of bytes; none where the CPU has none.
DOT = {
    "jetson-orin": r"\bsdot\s+v",
    "imx93": r"\bsdot\s+v",
    "n100": r"\{vex\}\s+vpdpbusds?\s+%ymm|\bvpdpbusds?\s+.*%ymm",
    "rk3566": r"\bsdot\s+v",
    "rk3588-cpu": r"\bsdot\s+v",
    "rpi5": r"\bsdot\s+v",
    "x86_64-v4-vnni": r"\bvpdpbusds?\s+.*%zmm",
}
WITHOUT_DOT = ("beagley-ai", "imx8mp", "rpi-zero2w", "ryzen-v1000", "stm32mp25", "x86_64-v3")
MULTIPLY_ADD = {
    "aarch64": r"\bfmla\s+v",
    "armv7l": r"\bvmla\.f32\s+q",
    "riscv64": r"\bvfmacc\.v",
    "x86_64": r"\bvfmadd\w+ps\s+.*%[yz]mm",
}
ANY_DOT = r"\bsdot\b|vpdpbusd"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """A perceptron behind one convolution, on floats and on bytes."""
    folder = tmp_path_factory.mktemp("models")
    weights = {"w": qdq_nets.weights(16, 16, 3, 3), "v": qdq_nets.weights(32, 256)}
    nodes = [nets.node("Conv", ["x", "w"], ["c"]), nets.node("Relu", ["c"], ["r"]), nets.node("Flatten", ["r"], ["f"])]
    plain = qdq_nets.floating([*nodes, nets.node("Gemm", ["f", "v"], ["y"], transB=1)], (1, 16, 6, 6), weights)
    onnx.save(plain, folder / "plain.onnx")
    onnx.save(qdq_nets.quantized(plain, folder), folder / "bytes.onnx")
    return {name: str(folder / f"{name}.onnx") for name in ("plain", "bytes")}


def assembly(model: str, board: Board) -> str:
    request = BuildRequest(Model(model), board, tuned=False)
    module = executable.lift_constants(compiler.schedule(request)).module
    built = executable.compile_module(module, request.backend.target).executable
    return "".join(library.inspect_source("asm") for library in built.mod.imports if library.kind == "llvm")


@pytest.mark.parametrize("name", BOARDS)
def test_its_backend_accepts_it(name):
    assert backends.faults(BOARDS[name]) == []


@pytest.mark.parametrize("name", {BOARDS[name].target: name for name in CPUS}.values())
def test_a_network_on_floats(name, models):
    text = assembly(models["plain"], BOARDS[name])
    if name not in {"x86_64", "x86_64-v2", "riscv64"}:
        assert re.search(MULTIPLY_ADD[BOARDS[name].machine], text)
    assert not re.search(ANY_DOT, text)


@pytest.mark.parametrize("name", {BOARDS[name].target: name for name in (*DOT, *WITHOUT_DOT)}.values())
def test_a_network_on_bytes(name, models):
    text = assembly(models["bytes"], BOARDS[name])
    assert re.search(DOT[name], text) if name in DOT else not re.search(ANY_DOT, text)
