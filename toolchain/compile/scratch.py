"""The memory that kernels take for a moment: buffers that are too large for the stack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm.tirx.stmt import ForKind

_ON_STACK = 1024  # bytes: TVM puts less than that on the stack
_PAGE = 4096  # of the runtime's workspaces, see runtime/memory/workspaces.cc


@dataclass
class _Kernel:
    """Buffers of a kernel in their order: of the calling thread, and of each thread within a parallel loop."""

    serial: list[int] = field(default_factory=list)
    parallel: list[int] = field(default_factory=list)


def scratch_bytes(kernels: tvm.IRModule | None, threads: int) -> int:
    """Return what a process keeps for the kernels of a module, as the runtime does: the same for each thread.

    A thread has a slot for each buffer that it needs at a time, as large as the largest of all kernels. The calling
    thread may have taken some before a parallel loop, which the others have not.
    """
    if kernels is None:
        return 0
    own: list[int] = []
    shared: list[int] = []
    for _, function in kernels.functions_items():
        kernel = _Kernel()
        _collect(function.body, kernel, is_parallel=False)
        _enlarge(own, kernel.serial)
        _enlarge(shared, kernel.parallel)
        _enlarge(shared, [0] * len(kernel.serial) + kernel.parallel)
    _enlarge(own, shared)
    return sum(own) + (threads - 1) * sum(shared)


def _enlarge(slots: list[int], sizes: Sequence[int]) -> None:
    slots += [0] * (len(sizes) - len(slots))
    for number, size in enumerate(sizes):
        slots[number] = max(slots[number], -(-size // _PAGE) * _PAGE)


def _collect(statement: Any, kernel: _Kernel, *, is_parallel: bool) -> None:
    if isinstance(statement, tvm.tirx.AllocBuffer):
        buffer = statement.buffer
        size = math.prod(int(extent) for extent in buffer.shape) * -(-_bits(buffer.dtype) // 8)
        if size >= _ON_STACK and str(buffer.scope()) == "global":
            (kernel.parallel if is_parallel else kernel.serial).append(size)
    for child, within in _children(statement):
        _collect(child, kernel, is_parallel=is_parallel or within)


def _children(statement: Any) -> Iterable[tuple[Any, bool]]:
    """Return the statements within a statement, and whether they are run by several threads."""
    if isinstance(statement, tvm.tirx.SeqStmt):
        return [(child, False) for child in statement.seq]
    if isinstance(statement, tvm.tirx.For):
        return [(statement.body, statement.kind == ForKind.PARALLEL)]
    if isinstance(statement, tvm.tirx.IfThenElse):
        return [(case, False) for case in (statement.then_case, statement.else_case) if case is not None]
    body = getattr(statement, "body", None)
    return [(body, False)] if isinstance(body, tvm.tirx.Stmt) else []


def _bits(dtype: Any) -> int:
    described = tvm.DataType(str(dtype))
    return int(described.bits * described.lanes)
