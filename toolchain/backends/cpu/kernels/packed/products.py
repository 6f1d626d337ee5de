"""Products of weights of 4 or 8 bits with bytes of data, by the instructions that a processor has for bytes."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Expr
from toolchain.backends.cpu.kernels.int8.emit import dot
from toolchain.backends.cpu.kernels.packed.digits import GROUP
from toolchain.backends.cpu.machine import Machine

_WORD = 32  # bits
_BYTE = 8
_LOW = 0x0F0F0F0F
_LOW_AS_BYTE, _HIGH_AS_BYTE = 4, -16  # a shift to the upper bits of a byte, and a mask of them
_UPPER = 1 << 4  # what numbers in the upper bits of bytes are multiplied by

# Of x86 without dot products, by lanes: products of bytes added in pairs as int16, and pairs of int16 as int32 (Intel
# SDM: PMADDUBSW, PMADDWD).
_X86_PAIRS = {
    16: ("avx512.pmaddubs.w.512", "avx512.pmaddw.d.512"),
    8: ("avx2.pmadd.ub.sw", "avx2.pmadd.wd"),
    4: ("ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd"),
}


@dataclass(frozen=True)
class Products:
    """How a processor multiplies weights with bytes of data.

    Attributes:
        machine: The processor.
        bits: Bits of a weight.
    """

    machine: Machine
    bits: int

    @property
    def is_possible(self) -> bool:
        """Whether the processor has instructions for that."""
        return bool(self.machine.dot) or self.machine.adds_bytes

    @property
    def raised(self) -> int:
        """What is added to weights so that they are unsigned bytes; 0 where they are signed."""
        by_pairs = not self.machine.dot and self.bits == _BYTE
        return 0 if self.machine.widens or by_pairs else 1 << (self.bits - 1)

    @property
    def factor(self) -> int:
        """What products are too large by."""
        return _UPPER if self.machine.widens and self.bits < _BYTE else 1

    @property
    def digits(self) -> tuple[int, ...]:
        """Digits of data that it can multiply with: a byte of -128 has no opposite, which `_signed` would need."""
        return (1,) if not self.machine.dot and self.bits == _BYTE else (1, 3)

    @property
    def cost(self) -> float:
        """Vector operations of a product of each lane with a word of data, as kernels estimate costs."""
        match self.machine.dot:
            case "vpdpbusd" | "sdot":
                return 1.0
            case "":
                return 2.3 if self.bits < _BYTE else 5.0
            case _:
                return 8.0

    @property
    def unpacking(self) -> float:
        """Vector operations that make bytes of a vector of weights."""
        return 3.0 if self.bits < _BYTE else 0.0 if self.machine.dot else 2.0

    def unpack(self, words: Expr) -> list[Expr]:
        """Return the weights of a vector of words as vectors of words, each of four neighbouring inputs."""
        lanes = self.machine.lanes
        if self.bits == _BYTE:
            return [words]
        if self.machine.widens:
            kind = emit.wide("int8", GROUP * lanes)
            bytes_ = tirx.reinterpret(kind, words)
            low = bytes_ << emit.splat(_LOW_AS_BYTE, GROUP * lanes, "int8")
            halves = (low, bytes_ & emit.splat(_HIGH_AS_BYTE, GROUP * lanes, "int8"))
            return [tirx.reinterpret(emit.wide("int32", lanes), half) for half in halves]
        mask = emit.splat(_LOW, lanes, "int32")
        return [words & mask, (words >> emit.splat(4, lanes, "int32")) & mask]


class Sums:
    """Sums of products with words of data, which are added one by one."""

    def __init__(self, products: Products, count: int) -> None:
        self._products, self._machine = products, products.machine
        self._registers = emit.Registers(count, products.machine.lanes, "int32")
        self._pairs: dict[int, Expr] = {}

    def __getitem__(self, index: int) -> Expr:
        return self._registers[index]

    def start(self, index: int, number: Expr) -> None:
        """Let a sum start with a number."""
        self._registers[index] = emit.splat(number, self._machine.lanes, "int32")

    def add(self, index: int, weights: Expr, data: Expr) -> None:
        """Add the products of a word of weights of each lane, and a word of data.

        At most eight words of 4 bits may follow each other without `finish`.
        """
        machine, count = self._machine, GROUP * self._machine.lanes
        total, spread = self._registers[index], emit.splat(data, machine.lanes, "int32")
        if machine.widens:
            signed = tirx.reinterpret(emit.wide("int8", count), weights)
            self._registers[index] = dot(machine, total, spread, signed)
        elif machine.dot:  # the weights are the unsigned factor
            signed = tirx.reinterpret(emit.wide("int8", count), spread)
            self._registers[index] = dot(machine, total, weights, signed)
        else:
            self._add_pairs(index, weights, spread)

    def finish(self) -> None:
        """Add what waits to the sums."""
        lanes = self._machine.lanes
        ones, name = emit.splat(1, 2 * lanes, "int16"), f"llvm.x86.{_X86_PAIRS[lanes][1]}"
        for index, pairs in self._pairs.items():
            widened = tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, pairs, ones)
            self._registers[index] = self._registers[index] + widened
        self._pairs.clear()

    def _add_pairs(self, index: int, weights: Expr, data: Expr) -> None:
        lanes, is_byte = self._machine.lanes, self._products.bits == _BYTE
        unsigned, signed = _without_sign(weights, data, lanes) if is_byte else (weights, data)
        bytes_ = [tirx.reinterpret(f"int8x{GROUP * lanes}", factor) for factor in (unsigned, signed)]
        name = f"llvm.x86.{_X86_PAIRS[lanes][0]}"
        product = tirx.call_llvm_pure_intrin(f"int16x{2 * lanes}", name, *bytes_)
        waiting = self._pairs.get(index)
        self._pairs[index] = T.Bind(product if waiting is None else waiting + product)
        if is_byte:  # two products nearly fill an int16
            self.finish()


def _without_sign(weights: Expr, data: Expr, lanes: int) -> tuple[Expr, Expr]:
    """Return two factors with the same product, of which the first one is not negative."""
    kind = f"int8x{GROUP * lanes}"
    weights, data = (T.Bind(tirx.reinterpret(kind, factor)) for factor in (weights, data))
    zero = emit.splat(0, GROUP * lanes, "int8")
    is_negative = weights < zero
    return tirx.Select(is_negative, zero - weights, weights), tirx.Select(is_negative, zero - data, data)
