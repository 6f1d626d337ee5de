"""Mali GPUs through OpenCL: kernels as OpenCL C, which the driver compiles on the board, and host code through LLVM."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import dlight

from toolchain.backends import cpu
from toolchain.backends.cpu._graph import fold
from toolchain.backends.mali._half import mixed
from toolchain.backends.mali._layout import channels_last, with_plain_names
from toolchain.backends.mali._plugin import build as python_runtime
from toolchain.backends.mali._schedules import Tiles, Vectors, without_single_steps
from toolchain.backends.mali._space import space
from toolchain.board import Board
from toolchain.errors import BuildError

__all__ = [
    "INT8",
    "TEMPLATES",
    "cpu_features",
    "finished",
    "left_out",
    "lowered",
    "machine_model",
    "python_runtime",
    "shipped",
    "space",
    "target",
    "templates",
]

TEMPLATES: tuple[str, ...] = ()
"""There are none: all kernels are TVM's, with a schedule of MetaSchedule or of the rules here."""

INT8 = False
"""It computes floats too."""

_LIMITS = ("max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size")


@dataclass(frozen=True)
class NoTemplates:
    """Knows no layer at all.

    Attributes:
        target: Whose kernels are scheduled.
    """

    target: tvm.target.Target

    def default(self, module: tvm.IRModule) -> tvm.IRModule:
        """Schedule kernels by rules for Mali, and by DLight's for GPUs what those do not know."""
        return _scheduled(module, self.target)

    def candidates(self, layer: str) -> list[Mapping[str, Any]]:  # noqa: ARG002 - the protocol's
        """There are none."""
        return []

    def module(self, layer: str, choice: Mapping[str, Any]) -> tvm.IRModule | None:  # noqa: ARG002
        """There is none."""
        return None

    def fits(self, layer: str, choice: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Nothing does."""
        return False

    def operator(self, layer: str) -> str:
        """Refuse: no layer is one of ours.

        Raises:
            BuildError: Always.
        """
        raise BuildError("no template computes this layer", details=layer)

    def gflop(self, layer: str) -> float:
        """Refuse: no layer is one of ours.

        Raises:
            BuildError: Always.
        """
        raise BuildError("no template computes this layer", details=layer)


def target(board: Board) -> tvm.target.Target:
    """Return the OpenCL target of a board, whose host is the board's CPU.

    Raises:
        InputError: LLVM does not know the CPU.
    """
    own = board.target
    limits = {name: value for name in _LIMITS if (value := getattr(own, name))}
    described = {"kind": own.kind, "device": own.device, **limits}
    if own.max_threads_per_block:  # two words for the same thing: passes ask for either
        described["max_num_threads"] = own.max_threads_per_block
    return tvm.target.Target(described, host=cpu.target(board))


def cpu_features(board: Board) -> tuple[str, ...]:
    """Return the /proc/cpuinfo flags without which the code of the host must not be run."""
    return cpu.cpu_features(board)


def templates(board: Board, without: Collection[str] = ()) -> NoTemplates:  # noqa: ARG001 - the protocol's
    """Return the kernels that are written here: none."""
    return NoTemplates(target(board))


def lowered(module: tvm.IRModule, board: Board, without: Collection[str] = ()) -> tvm.IRModule:  # noqa: ARG001
    """Rewrite an imported Relax module into calls of fused kernels, which can be tuned one by one.

    On a board that computes in half precision, convolutions and dense layers read it, and accumulate in single; the
    inputs and outputs of the network stay as they are.
    """
    transform, half = relax.transform, board.target.float16
    with target(board):
        first = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()]
        folded = fold.folded(tvm.transform.Sequential(first)(with_plain_names(module)))
        turned = channels_last(folded, half=half)
        last = [transform.FoldConstant(), relax.get_pipeline("zero")]
        fused = tvm.transform.Sequential(last)(mixed(turned) if half else turned)
    return without_single_steps(fused)


def left_out(module: tvm.IRModule, board: Board, without: Collection[str] = ()) -> tuple[str, ...]:  # noqa: ARG001
    """Return nothing: the GPU computes everything."""
    return ()


def finished(
    module: tvm.IRModule,
    board: Board,
    choices: Mapping[str, Mapping[str, Any]],  # noqa: ARG001 - of templates, and there are none
    without: Collection[str] = (),  # noqa: ARG001
) -> tvm.IRModule:
    """Schedule the kernels that were not tuned."""
    return _scheduled(module, target(board))


def _scheduled(module: tvm.IRModule, own: tvm.target.Target) -> tvm.IRModule:
    rules = dlight.gpu
    with own:
        schedule = dlight.ApplyDefaultSchedule(
            Tiles(),
            Vectors(),
            rules.Matmul(),
            rules.GEMV(),
            rules.Reduction(),
            rules.GeneralReduction(),
            rules.Fallback(),
        )
        scheduled: tvm.IRModule = schedule(module.clone())  # DLight writes into what it is given
    return scheduled


def machine_model(board: Board) -> None:
    """Return none: kernels for GPUs are measured."""


def shipped(board: Board) -> str:  # noqa: ARG001 - the protocol's
    """Return nothing: no records for GPUs come with the toolchain."""
    return ""
