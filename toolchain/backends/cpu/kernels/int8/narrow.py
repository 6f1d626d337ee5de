"""Four vectors of numbers as one vector of bytes, with the instructions that round and limit on the way.

What takes seven instructions for each vector in general (limits, rounding, and the selection of a byte) takes less than
three: conversions round half to even, and narrowing saturates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Expr
from toolchain.backends.cpu.machine import Machine

FOUR = 4
"""Vectors that become one."""

_ROUND_AS_SET = 4  # the rounding mode of the processor, which is half to even

# By lanes: conversion to int32, narrowing to int16, narrowing to uint8 (Intel SDM: CVTPS2DQ, PACKSSDW, PACKUSWB).
_X86 = {
    16: ("avx512.mask.cvtps2dq.512", "avx512.packssdw.512", "avx512.packuswb.512"),
    8: ("avx.cvt.ps2dq.256", "avx2.packssdw", "avx2.packuswb"),
    4: ("sse2.cvtps2dq", "sse2.packssdw.128", "sse2.packuswb.128"),
}


def narrow_to_bytes(machine: Machine, values: Sequence[Expr], zero: Expr) -> Expr:
    """Return vectors one after the other as bytes of the type that the machine's dot products take.

    Args:
        machine: The processor; it must have dot products.
        values: Four vectors of float32 in the unit of the bytes' grid, less than 2^31.
        zero: The zero of the grid, int32.
    """
    match machine.dot:
        case "vpdpbusd":
            return _narrow_x86(machine.lanes, values, zero)
        case "sdot":
            return _narrow_arm(machine.lanes, values, zero)
        case "":
            raise ValueError("the processor has no dot products")
        case _:
            assert_never(machine.dot)


def _call(dtype: str, name: str, *arguments: Expr) -> Expr:
    return T.Bind(tirx.call_llvm_pure_intrin(dtype, f"llvm.{name}", *arguments))


def _with_zero(halves: Expr, zero: Expr, lanes: int) -> Expr:
    """Return int16 plus a grid's zero, limited to what int16 holds."""
    return _call(f"int16x{lanes}", "sadd.sat", halves, emit.splat(tirx.Cast("int16", zero), lanes))


def _narrow_x86(lanes: int, values: Sequence[Expr], zero: Expr) -> Expr:
    convert, to_words, to_bytes = (f"x86.{name}" for name in _X86[lanes])
    vector = f"int32x{lanes}"
    # The instruction of 512 bits takes a mask and a rounding mode; the others have neither.
    masked = lanes == max(_X86)
    rest = (
        (emit.splat(0, lanes, "int32"), tirx.const(-1, "int16"), tirx.const(_ROUND_AS_SET, "int32")) if masked else ()
    )
    integers = [_call(vector, convert, value, *rest) for value in values]
    halves = [_call(f"int16x{2 * lanes}", to_words, *integers[first : first + 2]) for first in (0, 2)]
    shifted = [_with_zero(half, zero, 2 * lanes) for half in halves]
    mixed = _call(f"uint8x{FOUR * lanes}", to_bytes, *shifted)
    # Each 128 bits hold a piece of every vector: they are put together again.
    pieces = lanes // FOUR
    order = [piece * FOUR + number for number in range(FOUR) for piece in range(pieces)]
    ordered = tirx.Shuffle([tirx.reinterpret(vector, mixed)], order) if pieces > 1 else mixed
    return T.Bind(tirx.reinterpret(f"uint8x{FOUR * lanes}", ordered))


def _narrow_arm(lanes: int, values: Sequence[Expr], zero: Expr) -> Expr:
    def joined(first: Expr, second: Expr, count: int) -> Expr:
        return T.Bind(tirx.Shuffle([first, second], list(range(2 * count))))

    integers = [_call(f"int32x{lanes}", "aarch64.neon.fcvtns", value) for value in values]
    shorts = [_call(f"int16x{lanes}", "aarch64.neon.sqxtn", one) for one in integers]
    pairs = [_with_zero(joined(shorts[first], shorts[first + 1], lanes), zero, 2 * lanes) for first in (0, 2)]
    halves = [_call(f"int8x{2 * lanes}", "aarch64.neon.sqxtn", one) for one in pairs]
    return joined(halves[0], halves[1], 2 * lanes)
