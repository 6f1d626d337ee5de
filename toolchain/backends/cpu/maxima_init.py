"""Where maxima start: at infinity, and not at the greatest finite number, where TVM's do.

Behind a mask of attention all elements of a row may be infinite. TVM finds the greatest finite number then, and -1 as
its place. Its schedules know reductions by how they start, so that is changed when they are done. On a GPU TVM asks
again, for reductions across threads, which start where TVM does for that reason.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import prim

_START = "_init"
"""Ends the name of a block that TVM made of a reduction's start."""


def start_at_infinity(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let the maxima and minima of floats start at infinity.

    Args:
        function: A kernel of blocks, scheduled.
    """

    def start(block: Any) -> Any:
        # A schedule may have split the start of a reduction off into a block of its own.
        if block.init is not None:
            return _with(block, block.body, with_infinity(block.init))
        return _with(block, with_infinity(block.body), None) if block.name_hint.endswith(_START) else block

    return function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlock, start)))


def _with(block: Any, body: Any, init: Any) -> Any:
    fields = (block.iter_vars, block.reads, block.writes, block.name_hint, body, init)
    return s_tir.SBlock(*fields, block.alloc_buffers, block.match_buffers, block.annotations, block.span)


def with_infinity(start: Any) -> Any:
    """Return an expression or a statement with infinity in the place of the greatest finite number."""

    def replace(number: Any) -> Any:
        dtype = str(number.ty.dtype)
        if dtype not in {"float16", "float32", "float64"} or abs(number.value) != float(np.finfo(dtype).max):
            return number
        return tirx.const(math.copysign(math.inf, number.value), dtype)

    return tvm_ffi.structural_map(start, (prim.FloatImm, replace))
