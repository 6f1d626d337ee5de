"""Loops that the cores share, cut into as many equal pieces as the device's threads take.

The runtime's threads take one piece after the other, so that a thread that gets no CPU holds up one of them and not its
whole share. TVM's code generator cuts a loop by rounding up: of ten iterations in eight pieces it makes five pieces of
two, which two threads cannot share equally.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import ForKind

PER_CORE = 4
"""Pieces for each core; `kPiecesPerThread` of runtime/threads/pool.h is the same number."""

_USUAL_CORES = 4  # of a board whose cores are not known


def with_equal_pieces(function: tirx.PrimFunc, cores: int) -> tirx.PrimFunc:
    """Return a kernel whose shared loops have at most as many iterations as there are pieces.

    Args:
        function: A kernel as the code generator gets it.
        cores: Cores of the board.
    """
    count = PER_CORE * cores

    def cut(loop: tirx.For) -> tirx.For:
        extent = loop.extent
        is_equal = isinstance(extent, tirx.IntImm) and (int(extent) <= count or int(extent) % count == 0)
        if loop.kind != ForKind.PARALLEL or is_equal:
            return loop
        dtype = str(loop.loop_var.ty.dtype)
        piece = tirx.Var("piece", dtype)
        # Pieces differ by one iteration at most.
        begin, end = (extent * (piece + offset) // count for offset in (0, 1))
        inner = tirx.For(loop.loop_var, begin, end - begin, ForKind.SERIAL, loop.body)
        return tirx.For(piece, tirx.const(0, dtype), tirx.const(count, dtype), ForKind.PARALLEL, inner)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, cut)))


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def equal_pieces(function: tirx.PrimFunc, _module: tvm.IRModule, _context: Any) -> tirx.PrimFunc:
    """Do `with_equal_pieces` to every kernel, for the cores of its target."""
    target = function.attrs["target"] if function.attrs and "target" in function.attrs else tvm.target.Target.current()
    cores = int(target.attrs.get("num-cores", 0)) if target else 0
    return with_equal_pieces(function, cores or _USUAL_CORES)
