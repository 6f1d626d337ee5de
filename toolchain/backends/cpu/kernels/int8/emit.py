"""What the templates on bytes share: dot products, and the epilogue between a sum and the byte that is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument, Buffer, Coordinates, Expr
from toolchain.backends.cpu.kernels.int8 import pairs
from toolchain.backends.cpu.kernels.int8.grids import byte_of, parameter_count, quantizer_units
from toolchain.backends.cpu.layers import Conv, ImageLayer
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.math import round_to_int

GROUP = pairs.GROUP
"""Bytes that a dot product adds to one lane."""

# Adding it to a float32 of less than 2^22 leaves no bits for a fraction: the addition rounds half to even, as ONNX
# wants it, on every processor, and the low byte of the result's bits is the whole number's.
_ROUNDING = 1.5 * 2**23


def dot(machine: Machine, sums: Expr, data: Expr, weights: Expr) -> Expr:
    """Return sums + products of four neighbouring bytes for each 32-bit lane.

    Args:
        machine: The processor.
        sums: int32, one for each lane.
        data: Four bytes of data as one int32, in each lane.
        weights: int8, four for each lane.
    """
    lanes = machine.lanes
    same_bits = tirx.reinterpret(f"{byte_of(machine)}x{GROUP * lanes}", data)
    if machine.adds_pairs:
        return pairs.dot(machine, sums, T.Bind(same_bits), T.Bind(weights))
    match machine.dot:
        case "vpdpbusd":  # Intel SDM volume 2, VPDPBUSD: unsigned by signed
            name, factors = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", (same_bits, weights)
        case "sdot":  # Arm ARM, SDOT (vector): signed by signed
            name, factors = f"llvm.aarch64.neon.sdot.v{lanes}i32.v{GROUP * lanes}i8", (weights, same_bits)
        case _:
            raise ValueError("the processor has no dot products")
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, *factors)


def four_bytes(buffer: Buffer, offset: Expr) -> Expr:
    """Return four neighbouring bytes as one int32."""
    return tirx.reinterpret("int32", buffer[emit.ramp(offset, GROUP)])


def load_float32(buffer: Buffer, offset: Expr, lanes: int) -> Expr:
    """Return neighbouring elements as float32."""
    value = buffer[emit.ramp(offset, lanes)]
    return value if str(buffer.dtype) == "float32" else tirx.Cast(emit.wide("float32", lanes), value)


def arguments(layer: ImageLayer, weights: Argument | None = None) -> list[Argument]:
    """List the arguments of a layer's kernel.

    Args:
        weights: Its packed weights; without, the weights are as they are before that.
    """
    arguments = [Argument("data", layer.data.shape, layer.data.dtype)]
    if isinstance(layer, Conv):
        channels = (layer.out.blocks, layer.out.lanes)
        arguments.append(weights or Argument("weights", layer.weights_shape, "int8"))
        arguments += [Argument("sums", channels, "int32"), Argument("scales", channels)]
        arguments += [Argument("offsets", channels, "int32")] if layer.offset else []
    if parameter_count(layer):
        arguments.append(Argument("parameters", (parameter_count(layer),)))
    for number, op in enumerate(layer.epilogue):
        if op.other is not None:
            arguments.append(Argument(f"operand{number}", op.other.shape, op.other.dtype))
        elif op.takes_argument:
            arguments.append(Argument(f"operand{number}", (layer.out.blocks, layer.out.lanes)))
    return [*arguments, Argument("out", layer.out.shape, layer.out.dtype)]


class ByteEpilogue:
    """Writes a layer's epilogue and the rounding to bytes."""

    def __init__(
        self, layer: ImageLayer, machine: Machine, parameters: Buffer, others: Sequence[Buffer], out: Buffer
    ) -> None:
        """Take a layer's flat buffers; `parameters` as `grids.parameters` returns them."""
        self._layer, self._machine, self._parameters, self._others, self._out = layer, machine, parameters, others, out

    def mean(self, total: Expr, count: Expr, divisor: Expr, lanes: int) -> Expr:
        """Return the mean of bytes in the unit that the parameters start with.

        Args:
            total: Their sum, int32.
            count: How many they are.
            divisor: By what their sum is divided.
            lanes: Elements of the vector.
        """
        factor = T.Bind(self._parameters[0] / tirx.Cast("float32", divisor))
        zeros = T.Bind(self._parameters[1] * tirx.Cast("float32", count))
        above = tirx.Cast(emit.wide("float32", lanes), total) - emit.splat(zeros, lanes)
        return T.Bind(above * emit.splat(factor, lanes))

    def scaled(self, value: Expr, lanes: int) -> Expr:
        """Return bytes in the unit that the parameters start with."""
        return T.Bind(tirx.Cast(emit.wide("float32", lanes), value) * self._splat(0, lanes) + self._splat(1, lanes))

    def value(self, value: Expr, coordinates: Coordinates, lanes: int) -> Expr:
        """Return a vector after epilogue and rounding: float32, or int32 whose low bytes are the result.

        Args:
            value: float32, in the unit that the parameters start with.
            coordinates: Image, block, row and column of the result.
            lanes: Elements of the vector.
        """
        value, position, scaled = self._apply_epilogue(value, coordinates, lanes)
        if not self._layer.out.is_bytes:
            return value
        limited = self._clip(value, position, lanes, scaled=scaled)
        rounded = T.Bind(limited + emit.splat(_ROUNDING, lanes))
        zero = emit.splat(tirx.Cast("int32", self._parameters[position + 3]), lanes)
        return T.Bind(tirx.reinterpret(emit.wide("int32", lanes), rounded) + zero)

    def store_line(self, values: Sequence[Expr], coordinates: Coordinates) -> None:
        """Store neighbouring columns, after epilogue and rounding, in a blocked result.

        Args:
            values: float32, in the unit that the parameters start with; at last all are less than 2^31.
            coordinates: Image, block, row and first column of the result.
        """
        image, block, row, column = coordinates
        for first, size in pieces(len(values), FOUR):
            if self._layer.out.is_bytes and size in narrowed_together(self._machine):
                self._store_narrowed(values[first : first + size], (image, block, row, column + first))
                continue
            for number in range(first, first + size):
                self.store(values[number], (image, block, row, column + number), self._machine.lanes)

    def _store_narrowed(self, values: Sequence[Expr], coordinates: Coordinates) -> None:
        machine, (image, block, row, column) = self._machine, coordinates
        ready = []
        for number, value in enumerate(values):
            result, position, scaled = self._apply_epilogue(value, (image, block, row, column + number), machine.lanes)
            ready.append(result if scaled else T.Bind(result * self._splat(position, machine.lanes)))
        zero = tirx.Cast("int32", self._parameters[position + 3])
        indices = emit.ramp(emit.offset(self._layer.out, *coordinates), len(values) * machine.lanes)
        T.buffer_store(self._out, narrow_to_bytes(machine, ready, zero), [indices])

    def _apply_epilogue(self, value: Expr, coordinates: Coordinates, lanes: int) -> tuple[Expr, int, bool]:
        """Return a vector after the epilogue, the next parameter's position, and whether it is in the next unit."""
        layer, position = self._layer, 2
        others, scaled = iter(self._others), iter(quantizer_units(layer))
        for op in layer.epilogue:
            if op.other is not None:
                source = (*coordinates[:2], 0, 0) if op.other.height == op.other.width == 1 else coordinates
                other = load_float32(next(others), emit.offset(op.other, *source), lanes)
                operand = other * self._splat(position, lanes) + self._splat(position + 1, lanes)
                value = emit.apply_post_op(op, value, operand, lanes)
                position += 2
            elif op.kind == "quantize":
                limited = self._clip(value, position, lanes, scaled=next(scaled))
                # The zero is left out on the way: it would be subtracted again.
                value = self._round(limited, lanes) * self._splat(position + 3, lanes)
                position += 4
            elif op.takes_argument:
                operand = next(others)[emit.ramp(coordinates[1] * lanes, lanes)]
                value = emit.apply_post_op(op, value, operand, lanes)
            else:
                value = emit.activation(op, value, lanes)
            value = T.Bind(value)
        return value, position, next(scaled, True)

    def store(self, value: Expr, coordinates: Coordinates, lanes: int) -> None:
        """Store a vector, after epilogue and rounding, in a blocked result; arguments as for `value`."""
        result = self.element(value, coordinates, lanes)
        T.buffer_store(self._out, result, [emit.ramp(emit.offset(self._layer.out, *coordinates), lanes)])

    def element(self, value: Expr, coordinates: Coordinates, lanes: int) -> Expr:
        """Return a vector after epilogue and rounding in the result's type; arguments as for `value`."""
        return tirx.Cast(emit.wide(self._layer.out.dtype, lanes), self.value(value, coordinates, lanes))

    def _round(self, value: Expr, lanes: int) -> Expr:
        """Return the nearest whole numbers of small floats."""
        if self._machine.rounds:
            return tirx.nearbyint(value)
        return tirx.Cast(emit.wide("float32", lanes), round_to_int(value, lanes))

    def _clip(self, value: Expr, position: int, lanes: int, *, scaled: bool) -> Expr:
        """Return a value in the unit of a grid, between its limits."""
        if not scaled:
            value = value * self._splat(position, lanes)
        least, greatest = (self._splat(limit, lanes) for limit in (position + 1, position + 2))
        if not self._machine.limits_nan or lanes == 1:
            return T.Bind(tirx.min(tirx.max(value, least), greatest))
        # TVM's maximum of x and a limit is the limit for a NaN; 64-bit Arm has an instruction for that (FMAXNM).
        vector, above = emit.wide("float32", lanes), tirx.max(value, least)
        if self._machine.rounds:
            above = tirx.call_llvm_pure_intrin(vector, "llvm.maxnum", value, least)
        return T.Bind(tirx.call_llvm_pure_intrin(vector, "llvm.minimum", above, greatest))

    def _splat(self, position: int, lanes: int) -> Expr:
        return emit.splat(self._parameters[position], lanes)


# --- four vectors of numbers as one of bytes -------------------------------------------------------------------------

# What takes seven instructions for each vector in general (limits, rounding, and the selection of a byte) takes less
# than three: conversions round half to even, and narrowing saturates.

FOUR = 4
"""Vectors that become one."""


def pieces(extent: int, largest: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the size of pieces of some size, a power of two, then of half of it for what is left."""
    start = 0
    while start < extent:
        while largest > extent - start:
            largest //= 2
        yield start, largest
        start += largest


def narrowed_together(machine: Machine) -> tuple[int, ...]:
    """Return how many vectors `narrow_to_bytes` takes."""
    return (FOUR, 2, 1) if byte_of(machine) == "int8" else (FOUR,)


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
        values: Vectors of float32 in the unit of the bytes' grid, less than 2^31; see `narrowed_together`.
        zero: The zero of the grid, int32.
    """
    match machine.dot:
        case "vpdpbusd":
            return _narrow_x86(machine.lanes, values, zero)
        case "sdot" | "smull" | "vmull":
            return _narrow_arm(machine, values, zero)
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


def _narrow_arm(machine: Machine, values: Sequence[Expr], zero: Expr) -> Expr:
    lanes = machine.lanes

    def joined(first: Expr, second: Expr, count: int) -> Expr:
        return T.Bind(tirx.Shuffle([first, second], list(range(2 * count))))

    shorts = [_round_to_short(machine, value) for value in values]
    narrow = "aarch64.neon.sqxtn" if machine.rounds else "arm.neon.vqmovns"
    if len(shorts) == 1:
        alone = _with_zero(shorts[0], zero, lanes)
        narrowed = _call(f"int8x{2 * lanes}", narrow, joined(alone, alone, lanes))
        return tirx.Shuffle([narrowed], list(range(lanes)))
    words = [
        _with_zero(joined(shorts[first], shorts[first + 1], lanes), zero, 2 * lanes)
        for first in range(0, len(shorts), 2)
    ]
    halves = [_call(f"int8x{2 * lanes}", narrow, word) for word in words]
    return joined(halves[0], halves[1], 2 * lanes) if len(halves) > 1 else halves[0]


def _round_to_short(machine: Machine, value: Expr) -> Expr:
    """Return floats rounded half to even as int16, limited to what that holds."""
    lanes = machine.lanes
    if machine.rounds:
        whole = _call(f"int32x{lanes}", "aarch64.neon.fcvtns", value)
        return _call(f"int16x{lanes}", "aarch64.neon.sqxtn", whole)
    vector, (least, greatest) = f"float32x{lanes}", (emit.splat(limit, lanes) for limit in (-(2.0**15), 2.0**15 - 1))
    limited = _call(vector, "minimum", _call(vector, "maximum", value, least), greatest)
    return T.Bind(tirx.Cast(f"int16x{lanes}", round_to_int(limited, lanes)))
