"""Floats rounded to bytes where no instruction rounds: ARMv7 has none, and LLVM calls the C library for each number.

Such a call takes 50 instructions. Beside 1.5 * 2^23 a float has no room for fractions: what is added to it is rounded,
to even where two are as near, and is the low bits of the sum. That is right for small numbers, and so the limits come
first; they are whole, as a zero point is, and then the order makes no difference.
"""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import prim
from tvm.target import codegen

from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.math import round_to_int

Expr = Any

_ROUND = ("tirx.round", "tirx.nearbyint")  # LLVM has one instruction for both, to even
_MINIMUM = "llvm.minimum"
_MOST = 2.0**15  # of the limits; the sum is exact up to 2^22


def round_without_calls(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Round to bytes without a call where the processor has no instruction for it.

    Args:
        function: The kernel, after `nan_clip.with_nan`, which decides what becomes of a NaN.
        machine: What it is for.
    """
    if machine.rounds:
        return function

    def rounded(cast: Expr) -> Expr:
        number = _round_clipped(cast.value) if str(cast.ty.dtype).startswith(("int", "uint")) else None
        return cast if number is None else type(cast)(cast.ty.dtype, number)

    return function.with_body(tvm_ffi.structural_map(function.body, [(prim.Cast, rounded)]))


def _round_clipped(value: Expr) -> Expr | None:
    """Return max(minimum(round(x) + zero, most), least), as such processors have it, as an int32; None for others."""
    # The pattern that quantization and `nan_clip` leave; anything else keeps its call.
    if not isinstance(value, prim.Max) or not _is_call(value.a, "tirx.call_llvm_pure_intrin"):
        return None
    number, inner, *others = value.a.args
    if int(number.value) != codegen.llvm_lookup_intrinsic_id(_MINIMUM):
        return None
    [high] = others
    zero: Expr = tirx.const(0.0, "float32")
    if isinstance(inner, prim.Add):
        inner, zero = inner.a, inner.b
    limits = [float(limit.value) if isinstance(limit, prim.FloatImm) else math.nan for limit in (zero, high, value.b)]
    if not _is_call(inner, *_ROUND) or not all(limit.is_integer() and abs(limit) <= _MOST for limit in limits):
        return None
    high, low = (tirx.const(float(limit.value) - float(zero.value), "float32") for limit in (high, value.b))
    below = tirx.call_llvm_pure_intrin("float32", _MINIMUM, inner.args[0], high)
    return round_to_int(prim.Max(below, low)) + tirx.const(int(zero.value), "int32")


def _is_call(value: Expr, *names: str) -> bool:
    return isinstance(value, ir.Call) and isinstance(value.op, ir.Op) and str(value.op.name) in names
