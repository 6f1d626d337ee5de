"""Functions of OpenCL C by their names there, with arguments of one type.

Where TVM knows no name for OpenCL it takes C's for floats, such as `tanf`, which no OpenCL compiler knows. OpenCL C has
one name for all types and vectors, so that a compiler refuses a call whose arguments have several types. TVM writes
infinities and NaN of every type as those of floats, which makes such calls.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from toolchain.backends.mali.rewrite import call_function, map_kernels

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
