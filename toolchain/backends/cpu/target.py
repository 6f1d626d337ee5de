"""The LLVM target of a board's CPU, and the features that the CPU must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
from tvm.target import codegen

from toolchain import architecture
from toolchain.board import NATIVE, Board
from toolchain.errors import InputError, did_you_mean


def target(board: Board) -> tvm.target.Target:
    """Return the LLVM target of a board; `num-cores` is in it where the board's cores are known.

    Raises:
        InputError: LLVM does not know the board's CPU, or its triple is not supported.
    """
    mcpu, triple = board.target.mcpu, board.triple
    if mcpu == NATIVE:
        mcpu = str(codegen.llvm_get_system_cpu())
    cpus = _cpus(board)
    if mcpu not in cpus:
        generic = [name for name in cpus if name.startswith("generic")] or cpus
        usual = f"one of the {len(cpus)} that it has, such as {generic[0]}"
        raise InputError(
            f"LLVM has no CPU named {mcpu!r} for {triple}",
            hint=f"set target.mcpu in the board file: {did_you_mean(mcpu, cpus) or usual}",
        )
    description: dict[str, Any] = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu}
    if triple.endswith("hf"):  # LLVM passes floats in integer registers unless the ABI is set
        description["mfloat-abi"] = "hard"
    if board.target.mattr:
        description["mattr"] = list(board.target.mattr)
    # MetaSchedule and the kernels' costs count the cores.
    if board.cores:
        description["num-cores"] = board.cores
    return tvm.target.Target(description)


def _cpus(board: Board) -> list[str]:
    """Name the CPUs that LLVM knows for a board's triple."""
    architecture.of_triple(board.triple)  # LLVM crashes if it does not know the processor itself
    return sorted(map(str, codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": board.triple}))))


def cpu_features(board: Board) -> tuple[str, ...]:
    """Return the features of the board file; for this machine's CPU, the flags that LLVM uses."""
    if board.target.mcpu != NATIVE:
        return board.cpu_features
    used = {_normalized(str(name)) for name in codegen.llvm_get_cpu_features(target(board))}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return tuple(sorted(flag for flag in value.split() if _normalized(flag) in used))
    return ()


def _normalized(feature: str) -> str:
    # LLVM writes sse4.2 and avx512vnni where the kernel writes sse4_2 and avx512_vnni.
    return feature.replace(".", "").replace("_", "").replace("-", "")
