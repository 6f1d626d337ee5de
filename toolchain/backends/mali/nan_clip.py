"""Limits that let NaN through, as ONNX Runtime's Relu, Clip and HardSigmoid do.

OpenCL's `max` and `min` promise nothing about NaN, and drivers return the limit instead of it. So a limit is a call of
a helper, which chooses by one comparison: NaN is not below the limit, and stays. The helpers for the types in a kernel
are written into its source. A call evaluates its operand once, however long that is; TVM's own choice between two
values would write it twice.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import prim

from toolchain.backends.cpu.nan_clip import is_limit
from toolchain.backends.mali.rewrite import call_function, map_kernels

_PURE = 1  # TVM's CallEffectKind::kPure
_HELPER = re.compile(r"\b(edge_at_least|edge_at_most)_(half|float|double)(\d*)\(")
_KERNEL = re.compile(r"^__kernel ", re.MULTILINE)
_SIGN = {"edge_at_least": "<", "edge_at_most": ">"}
_TYPES = {"float16": "half", "float32": "float", "float64": "double"}


def keep_nan(module: tvm.IRModule) -> tvm.IRModule:
    """Return scheduled kernels whose limits of floats let NaNs through.

    Where a number becomes an integer, the lower limit takes the place of NaN, as in ONNX Runtime's QuantizeLinear.
    """
    return map_kernels(module, lambda _name, function: _keep_nan(function))


def add_helpers(source: str) -> str:
    """Return OpenCL C with the helpers that its kernels call, before the first kernel."""
    signatures = sorted({match.groups() for match in _HELPER.finditer(source)})
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
                return _call(_OPERATORS[type(node)], value, limit)
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
    if not isinstance(value, ir.Call) or not any(operator.same_as(value.op) for operator in _OPERATORS.values()):
        return value
    first, second = value.args
    if not is_limit(second):
        return value  # exchanged already
    if value.op.same_as(_OPERATORS[prim.Max]):
        return _call(value.op, second, first)
    return _call(value.op, _without_nan(first), second)


def _call(operator: ir.Op, value: Any, limit: Any) -> Any:
    return ir.Call(operator, [value, limit], None, None, None, value.ty)


def _register(name: str, description: str, compare: Any) -> ir.Op:
    operator = f"tirx.toolchain_{name}"
    tvm.get_global_func("ir.RegisterOp")(operator, description)
    ir.register_op_attr(operator, "TCallEffectKind", _PURE)
    ir.register_op_attr(operator, "TVectorizable", value=True)
    ir.register_op_attr(operator, "TScriptPrinterName", f"toolchain_{name}")

    def helper(call: Any) -> Any:
        element, _, lanes = str(call.ty.dtype).partition("x")
        return call_function(f"edge_{name}_{_TYPES[element]}{lanes}", call)

    def choose(call: Any) -> Any:
        value, limit = call.args
        return tirx.Select(compare(value, limit), limit, value)

    tirx.op.register_intrin_lowering(operator, target="opencl", f=helper)
    tirx.op.register_intrin_lowering(operator, target="default", f=choose)  # for kernels that this machine's CPU runs
    return ir.Op.get(operator)


_OPERATORS = {
    prim.Max: _register("at_least", "a number, or the limit that it is below", lambda value, limit: value < limit),
    prim.Min: _register("at_most", "a number, or the limit that it is above", lambda value, limit: value > limit),
}
