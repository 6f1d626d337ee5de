"""Kernels that are written as they are to run, with TVM's script builder: there is nothing to schedule or to search."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

_OPAQUE = 8  # TVM's kind of operation that no other is fused with


def write_kernel(name: str, shapes: Mapping[str, Sequence[int]], body: Callable[..., None]) -> tirx.PrimFunc:
    """Write a kernel.

    Args:
        name: Of what it does.
        shapes: Of its arguments by name, the result last; all are in single precision.
        body: Called with a buffer for each argument; writes the statements.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": _OPAQUE})
        body(*[T.arg(argument, T.buffer(tuple(shape), "float32")) for argument, shape in shapes.items()])
    function: tirx.PrimFunc = builder.get()
    statement = function.body
    for block in (name, "root"):  # passes over a whole module expect blocks
        statement = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], block, statement))  # noqa: FBT003 - no name for it
    return function.with_body(statement).without_attr("global_symbol")


@contextlib.contextmanager
def launch(**extents: int) -> Iterator[list[Any]]:
    """Open loops over work-groups (`group_x`, ...) and work-items (`item_x`, ...), in the order that is given."""
    kinds = {"group": "blockIdx", "item": "threadIdx"}
    with contextlib.ExitStack() as loops:
        variables = []
        for name, extent in extents.items():
            kind, axis = name.split("_")
            variables.append(loops.enter_context(T.launch_thread(f"{kinds[kind]}.{axis}", extent)))
        yield variables


def largest_divisor(extent: int, limit: int) -> int:
    """Return the largest divisor of a number that is not above another."""
    return max(size for size in range(1, limit + 1) if extent % size == 0)
