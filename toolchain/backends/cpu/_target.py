"""What LLVM is told of a board's CPU, and what the CPU must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
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
