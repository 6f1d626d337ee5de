"""Functions of OpenCL C by the names that it has them under.

Where TVM knows no name for OpenCL it takes C's for floats, `tanf` for one, which no OpenCL compiler knows. OpenCL C has
one name for all types and vectors.
"""

from __future__ import annotations

from typing import Any

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


def _lowered(call: Any) -> Any:
    name = call.op.name.removeprefix("tirx.")
    return ir.Call(ir.Op.get("tirx.call_pure_extern"), [name, *call.args], None, None, None, call.ty)


for _name in NAMES:
    tirx.op.register_intrin_lowering(f"tirx.{_name}", target="opencl", f=_lowered)
