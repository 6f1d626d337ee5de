"""Limits that a NaN goes through, as ONNX Runtime's Relu and Clip let it through.

TVM's maximum of x and a number is `x > number ? x : number`, and the number for a NaN. The other way round it is x, in
the same instruction on x86. LLVM has functions that return NaN where either is one; those are the instructions of Arm,
and some more on x86.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, TensorLoad, prim

from toolchain.backends.cpu.machine import Machine

Expr = Any

_INTRINSIC = Op.get("tirx.call_llvm_pure_intrin")
_KINDS = {prim.Max: "llvm.maximum", prim.Min: "llvm.minimum"}


def with_nan(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Let NaNs through the limits of a kernel, which are maxima and minima of a float32 and a constant.

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
        if machine.limits_nan and dtype.startswith("float32"):
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
