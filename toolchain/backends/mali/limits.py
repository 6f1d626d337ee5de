"""Limits that a NaN goes through, as it goes through ONNX Runtime's Relu, Clip and HardSigmoid.

OpenCL's `max` and `min` promise nothing about NaN, and drivers return the limit instead of it. So a limit is a call of
a helper, which chooses by one comparison: what is not a number is not below the limit, and stays. The helpers of the
types that a kernel has are written into its source. A call reads its operand once, however long that is; TVM's own
choice between two values would write it twice.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import prim

from toolchain.backends.cpu.nan_clip import is_limit

_PURE = 1  # TVM's CallEffectKind::kPure
_HELPER = re.compile(r"\b(edge_at_least|edge_at_most)_(half|float|double)(\d*)\(")
_KERNEL = re.compile(r"^__kernel ", re.MULTILINE)
_SIGN = {"edge_at_least": "<", "edge_at_most": ">"}
_TYPES = {"float16": "half", "float32": "float", "float64": "double"}


def keeping_nan(module: tvm.IRModule) -> tvm.IRModule:
    """Return scheduled kernels whose limits of floats let NaNs through.

    Where a number becomes an integer, the least there is takes the place of NaN, as in ONNX Runtime's QuantizeLinear.
    """
    functions = {name: _kept(one) if isinstance(one, tirx.PrimFunc) else one for name, one in module.functions_items()}
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def with_helpers(source: str) -> str:
    """Return OpenCL C with the helpers that its kernels call, before the first kernel."""
    called = sorted({found.groups() for found in _HELPER.finditer(source)})
    first = _KERNEL.search(source)
    if not called or first is None:
        return source
    return source[: first.start()] + "".join(_helper(*one) for one in called) + source[first.start() :]


def _helper(name: str, element: str, lanes: str) -> str:
    kind, compared = f"{element}{lanes}", f"x {_SIGN[name]} limit"
    value = f"select(x, limit, {compared})" if lanes else f"{compared} ? limit : x"
    return f"{kind} {name}_{kind}({kind} x, {kind} limit) {{ return {value}; }}\n"


def _kept(function: tirx.PrimFunc) -> tirx.PrimFunc:
    written: set[Any] = set()  # the sum of a reduction may have one element, too: its form is what schedules look for
    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, lambda store: written.add(store.buffer)))

    def kept(found: Any) -> Any:
        if str(found.ty.dtype).partition("x")[0] not in _TYPES:
            return found
        for value, limit in ((found.a, found.b), (found.b, found.a)):
            if is_limit(limit) and getattr(limit, "source", None) not in written:
                return _call(_OPERATORS[type(found)], value, limit)
        return found

    mapped = tvm_ffi.structural_map(function.body, [((prim.Max, prim.Min), kept), (prim.Cast, _whole)])
    return function.with_body(mapped)


def _whole(cast: Any) -> Any:
    """Return a conversion to an integer before which no NaN is left, if the number has a lower limit."""
    is_integer = str(cast.ty.dtype).startswith(("int", "uint"))
    return type(cast)(cast.ty.dtype, _without_nan(cast.value)) if is_integer else cast


def _without_nan(value: Any) -> Any:
    """Exchange the operands of the last lower limit, so that the limit takes the place of a NaN."""
    if not isinstance(value, ir.Call) or not any(one.same_as(value.op) for one in _OPERATORS.values()):
        return value
    first, second = value.args
    if not is_limit(second):
        return value  # exchanged already
    if value.op.same_as(_OPERATORS[prim.Max]):
        return _call(value.op, second, first)
    return _call(value.op, _without_nan(first), second)


def _call(operator: ir.Op, value: Any, limit: Any) -> Any:
    return ir.Call(operator, [value, limit], None, None, None, value.ty)


def _register(name: str, says: str, plain: Any) -> ir.Op:
    operator = f"tirx.toolchain_{name}"
    tvm.get_global_func("ir.RegisterOp")(operator, says)
    ir.register_op_attr(operator, "TCallEffectKind", _PURE)
    ir.register_op_attr(operator, "TVectorizable", value=True)
    ir.register_op_attr(operator, "TScriptPrinterName", f"toolchain_{name}")

    def helper(call: Any) -> Any:
        element, _, lanes = str(call.ty.dtype).partition("x")
        words = [f"edge_{name}_{_TYPES[element]}{lanes}", *call.args]
        return ir.Call(ir.Op.get("tirx.call_pure_extern"), words, None, None, None, call.ty)

    def chosen(call: Any) -> Any:
        value, limit = call.args
        return tirx.Select(plain(value, limit), limit, value)

    tirx.op.register_intrin_lowering(operator, target="opencl", f=helper)
    tirx.op.register_intrin_lowering(operator, target="default", f=chosen)  # for kernels that this machine's CPU runs
    return ir.Op.get(operator)


_OPERATORS = {
    prim.Max: _register("at_least", "a number, or the limit that it is below", lambda value, limit: value < limit),
    prim.Min: _register("at_most", "a number, or the limit that it is above", lambda value, limit: value > limit),
}
