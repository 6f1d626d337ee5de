"""What the templates in bfloat16 share: pairs of numbers, and their products, which are added up in float32.

TVM computes every expression on bfloat16 in float32, so that it never uses a processor's instructions for it. Here a
pair of numbers that are neighbours in the sum is an int32, the first one in the low half. Rounding and products are
functions in LLVM's own language, which are inlined. Each has two bodies: an instruction of AVX512_BF16, and a portable
one, by which the same kernels can be tested on any processor.

The instructions flush subnormal numbers to zero, and round each product of a pair on its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Expr
from toolchain.backends.cpu.machine import Machine

PAIR = 2
"""Numbers in one int32."""

ROUNDING = 3
"""Vector operations that load, round and store one vector of floats."""

_SLOW = 4  # times as long as a multiply-add of float32, on processors with AMX: measured on an Emerald Rapids

_DOT, _ROUND, _PAIR = "toolchain_bfloat16_dot", emit.ROUND_PAIRS, "toolchain_bfloat16_pair"
_HALF = 16  # bits
_QUIET = 0x40  # the bit that makes the upper half of a NaN one


def product_cost(machine: Machine) -> float:
    """Return what `multiply_add` costs, in the unit of `kernels.Candidate`."""
    return _SLOW if machine.tiles else 1


def multiply_add(machine: Machine, total: Expr, weights: Expr, numbers: Expr) -> Expr:
    """Return total + the products of the pairs of two vectors of int32; each lane has a sum of its own."""
    return tirx.call_pure_extern(emit.wide("float32", machine.lanes), _DOT, total, weights, numbers)


def round_pairs(machine: Machine, numbers: Expr) -> Expr:
    """Return a vector of float32 as half as many pairs."""
    return emit.round_pairs(numbers, machine.lanes)


def pair(machine: Machine, first: Expr, second: Expr) -> Expr:
    """Return two vectors of float32 as one of pairs: each lane has a number of both."""
    return tirx.call_pure_extern(emit.wide("int32", machine.lanes), _PAIR, first, second)


def pair_up(weights: NDArray[np.float32], pairs: int) -> NDArray[np.int32]:
    """Return weights [outputs, inputs, ...] as [outputs, pairs, ...]; zeros follow the last input.

    The nearest number is taken, the even one of two that are equally near.
    """
    bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    # Subnormal numbers take a hundred times longer where no instruction flushes them.
    normal = np.where(np.abs(weights) < np.finfo(np.float32).tiny, np.uint32(0), bits)
    nearest = (normal + np.uint32(0x7FFF) + (normal >> _HALF & 1)) >> _HALF
    upper = np.where(np.isnan(weights), normal >> _HALF | _QUIET, nearest)
    padded = np.zeros((weights.shape[0], PAIR * pairs, *weights.shape[2:]), np.uint32)
    padded[:, : weights.shape[1]] = upper
    paired: NDArray[np.uint32] = padded[:, ::PAIR] | padded[:, 1::PAIR] << _HALF
    return paired.view(np.int32)


# --- functions of LLVM -----------------------------------------------------------------------------------------------


def with_definitions(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Return a kernel together with what its calls of `multiply_add`, `round_pairs`, `pair` and `emit.load` call."""
    own, portable = (_definitions(machine.lanes, has_instructions=has) for has in (True, False))
    return emit.with_llvm(function, own if machine.bfloat16 == "vdpbf16ps" else portable, portable)


def _definitions(lanes: int, *, has_instructions: bool) -> str:
    floats, integers = f"<{lanes} x float>", f"<{lanes} x i32>"
    pairs, halves = f"<{lanes // PAIR} x i32>", f"<{lanes} x i16>"
    dot, rounding = (_dot_instruction, _round_instruction) if has_instructions else (portable_dot, _portable_round)
    return (
        f"define {floats} @{_DOT}({floats} %total, {integers} %a, {integers} %b) alwaysinline nounwind {{\n"
        f"{dot(lanes)}  ret {floats} %sum\n}}\n"
        f"define {pairs} @{_ROUND}({floats} %numbers) alwaysinline nounwind {{\n"
        f"{rounding(lanes)}  %pairs = bitcast {halves} %upper to {pairs}\n  ret {pairs} %pairs\n}}\n"
        f"define {floats} @{emit.WIDEN_PAIRS}({pairs} %pairs) alwaysinline nounwind {{\n"
        f"  %halves = bitcast {pairs} %pairs to {halves}\n  %wide = zext {halves} %halves to {integers}\n"
        f"  %upper = shl {integers} %wide, {_splat(_HALF, lanes)}\n"
        f"  %numbers = bitcast {integers} %upper to {floats}\n  ret {floats} %numbers\n}}\n"
        f"define {integers} @{_PAIR}({floats} %first, {floats} %second) alwaysinline nounwind {{\n"
        f"  %a = call {pairs} @{_ROUND}({floats} %first)\n  %b = call {pairs} @{_ROUND}({floats} %second)\n"
        f"  %a.halves = bitcast {pairs} %a to {halves}\n  %b.halves = bitcast {pairs} %b to {halves}\n"
        f"  %low = zext {halves} %a.halves to {integers}\n  %wide = zext {halves} %b.halves to {integers}\n"
        f"  %high = shl {integers} %wide, {_splat(_HALF, lanes)}\n"
        f"  %both = or {integers} %low, %high\n  ret {integers} %both\n}}\n"
        + (_declarations(lanes) if has_instructions else "")
    )


# Intel SDM volume 2: VDPBF16PS and VCVTNEPS2BF16.


def _declarations(lanes: int) -> str:
    floats, numbers = f"<{lanes} x float>", f"<{PAIR * lanes} x bfloat>"
    return (
        f"declare {floats} @llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}({floats}, {numbers}, {numbers})\n"
        f"declare <{lanes} x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}({floats})\n"
    )


def _dot_instruction(lanes: int) -> str:
    floats, numbers = f"<{lanes} x float>", f"<{PAIR * lanes} x bfloat>"
    return (
        f"  %x = bitcast <{lanes} x i32> %a to {numbers}\n"
        f"  %y = bitcast <{lanes} x i32> %b to {numbers}\n"
        f"  %sum = call {floats} @llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        f"({floats} %total, {numbers} %x, {numbers} %y)\n"
    )


def _round_instruction(lanes: int) -> str:
    return (
        f"  %nearest = call <{lanes} x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}"
        f"(<{lanes} x float> %numbers)\n"
        f"  %upper = bitcast <{lanes} x bfloat> %nearest to <{lanes} x i16>\n"
    )


def portable_dot(lanes: int) -> str:
    """Return LLVM code that adds the products of the pairs of %a and %b to %total, as %sum."""
    floats, integers = f"<{lanes} x float>", f"<{lanes} x i32>"
    lines = []
    for name in "ab":  # a bfloat16 is the upper half of a float32
        lines += [
            f"%{name}.low = shl {integers} %{name}, {_splat(_HALF, lanes)}",
            f"%{name}.high = and {integers} %{name}, {_splat(-(1 << _HALF), lanes)}",
            *(f"%{name}.{half}.float = bitcast {integers} %{name}.{half} to {floats}" for half in ("low", "high")),
        ]
    # `contract`: a product and a sum may be one instruction.
    lines += [
        f"%low = fmul contract {floats} %a.low.float, %b.low.float",
        f"%first = fadd contract {floats} %total, %low",
        f"%high = fmul contract {floats} %a.high.float, %b.high.float",
        f"%sum = fadd contract {floats} %first, %high",
    ]
    return "".join(f"  {line}\n" for line in lines)


def _portable_round(lanes: int) -> str:
    integers = f"<{lanes} x i32>"
    lines = [
        f"%bits = bitcast <{lanes} x float> %numbers to {integers}",
        f"%cut = lshr {integers} %bits, {_splat(_HALF, lanes)}",
        # To the nearest number, and to the even one of two that are equally near.
        f"%odd = and {integers} %cut, {_splat(1, lanes)}",
        f"%more = add {integers} %odd, {_splat(0x7FFF, lanes)}",
        f"%carried = add {integers} %bits, %more",
        f"%near = lshr {integers} %carried, {_splat(_HALF, lanes)}",
        # A NaN stays one.
        f"%nan = fcmp uno <{lanes} x float> %numbers, zeroinitializer",
        f"%quiet = or {integers} %cut, {_splat(_QUIET, lanes)}",
        f"%chosen = select <{lanes} x i1> %nan, {integers} %quiet, {integers} %near",
        f"%upper = trunc {integers} %chosen to <{lanes} x i16>",
    ]
    return "".join(f"  {line}\n" for line in lines)


def _splat(number: int, lanes: int) -> str:
    return f"<{', '.join([f'i32 {number}'] * lanes)}>"
