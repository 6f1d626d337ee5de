"""Data in bytes: each block of a row as whole numbers of a few bytes, which are multiplied as such.

A row's block of inputs is divided by a step of its own. With one byte for each number, the greatest is 127 steps: that
is what ONNX Runtime makes of data with `accuracy_level` 4. With three bytes, it is nearly 2^22 steps, so that a number
is as near to what it was as the sums of float32 are to the products. The bytes of a number are its digits in base 256,
each from -128 to 127.

A block that holds an infinity or a NaN has a NaN for its step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.layers import Dense
from toolchain.backends.cpu.machine import Machine

GROUP = 4
"""Numbers whose digits lie in one 32-bit word."""

OPERATIONS = 12.0
"""Vector operations that a vector of numbers and each digit take together."""

# Of one digit, and of three. Beside 1.5 * 2^23 a float has no room for fractions and 2^22 steps on both sides: what is
# added to it is rounded to even, and the low bits of the sum are the whole number.
_GREATEST = {1: 127.0, 3: 2.0**22 - 256}
_ROUNDING = 1.5 * 2**23
_ROUNDING_BITS = 0x4B400000  # the same number
_NOT_FINITE, _NAN, _WITHOUT_SIGN = 0x7F800000, 0x7FC00000, 0x7FFFFFFF
_BASE, _BASE_BITS = 256, 8
_SMALLEST = 2.0**-100  # of the greatest number of a block: below, all are zero


def padded_block(layer: Dense, machine: Machine) -> int:
    """Return the inputs of a block, with the zeros that fill up its last vector and word of 8 weights."""
    size = max(machine.lanes, 2 * GROUP)
    return -(-layer.block // size) * size


@dataclass(frozen=True)
class Digits:
    """The buffers of all rows in bytes.

    Attributes:
        count: Digits of a number.
        words: Digits, four neighbours in a word: [blocks, rows, digits, words].
        starts: Where the sums of products start, int32 [blocks, rows, digits]: the sum of digits times a number; None
            if that is zero.
        steps: Steps, float32 [blocks, rows].
        totals: Sums of a block's numbers, float32 [blocks, rows]; None if they are not wanted.
    """

    count: int
    words: Buffer
    starts: Buffer | None
    steps: Buffer
    totals: Buffer | None

    def starting(self, block: Expr, digit: int) -> Expr:
        """Return where the sums of a digit start; `block` counts all rows' blocks."""
        return 0 if self.starts is None else self.starts[block * self.count + digit]


@dataclass(frozen=True)
class Rounding:
    """What digits are made for.

    Attributes:
        count: Digits of a number, 1 or 3.
        start: The number that sums of products start with, for each unit of a digit.
        share: What a step is multiplied by.
        totals: Whether the sums of the numbers are wanted.
    """

    count: int
    start: int = 0
    share: float = 1.0
    totals: bool = False


def round_rows(layer: Dense, machine: Machine, data: Buffer, rounding: Rounding) -> Digits:
    """Write the rounding of all rows, and return their digits."""
    blocks, size = layer.rows * layer.blocks, padded_block(layer, machine)
    operations = OPERATIONS * rounding.count * blocks * size / machine.lanes

    def allocate(elements: int, dtype: str) -> Buffer:
        return emit.flat(T.alloc_buffer((elements,), dtype))

    # TVM lets registers share the memory of a buffer that nobody reads, whatever their types.
    digits = Digits(
        rounding.count,
        allocate(blocks * rounding.count * size // GROUP, "int32"),
        allocate(blocks * rounding.count, "int32") if rounding.start else None,
        allocate(blocks, "float32"),
        allocate(blocks, "float32") if rounding.totals else None,
    )
    writer = _Writer(layer, machine, data, rounding, digits)
    full, rest = divmod(layer.inputs, layer.block)
    with emit.shared(layer.rows, operations) as row:
        with T.serial(0, full) as block:
            writer.write(row, block, layer.block)
        if rest:
            writer.write(row, full, rest)
    return digits


class _Writer:
    def __init__(self, layer: Dense, machine: Machine, data: Buffer, rounding: Rounding, digits: Digits) -> None:
        self._layer, self._lanes, self._data, self._rounding, self._digits = (
            layer, machine.lanes, data, rounding, digits,
        )  # fmt: skip
        self._vectors = padded_block(layer, machine) // machine.lanes
        self._greatest = emit.Registers(1, self._lanes, "int32")
        self._sums = emit.Registers(rounding.count, self._lanes, "int32")

    def write(self, row: Expr, block: Expr, inputs: int) -> None:
        """Write one block of a row, which has so many inputs."""
        first = T.Bind(row * self._layer.inputs + block * self._layer.block)
        index = T.Bind(block * self._layer.rows + row)
        bits = self._greatest_bits(first, inputs)
        greatest, most = tirx.reinterpret("float32", bits), tirx.const(_GREATEST[self._rounding.count], "float32")
        is_small = greatest < tirx.const(_SMALLEST, "float32")
        inverse = T.Bind(tirx.Select(is_small, tirx.const(0.0, "float32"), most / greatest))
        step = tirx.reinterpret("int32", greatest / most)
        finite = T.Bind(tirx.reinterpret("float32", tirx.Select(bits < _NOT_FINITE, step, tirx.const(_NAN, "int32"))))
        T.buffer_store(self._digits.steps, finite * tirx.const(self._rounding.share, "float32"), [index])
        self._store_digits(first, inputs, index, emit.splat(inverse, self._lanes))
        self._store_sums(index, finite)

    def _of_block(self, first: Expr, inputs: int) -> Iterator[tuple[Expr, Expr]]:
        """Open the loop over a block's vectors, and yield number and elements of each; zeros follow the last input."""
        lanes = self._lanes
        vectors, rest = divmod(inputs, lanes)
        if vectors:
            with T.serial(0, vectors) as vector:
                yield vector, self._data[emit.ramp(first + vector * lanes, lanes)]
        if rest:
            numbers = [self._data[first + vectors * lanes + lane] for lane in range(rest)]
            zeros = [tirx.const(0.0, "float32")] * (lanes - rest)
            yield vectors, tirx.Shuffle([*numbers, *zeros], list(range(lanes)))

    def _greatest_bits(self, first: Expr, inputs: int) -> Expr:
        """Return the greatest magnitude of a block as bits, which are in the order of their numbers; NaN is above."""
        lanes, greatest = self._lanes, self._greatest
        greatest[0] = emit.splat(0, lanes, "int32")
        for _, numbers in self._of_block(first, inputs):
            bits = tirx.reinterpret(emit.wide("int32", lanes), T.Bind(numbers))
            greatest[0] = tirx.max(greatest[0], bits & emit.splat(_WITHOUT_SIGN, lanes, "int32"))
        return T.Bind(tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.smax.v{lanes}i32", greatest[0]))

    def _store_digits(self, first: Expr, inputs: int, index: Expr, inverse: Expr) -> None:
        """Write the digits of a block, and sum them up."""
        count, lanes = self._rounding.count, self._lanes
        for digit in range(count):
            self._sums[digit] = emit.splat(0, lanes, "int32")

        def store(vector: Expr, digit: int, number: Expr) -> None:
            place = ((index * count + digit) * self._vectors + vector) * (lanes // GROUP)
            low = tirx.Cast(emit.wide("int8", lanes), number)
            words = emit.wide("int32", lanes // GROUP)
            T.buffer_store(self._digits.words, tirx.reinterpret(words, low), [emit.ramp(place, lanes // GROUP)])

        for vector, numbers in self._of_block(first, inputs):
            rounded = T.Bind(numbers * inverse + emit.splat(_ROUNDING, lanes))
            whole = tirx.reinterpret(emit.wide("int32", lanes), rounded)
            number = T.Bind(whole - emit.splat(_ROUNDING_BITS, lanes, "int32"))
            for digit in range(count):
                store(vector, digit, number)
                is_last = digit == count - 1
                half = emit.splat(_BASE // 2, lanes, "int32")
                more = number if is_last else T.Bind((number + half) >> emit.splat(_BASE_BITS, lanes, "int32"))
                low = number if is_last else number - (more << emit.splat(_BASE_BITS, lanes, "int32"))
                self._sums[digit] = self._sums[digit] + low
                number = more
        for vector in range(-(-inputs // lanes), self._vectors):
            for digit in range(count):
                store(vector, digit, emit.splat(0, lanes, "int32"))

    def _store_sums(self, index: Expr, step: Expr) -> None:
        count, total = self._rounding.count, None
        for digit in reversed(range(count)):
            name = f"llvm.vector.reduce.add.v{self._lanes}i32"
            digit_sum = T.Bind(tirx.call_llvm_pure_intrin("int32", name, self._sums[digit]))
            if self._digits.starts is not None:
                start = digit_sum * tirx.const(self._rounding.start, "int32")
                T.buffer_store(self._digits.starts, start, [index * count + digit])
            in_float = tirx.Cast("float32", digit_sum)
            total = in_float if total is None else total * tirx.const(float(_BASE), "float32") + in_float
        if self._digits.totals is not None:
            T.buffer_store(self._digits.totals, total * step, [index])


def weighted(sums: list[Any], lanes: int) -> Expr:
    """Return the sums of products of each digit, int32 vectors, as one float32 vector."""
    total = None
    for digit_sum in reversed(sums):
        in_float = tirx.Cast(emit.wide("float32", lanes), digit_sum)
        total = in_float if total is None else total * emit.splat(float(_BASE), lanes) + in_float
        total = T.Bind(total)
    return total
