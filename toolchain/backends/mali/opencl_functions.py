"""Functions of OpenCL C that TVM cannot call by itself: by their names there, and as helpers in a kernel's source."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import prim

from toolchain.backends.cpu.numerics import is_limit
from toolchain.backends.mali.rewrite import call_function, map_kernels

# --- names -----------------------------------------------------------------------------------------------------------

# Where TVM knows no name for OpenCL it takes C's for floats, such as `tanf`, which no OpenCL compiler knows. OpenCL C
# has one name for all types and vectors, so that a compiler refuses a call whose arguments have several types. TVM
# writes infinities and NaN of every type as those of floats, which makes such calls.

NAMES = (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "copysign",
    "hypot",
    "log1p",
    "nextafter",
    "tan",
)
"""Functions that TVM has no name for, and that are called the same in OpenCL C."""

_PURE = 1  # TVM's CallEffectKind::kPure
_CASTS = {"float16": "(half)", "float64": "(double)"}


def register() -> None:
    """Have TVM call these functions by their names in OpenCL C, in this process."""
    for name in NAMES:
        operator = f"tirx.{name}"
        tirx.op.register_intrin_lowering(operator, target="opencl", f=lambda call, name=name: call_function(name, call))


def cast_infinities(module: tvm.IRModule) -> tvm.IRModule:
    """Return kernels in which infinities and NaN have their types where functions read them."""
    return map_kernels(
        module,
        lambda _name, function: function.with_body(tvm_ffi.structural_map(function.body, (ir.Call, _cast_arguments))),
    )


def _cast_arguments(call: ir.Call) -> ir.Call:
    def cast(argument: Any) -> Any:
        if not isinstance(argument, tirx.FloatImm) or math.isfinite(argument.value):
            return argument
        dtype = str(argument.ty.dtype)
        number = tirx.const(argument.value, "float32")
        return tirx.call_pure_extern(dtype, _CASTS[dtype], number) if dtype in _CASTS else argument

    arguments = [cast(argument) for argument in call.args]
    if all(argument.same_as(former) for argument, former in zip(arguments, call.args, strict=True)):
        return call
    return ir.Call(call.op, arguments, call.attrs, None, None, call.ty)


# --- operators of our own --------------------------------------------------------------------------------------------


def _register(name: str, description: str, **lowerings: Callable[[Any], Any]) -> ir.Op:
    """Make an operator known to TVM, and what each kind of target computes in its place."""
    operator = f"tirx.toolchain_{name}"
    tvm.get_global_func("ir.RegisterOp")(operator, description)
    ir.register_op_attr(operator, "TCallEffectKind", _PURE)
    ir.register_op_attr(operator, "TVectorizable", value=True)
    ir.register_op_attr(operator, "TScriptPrinterName", f"toolchain_{name}")
    for target, lowering in lowerings.items():
        tirx.op.register_intrin_lowering(operator, target=target, f=lowering)
    return ir.Op.get(operator)


# --- dot products of bytes -------------------------------------------------------------------------------------------

# Kernels hold four neighbouring bytes in an int32. The helper that multiplies two of those is written into the source
# of each kernel that calls it, and uses what the driver that compiles it offers: the result is the same integer
# everywhere.

_DOT_HELPER = "edge_dot4_int"

_DOT_PREAMBLE = """\
#if defined(cl_khr_integer_dot_product) && defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
int edge_dot4_int1(int a, int b) { return dot_4x8packed_ss_int(as_uint(a), as_uint(b)); }
#elif defined(cl_arm_integer_dot_product_int8)
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_int8 : enable
int edge_dot4_int1(int a, int b) { return arm_dot(as_char4(a), as_char4(b)); }
#else
int edge_dot4_int1(int a, int b) {
  const int4 products = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
  return products.s0 + products.s1 + products.s2 + products.s3;
}
#endif
int2 edge_dot4_int2(int2 a, int2 b) { return (int2)(edge_dot4_int1(a.s0, b.s0), edge_dot4_int1(a.s1, b.s1)); }
int3 edge_dot4_int3(int3 a, int3 b) { return (int3)(edge_dot4_int2(a.lo, b.lo), edge_dot4_int1(a.s2, b.s2)); }
int4 edge_dot4_int4(int4 a, int4 b) { return (int4)(edge_dot4_int2(a.lo, b.lo), edge_dot4_int2(a.hi, b.hi)); }
int8 edge_dot4_int8(int8 a, int8 b) { return (int8)(edge_dot4_int4(a.lo, b.lo), edge_dot4_int4(a.hi, b.hi)); }
int16 edge_dot4_int16(int16 a, int16 b) { return (int16)(edge_dot4_int8(a.lo, b.lo), edge_dot4_int8(a.hi, b.hi)); }
"""


def dot4(first: Any, second: Any) -> Any:
    """Return the dot product of the four int8 that each of two int32 holds, as an int32."""
    return ir.Call(_DOT4, [first, second], None, None, None, tirx.const(0, "int32").ty)


def add_dot_helpers(source: str) -> str:
    """Return OpenCL C with the helper before the kernels, if one calls it."""
    return _DOT_PREAMBLE + source if _DOT_HELPER in source else source


def _helper_of_dot4(call: Any) -> Any:
    # OpenCL C has vectors of 2, 3, 4, 8 and 16 lanes, and its compilers refuse helpers of others.
    lanes = str(call.ty.dtype).removeprefix("int32x").removeprefix("int32") or "1"
    return call_function(f"{_DOT_HELPER}{lanes}", call)


_DOT4 = _register("dot4", "the dot product of four int8 and four others", opencl=_helper_of_dot4)


# --- limits that let NaN through -------------------------------------------------------------------------------------

# OpenCL's `max` and `min` promise nothing about NaN, and drivers return the limit instead of it. So a limit is a call
# of a helper, which chooses by one comparison: NaN is not below the limit, and stays. The helpers for the types in a
# kernel are written into its source. A call evaluates its operand once, however long that is; TVM's own choice between
# two values would write it twice.

_LIMIT_HELPER = re.compile(r"\b(edge_at_least|edge_at_most)_(half|float|double)(\d*)\(")
_KERNEL = re.compile(r"^__kernel ", re.MULTILINE)
_SIGN = {"edge_at_least": "<", "edge_at_most": ">"}
_TYPES = {"float16": "half", "float32": "float", "float64": "double"}


def keep_nan(module: tvm.IRModule) -> tvm.IRModule:
    """Return scheduled kernels whose limits of floats let NaNs through.

    Where a number becomes an integer, the lower limit takes the place of NaN, as in ONNX Runtime's QuantizeLinear.
    """
    return map_kernels(module, lambda _name, function: _keep_nan(function))


def add_limit_helpers(source: str) -> str:
    """Return OpenCL C with the helpers that its kernels call, before the first kernel."""
    signatures = sorted({match.groups() for match in _LIMIT_HELPER.finditer(source)})
    first = _KERNEL.search(source)
    if not signatures or first is None:
        return source
    helpers = []
    for name, element, lanes in signatures:
        kind, comparison = f"{element}{lanes}", f"x {_SIGN[name]} limit"
        # `select` chooses by lane, and is for vectors alone.
        value = f"select(x, limit, {comparison})" if lanes else f"{comparison} ? limit : x"
        helpers.append(f"{kind} {name}_{kind}({kind} x, {kind} limit) {{ return {value}; }}\n")
    return "".join([source[: first.start()], *helpers, source[first.start() :]])


def _keep_nan(function: tirx.PrimFunc) -> tirx.PrimFunc:
    # The sum of a reduction may have one element, which looks like a limit: schedules look for its form, so it stays.
    stored: set[Any] = set()
    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, lambda store: stored.add(store.buffer)))

    def limit_of(node: Any) -> Any:
        if str(node.ty.dtype).partition("x")[0] not in _TYPES:
            return node
        for value, limit in ((node.a, node.b), (node.b, node.a)):
            if is_limit(limit) and getattr(limit, "source", None) not in stored:
                return _call_limit(_LIMITS[type(node)], value, limit)
        return node

    def cast(node: Any) -> Any:
        # No integer is NaN: the limit has to be the number in its place.
        is_integer = str(node.ty.dtype).startswith(("int", "uint"))
        return type(node)(node.ty.dtype, _without_nan(node.value)) if is_integer else node

    return function.with_body(
        tvm_ffi.structural_map(function.body, [((prim.Max, prim.Min), limit_of), (prim.Cast, cast)])
    )


def _without_nan(value: Any) -> Any:
    """Exchange the operands of the last lower limit, so that the limit takes the place of a NaN."""
    if not isinstance(value, ir.Call) or not any(operator.same_as(value.op) for operator in _LIMITS.values()):
        return value
    first, second = value.args
    if not is_limit(second):
        return value  # exchanged already
    if value.op.same_as(_LIMITS[prim.Max]):
        return _call_limit(value.op, second, first)
    return _call_limit(value.op, _without_nan(first), second)


def _call_limit(operator: ir.Op, value: Any, limit: Any) -> Any:
    return ir.Call(operator, [value, limit], None, None, None, value.ty)


def _register_limit(name: str, description: str, compare: Any) -> ir.Op:
    def helper(call: Any) -> Any:
        element, _, lanes = str(call.ty.dtype).partition("x")
        return call_function(f"edge_{name}_{_TYPES[element]}{lanes}", call)

    def choose(call: Any) -> Any:
        value, limit = call.args
        return tirx.Select(compare(value, limit), limit, value)

    return _register(name, description, opencl=helper, default=choose)  # that is for kernels that this machine runs


_LIMITS = {
    prim.Max: _register_limit(
        "at_least", "a number, or the limit that it is below", lambda value, limit: value < limit
    ),
    prim.Min: _register_limit("at_most", "a number, or the limit that it is above", lambda value, limit: value > limit),
}
