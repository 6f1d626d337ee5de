"""CPUs through LLVM: x86-64 and Arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.target import codegen

from toolchain.board import NATIVE, Board
from toolchain.errors import InputError


def target(board: Board) -> tvm.target.Target:
    """Return the LLVM target of a board; `num-cores` is in it where the board's cores are known.

    Raises:
        InputError: LLVM does not know the board's CPU.
    """
    mcpu = _mcpu(board)
    triple = board.triple
    known = {
        str(name) for name in codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
    }
    if mcpu not in known:
        raise InputError(
            f"LLVM has no CPU called {mcpu!r} for {triple}",
            details="known: " + ", ".join(sorted(known)),
            hint=f"set target.mcpu in boards/{board.name}.toml",
        )
    description: dict[str, Any] = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu}
    if triple.endswith("hf"):  # LLVM passes floats in integer registers unless it is told what the triple says
        description["mfloat-abi"] = "hard"
    if board.target.mattr:
        description["mattr"] = list(board.target.mattr)
    if board.cores:
        description["num-cores"] = board.cores
    return tvm.target.Target(description)


def _mcpu(board: Board) -> str:
    return str(codegen.llvm_get_system_cpu()) if board.target.mcpu == NATIVE else board.target.mcpu


def cpu_features(board: Board) -> tuple[str, ...]:
    """Return what the board file names; for this machine's CPU, the flags that LLVM makes use of."""
    if board.target.mcpu != NATIVE:
        return board.cpu_features
    used = {_normalized(str(name)) for name in codegen.llvm_get_cpu_features(target(board))}
    return tuple(sorted(flag for flag in _own_flags() if _normalized(flag) in used))


def _normalized(feature: str) -> str:
    """LLVM writes sse4.2 and avx512vnni where the kernel writes sse4_2 and avx512_vnni."""
    return feature.replace(".", "").replace("_", "").replace("-", "")


def _own_flags() -> list[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return value.split()
    return []


def prepare(module: tvm.IRModule, board: Board) -> tvm.IRModule:
    """Decompose what has no kernel of its own, and compute ahead of time what depends on weights alone."""
    transform = relax.transform
    with target(board):
        rewritten: tvm.IRModule = tvm.transform.Sequential(
            [
                transform.DecomposeOpsForInference(),
                transform.CanonicalizeBindings(),
                transform.FoldConstant(),
            ]
        )(module)
    return rewritten


def lowered(module: tvm.IRModule, board: Board) -> tvm.IRModule:
    """Rewrite an imported Relax module into calls of fused TIR kernels: what is tuned, and what records apply to.

    Weights stay constants, and each kernel says which of its arguments they are, so that a schedule may choose their
    layout.
    """
    prepared = prepare(module, board)
    with target(board):
        rewritten: tvm.IRModule = tvm.transform.Sequential(
            [relax.get_pipeline("zero"), relax.transform.AttachAttrLayoutFreeBuffers()]
        )(prepared)
    return rewritten
