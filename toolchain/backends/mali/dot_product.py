"""Dot products of four int8 each, as OpenCL C has them: by an instruction where a device has one.

Kernels hold four neighbouring bytes in an int32. The helper that multiplies two of those is written into the source of
each kernel that calls it, and uses what the driver that compiles it offers: the result is the same integer everywhere.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx

from toolchain.backends.mali.rewrite import call_function

_OPERATOR = "tirx.toolchain_dot4"
_HELPER = "edge_dot4_int"
_PURE = 1  # TVM's CallEffectKind::kPure

_PREAMBLE = """\
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


def add_helper(source: str) -> str:
    """Return OpenCL C with the helper before the kernels, if one calls it."""
    return _PREAMBLE + source if _HELPER in source else source


def _register() -> ir.Op:
    tvm.get_global_func("ir.RegisterOp")(_OPERATOR, "the dot product of four int8 and four others")
    ir.register_op_attr(_OPERATOR, "TCallEffectKind", _PURE)
    ir.register_op_attr(_OPERATOR, "TVectorizable", value=True)
    ir.register_op_attr(_OPERATOR, "TScriptPrinterName", "toolchain_dot4")

    def helper(call: Any) -> Any:
        # OpenCL C has vectors of 2, 3, 4, 8 and 16 lanes, and its compilers refuse helpers of others.
        lanes = str(call.ty.dtype).removeprefix("int32x").removeprefix("int32") or "1"
        return call_function(f"{_HELPER}{lanes}", call)

    tirx.op.register_intrin_lowering(_OPERATOR, target="opencl", f=helper)
    return ir.Op.get(_OPERATOR)


_DOT4 = _register()
