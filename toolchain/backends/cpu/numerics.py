"""What processors make of numbers that ONNX defines otherwise: NaN at limits, rounding, where maxima start."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import Call, Op, TensorLoad, prim
from tvm.target import codegen

from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.math import round_to_int

# --- limits that let NaN through -------------------------------------------------------------------------------------

# TVM's maximum of x and a number is `x > number ? x : number`, and the number for a NaN. The other way round it is x,
# in the same instruction on x86. LLVM has functions that return NaN where either is one; those are the instructions of
# Arm, and some more on x86.

Expr = Any

_INTRINSIC = Op.get("tirx.call_llvm_pure_intrin")
_KINDS = {prim.Max: "llvm.maximum", prim.Min: "llvm.minimum"}


def with_nan(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Let NaNs through the limits of a kernel, which are maxima and minima of floats and a constant.

    No NaN is to become an integer, though, of which each processor makes another: at the last limit before that, the
    least there is takes its place, as in ONNX Runtime's QuantizeLinear.

    Args:
        function: The kernel.
        machine: What it is for.
    """

    def limited(limit: Expr) -> Expr:
        dtype = str(limit.ty.dtype)
        if not dtype.startswith("float") or not is_limit(limit.b):
            return limit
        if machine.limits_nan and dtype.startswith(("float32", "float16") if machine.float16 else "float32"):
            return tirx.call_llvm_pure_intrin(limit.ty.dtype, _KINDS[type(limit)], limit.a, limit.b)
        return type(limit)(limit.b, limit.a)

    def whole(cast: Expr) -> Expr:
        if not str(cast.ty.dtype).startswith(("int", "uint")):
            return cast
        inner = cast.value
        if isinstance(inner, prim.Max) and str(inner.ty.dtype).startswith("float32") and is_limit(inner.a):
            return type(cast)(cast.ty.dtype, prim.Max(inner.b, inner.a))
        if machine.limits_nan and isinstance(inner, Call) and inner.op.same_as(_INTRINSIC) and is_limit(inner.args[-1]):
            return type(cast)(cast.ty.dtype, prim.Max(*inner.args[-2:]))
        return cast

    mapped = tvm_ffi.structural_map(function.body, [(tuple(_KINDS), limited), (prim.Cast, whole)])
    return function.with_body(mapped)


def is_limit(expr: Expr) -> bool:
    """Whether an operand is one number for all elements: an immediate, or the only element of a scalar's buffer."""
    scalar = expr.value if isinstance(expr, prim.Broadcast) else expr
    if isinstance(scalar, TensorLoad):
        return all(isinstance(extent, prim.IntImm) and extent.value == 1 for extent in scalar.source.shape)
    return isinstance(scalar, prim.FloatImm)


# --- rounding to bytes -----------------------------------------------------------------------------------------------

# ARMv7 has no instruction that rounds, and LLVM calls the C library for each number: 50 instructions. Beside 1.5 *
# 2^23 a float has no room for fractions: what is added to it is rounded, to even where two are as near, and is the low
# bits of the sum. That is right for small numbers, and so the limits come first; they are whole, as a zero point is,
# and then the order makes no difference.

_ROUND = ("tirx.round", "tirx.nearbyint")  # LLVM has one instruction for both, to even
_MINIMUM = "llvm.minimum"
_MOST = 2.0**15  # of the limits; the sum is exact up to 2^22


def round_without_calls(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Round to bytes without a call where the processor has no instruction for it.

    Args:
        function: The kernel, after `with_nan`, which decides what becomes of a NaN.
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
    # The pattern that quantization and `with_nan` leave; anything else keeps its call.
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


# --- where maxima start ----------------------------------------------------------------------------------------------

# TVM's maxima start at the greatest finite number. Behind a mask of attention all elements of a row may be infinite:
# TVM finds that number then, and -1 as its place. Its schedules know reductions by how they start, so that is changed
# when they are done. On a GPU TVM asks again, for reductions across threads, which start where TVM does for that
# reason.

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
            return _with_body(block, block.body, with_infinity(block.init))
        return _with_body(block, with_infinity(block.body), None) if block.name_hint.endswith(_START) else block

    return function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlock, start)))


def _with_body(block: Any, body: Any, init: Any) -> Any:
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
