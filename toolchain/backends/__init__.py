"""The compiler backends: what is particular to one kind of processor, behind one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from toolchain.backends import cpu

if TYPE_CHECKING:
    import tvm

    from toolchain.board import Board


class Backend(Protocol):
    """What a backend module offers the compiler."""

    def target(self, board: Board) -> tvm.target.Target:
        """Return the TVM code-generation target of a board."""

    def cpu_features(self, board: Board) -> tuple[str, ...]:
        """Return the /proc/cpuinfo flags without which the compiled code must not be run."""

    def prepare(self, module: tvm.IRModule, board: Board) -> tvm.IRModule:
        """Rewrite an imported Relax module for the board, while its weights are still constants."""

    def lowered(self, module: tvm.IRModule, board: Board) -> tvm.IRModule:
        """Rewrite an imported Relax module into calls of fused TIR kernels, which can be tuned one by one."""


BACKENDS: dict[str, Backend] = {"cpu": cpu}
