"""Floats rounded to bytes where no instruction rounds: ARMv7 has none, and LLVM calls the C library for each number.

Such a call takes 50 instructions. Beside 1.5 * 2^23 a float has no room for fractions: what is added to it is rounded,
to even where two are as near, and is the low bits of the sum. That is right for small numbers, and so the limits come
first; they are whole, and then the order makes no difference.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import prim

from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.math import whole

Expr = Any

_MOST = 2.0**15  # of the limits; the sum is exact up to 2^22


def without_calls(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Round to bytes without a call where the processor has no instruction for it.

    Args:
        function: The kernel, after `nan.with_nan`, which decides what becomes of a NaN.
        machine: What it is for.
    """
    if machine.rounds:
        return function

    def rounded(found: Expr) -> Expr:
        limited = _limited(found.value) if str(found.ty.dtype).startswith(("int", "uint")) else None
        return found if limited is None else type(found)(found.ty.dtype, whole(limited))

    return function.with_body(tvm_ffi.structural_map(function.body, [(prim.Cast, rounded)]))


def _limited(value: Expr) -> Expr | None:
    """Return max(minimum(round(x), most), least), as such processors have it, without its rounding; None for others."""
    if not isinstance(value, prim.Max) or not _is_call(value.a, "tirx.call_llvm_pure_intrin"):
        return None
    inner, most = value.a.args[-2:]
    if not (_is_call(inner, "tirx.round") and _is_whole(most) and _is_whole(value.b)):
        return None
    below = tirx.call_llvm_pure_intrin("float32", "llvm.minimum", inner.args[0], most)
    return prim.Max(below, value.b)


def _is_call(value: Expr, name: str) -> bool:
    return isinstance(value, ir.Call) and isinstance(value.op, ir.Op) and str(value.op.name) == name


def _is_whole(limit: Expr) -> bool:
    value = float(limit.value) if isinstance(limit, prim.FloatImm) else 0.5
    return value.is_integer() and abs(value) <= _MOST
