"""Multiplications whose product is added, on machines where LLVM does not choose the instruction by itself.

32-bit Arm cores have `vmla.f32`, which rounds the product and the sum. TVM allows LLVM to fuse the two into one
rounding, and LLVM then takes this instruction for none: it writes `vmul.f32` and `vadd.f32`, at half the rate. It also
moves all of a tile's loads to the front of the loop, which 16 registers do not hold. So the instruction comes in
functions of LLVM's own language, which are inlined; being marked as having effects, they stay in their order.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from toolchain.backends.cpu.machine import Machine

_LANES = 4
_NAME = "toolchain_multiply_add"
_VECTOR = "<4 x float>"


def multiply_add(machine: Machine, total: Any, vector: Any, factors: Any, element: int | None = None) -> Any:
    """Return total + vector * factors, for vectors of the machine's width.

    Args:
        machine: The processor.
        total: The sum so far.
        vector: The one factor.
        factors: The other one.
        element: Lane of `factors` that is taken for all lanes.
    """
    if machine.vmla:
        name = _NAME if element is None else f"{_NAME}_{element}"
        return tirx.call_pure_extern(f"float32x{_LANES}", name, total, vector, factors)
    if element is not None:
        lane = tirx.Shuffle([factors], [tirx.const(element, "int32")])
        factors = tirx.Broadcast(lane, machine.lanes)
    return total + vector * factors


def with_definitions(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Return a kernel together with what its calls of `multiply_add` call."""
    if not machine.vmla:
        return function
    halves = [f"${{3:{half}}}[{lane}]" for half in "ef" for lane in range(2)]
    by_element = [_definition(f"{_NAME}_{lane}", operand, "t") for lane, operand in enumerate(halves)]
    text = tvm.ir.StringImm("".join([_definition(_NAME, "${3:q}", "w"), *by_element]))
    return function.with_body(tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, function.body))


def _definition(name: str, operand: str, registers: str) -> str:
    """Write one; only the first half of the registers (`t`) can be taken by element."""
    code = f"vmla.f32 ${{0:q}}, ${{2:q}}, {operand}"
    return (
        f"define {_VECTOR} @{name}({_VECTOR} %total, {_VECTOR} %vector, {_VECTOR} %factors) alwaysinline nounwind {{\n"
        f'  %sum = call {_VECTOR} asm sideeffect "{code}", "=w,0,w,{registers}"'
        f"({_VECTOR} %total, {_VECTOR} %vector, {_VECTOR} %factors) nounwind readnone\n"
        f"  ret {_VECTOR} %sum\n}}\n"
    )
