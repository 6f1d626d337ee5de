"""Functions of OpenCL C by the names that it has them under, with arguments of one type.

Where TVM knows no name for OpenCL it takes C's for floats, `tanf` for one, which no OpenCL compiler knows. OpenCL C has
one name for all types and vectors. So a compiler refuses a call whose arguments have several types: TVM writes
infinities and NaN of each type as those of floats.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

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
"""Those that TVM has no name for, and that are called the same there."""

_CASTS = {"float16": "(half)", "float64": "(double)"}


def with_typed_arguments(module: tvm.IRModule) -> tvm.IRModule:
    """Return kernels in which infinities and NaN have their types where functions read them."""
    functions = {
        name: function.with_body(tvm_ffi.structural_map(function.body, (ir.Call, _typed)))
        if isinstance(function, tirx.PrimFunc)
        else function
        for name, function in module.functions_items()
    }
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def _typed(call: ir.Call) -> ir.Call:
    def typed(argument: Any) -> Any:
        if not isinstance(argument, tirx.FloatImm) or math.isfinite(argument.value):
            return argument
        dtype = str(argument.ty.dtype)
        number = tirx.const(argument.value, "float32")
        return tirx.call_pure_extern(dtype, _CASTS[dtype], number) if dtype in _CASTS else argument

    arguments = [typed(argument) for argument in call.args]
    if all(argument.same_as(other) for argument, other in zip(arguments, call.args, strict=True)):
        return call
    return ir.Call(call.op, arguments, call.attrs, None, None, call.ty)


def _lowered(call: Any) -> Any:
    name = call.op.name.removeprefix("tirx.")
    return ir.Call(ir.Op.get("tirx.call_pure_extern"), [name, *call.args], None, None, None, call.ty)


for _name in NAMES:
    tirx.op.register_intrin_lowering(f"tirx.{_name}", target="opencl", f=_lowered)
