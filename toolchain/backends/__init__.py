"""The compiler backends: what is particular to one kind of processor, in one class each."""

from __future__ import annotations

from collections.abc import Collection

from toolchain.backends.base import Backend
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.mali.backend import Mali
from toolchain.backends.vta.backend import Vta
from toolchain.board import Board
from toolchain.errors import InputError
from toolchain.native import programs
from toolchain.validation import Fault

BACKENDS: dict[str, type[Backend]] = {"cpu": Cpu, "mali": Mali, "vta": Vta}
"""CPUs through LLVM, x86-64 and Arm; Mali GPUs through OpenCL; the VTA accelerator through instruction streams."""


def backend_of(board: Board, without: Collection[str] = (), threads: int = 0) -> Backend:
    """Return the backend of a board.

    Args:
        board: The board type, resolved.
        without: Names of templates that must not be used.
        threads: Threads that kernels are chosen for; 0 for one on each core.
    """
    return BACKENDS[board.backend](board, without, threads)


def faults(board: Board) -> list[Fault]:
    """List what the compilers say against a board type, resolved, whose file is valid as far as text can be."""
    found = []
    try:
        _ = backend_of(board).target
    except InputError as fault:
        found.append(Fault("target", fault.message, fault.hint))
    if not programs.supports(board.triple):
        message = f"{board.triple!r} has no device programs, so a model built for it could not be deployed"
        found.append(Fault("triple", message, programs.SUPPORTED))
    return found
