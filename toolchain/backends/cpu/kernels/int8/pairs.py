"""Sums of products of bytes on Arm cores without dot products.

The product of two int8 fits int16, and so does the sum of two such products, unless all four factors are -128. So one
instruction multiplies two channels of a pixel with the weights of four output channels, the next one adds two more
channels to these products, and a third adds neighbours to the sums in 32 bits: three instructions for 16 products,
where float32 takes four (Arm ARM: SMULL, SMLAL2, SADALP; on ARMv7 VMULL, VMLAL, VPADAL).

LLVM moves all of a tile's last instructions behind its first ones, which takes more registers than there are. So each
is a function in LLVM's own language that is inlined; being marked as having effects, they stay in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Buffer, Expr
from toolchain.backends.cpu.machine import Machine

GROUP = 4
"""Channels of a pixel that are multiplied together."""

_NAME = "toolchain_pairs"
_PER_INSTRUCTION, _LOOP = 0.67, 3.0  # costs: of an instruction, and instructions of a loop
_BYTES, _SHORTS, _SUMS = "<16 x i8>", "<8 x i16>", "<4 x i32>"


@dataclass(frozen=True)
class _Function:
    """A function of one instruction, or of two on 32-bit processors.

    Attributes:
        result: Its type in LLVM.
        operands: Types of its operands.
        arm64: Its text for 64-bit processors; empty if they do not need it.
        arm32: Its text for others.
        adds: Whether it changes its first operand.
    """

    result: str
    operands: tuple[str, ...]
    arm64: str
    arm32: str
    adds: bool = False

    def define(self, name: str, text: str) -> str:
        """Write the function in LLVM's language."""
        operands = ", ".join(f"{kind} %{letter}" for kind, letter in zip(self.operands, "abc", strict=False))
        # Two instructions write their result before they have read all operands.
        constraints = ["=&w" if ";" in text else "=w", *["w"] * len(self.operands)]
        constraints[1] = "0" if self.adds else "w"
        return (
            f"define {self.result} @{name}({operands}) alwaysinline nounwind {{\n"
            f'  %result = call {self.result} asm sideeffect "{text}", "{",".join(constraints)}"({operands})'
            f" nounwind readnone\n  ret {self.result} %result\n}}\n"
        )


_FUNCTIONS = {
    "multiply": _Function(_SHORTS, (_BYTES, _BYTES), "smull $0.8h, $1.8b, $2.8b", "vmull.s8 ${0:q}, ${1:e}, ${2:e}"),
    "multiply_high": _Function(
        _SHORTS, (_BYTES, _BYTES), "smull2 $0.8h, $1.16b, $2.16b", "vmull.s8 ${0:q}, ${1:f}, ${2:f}"
    ),
    "add_high": _Function(
        result=_SHORTS,
        operands=(_SHORTS, _BYTES, _BYTES),
        arm64="smlal2 $0.8h, $2.16b, $3.16b",
        arm32="vmlal.s8 ${0:q}, ${2:f}, ${3:f}",
        adds=True,
    ),
    "add_neighbours": _Function(
        _SUMS, (_SUMS, _SHORTS), arm64="sadalp $0.4s, $2.8h", arm32="vpadal.s16 ${0:q}, ${2:q}", adds=True
    ),
    "double_0": _Function(_SHORTS, (_SHORTS,), "zip1 $0.8h, $1.8h, $1.8h", ""),
    "double_1": _Function(_SHORTS, (_SHORTS,), "zip2 $0.8h, $1.8h, $1.8h", ""),
    "spread_0": _Function(
        _BYTES, (_SHORTS,), "zip1 $0.4s, $1.4s, $1.4s", "vdup.16 ${0:e}, ${1:e}[0]; vdup.16 ${0:f}, ${1:e}[1]"
    ),
    "spread_1": _Function(
        _BYTES, (_SHORTS,), "zip2 $0.4s, $1.4s, $1.4s", "vdup.16 ${0:e}, ${1:e}[2]; vdup.16 ${0:f}, ${1:e}[3]"
    ),
    "spread_2": _Function(_BYTES, (_SHORTS,), "", "vdup.16 ${0:e}, ${1:f}[0]; vdup.16 ${0:f}, ${1:f}[1]"),
    "spread_3": _Function(_BYTES, (_SHORTS,), "", "vdup.16 ${0:e}, ${1:f}[2]; vdup.16 ${0:f}, ${1:f}[3]"),
}


def with_definitions(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Return a kernel together with the functions that this module calls."""
    if not machine.adds_pairs:
        return function
    texts = {name: item.arm64 if machine.dot == "smull" else item.arm32 for name, item in _FUNCTIONS.items()}
    text = "".join(item.define(f"{_NAME}_{name}", texts[name]) for name, item in _FUNCTIONS.items() if texts[name])
    return emit.with_llvm(function, text)


def _call(dtype: str, name: str, *operands: Expr) -> Expr:
    return T.Bind(tirx.call_pure_extern(dtype, f"{_NAME}_{name}", *operands))


def load(buffer: Buffer, offset: Expr, pixels: int) -> Expr:
    """Return four channels of one, two or four neighbouring pixels as int16x8, each two of the channels."""
    bytes_ = buffer[emit.ramp(offset, pixels * GROUP)]
    if pixels == GROUP:
        return T.Bind(tirx.reinterpret("int16x8", bytes_))
    scalar = f"int{8 * GROUP * pixels}"
    return T.Bind(tirx.reinterpret("int16x8", emit.splat(tirx.reinterpret(scalar, bytes_), GROUP // pixels)))


def _together(machine: Machine) -> int:
    """Return of how many blocks the instructions alternate, so that none waits for the one before it."""
    return 4 if machine.registers > 16 else 2  # noqa: PLR2004


def registers(machine: Machine) -> int:
    """Return how many registers `add` takes beside the sums and the weights: products, and channels of pixels."""
    return _together(machine) + 3


def cost(machine: Machine, pixels: int, loads: int, blocks: int, *, unpaired: bool) -> float:
    """Return what `add` costs, as `kernels.Candidate` defines it, with the loads that it needs.

    Args:
        machine: The processor.
        pixels: Pixels of a tile.
        loads: Loads of neighbouring pixels.
        blocks: Blocks of weights.
        unpaired: As `add` has it.
    """
    products = pixels * blocks * (4 if unpaired else 3)
    rest = 2 * pixels + 2 * loads + 1.3 * blocks if machine.dot == "vmull" else 1.5 * pixels + loads + 0.5 * blocks
    return _PER_INSTRUCTION * (products + rest + _LOOP)


def _spread(machine: Machine, loaded: Sequence[tuple[Expr, int]]) -> Iterator[Expr]:
    """Yield int8x16 for each pixel: its first two channels four times, then the other two."""
    for vector, pixels in loaded:
        if machine.dot == "vmull":
            yield from (_call("int8x16", f"spread_{number}", vector) for number in range(pixels))
            continue
        for first in range(0, pixels, 2):
            doubled = _call("int16x8", f"double_{first // 2}", vector)  # each two channels twice, of two pixels
            yield from (_call("int8x16", f"spread_{number}", doubled) for number in range(min(pixels - first, 2)))


def add(
    machine: Machine,
    sums: emit.Registers,
    loaded: Sequence[tuple[Expr, int]],
    weights: Sequence[Expr],
    *,
    unpaired: bool,
) -> None:
    """Add the products of four channels to sums.

    Args:
        machine: The processor.
        sums: For each of the weights, a sum for each pixel.
        loaded: What `load` returned, and how many pixels each is.
        weights: For each block of output channels int8x16: those of the first two channels for each output channel,
            then those of the other two.
        unpaired: Whether a product of the first two channels and one of the others may not fit int16 together.
    """
    count, together = sum(pixels for _, pixels in loaded), _together(machine)
    spread, queue = _spread(machine, loaded), _Queue(sums)
    following = next(spread)
    for number in range(count):
        pixel, following = following, None
        for first in range(0, len(weights), together):
            some = weights[first : first + together]
            indices = [block * count + number for block in range(first, first + len(some))]
            products = queue.multiply("multiply", pixel, some)
            if first == 0:
                following = next(spread, None)
            if unpaired:
                queue.add(indices, products)
                products = queue.multiply("multiply_high", pixel, some)
            else:
                factors = zip(products, some, strict=True)
                products = [_call("int16x8", "add_high", product, pixel, weight) for product, weight in factors]
            queue.add(indices, products)
    queue.finish()


class _Queue:
    """Adds products to sums while the next ones are multiplied, for processors that execute in order."""

    def __init__(self, sums: emit.Registers) -> None:
        self._sums = sums
        self._waiting: list[tuple[int, Expr]] = []

    def multiply(self, name: str, pixel: Expr, weights: Sequence[Expr]) -> list[Expr]:
        """Return products for some blocks; after each addition its register is free for one of them."""
        products = []
        for weight in weights:
            self._add_first()
            products.append(_call("int16x8", name, pixel, weight))
        self.finish()
        return products

    def add(self, indices: Sequence[int], products: Sequence[Expr]) -> None:
        """Let products wait, each for the sum with an index."""
        self._waiting += zip(indices, products, strict=True)

    def finish(self) -> None:
        """Add all that wait."""
        while self._waiting:
            self._add_first()

    def _add_first(self) -> None:
        for index, product in self._waiting[:1]:
            self._sums[index] = _call("int32x4", "add_neighbours", self._sums[index], product)
        del self._waiting[:1]


def dot(machine: Machine, sums: Expr, data: Expr, weights: Expr) -> Expr:
    """Return sums + products of four neighbouring bytes for each 32-bit lane; no two products are added as int16."""
    zero = T.Bind(emit.splat(0, machine.lanes, "int32"))
    products = [_call("int16x8", name, data, weights) for name in ("multiply", "multiply_high")]
    pairs = [_call("int32x4", "add_neighbours", zero, product) for product in products]
    even, odd = (tirx.Shuffle(pairs, list(range(first, 2 * machine.lanes, 2))) for first in (0, 1))
    return sums + even + odd
