"""The position of each value in an instruction, for machines of any size and both revisions of the encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from toolchain.backends.vta.isa.config import DEFAULT, UOP_BYTES, VtaConfig
from toolchain.backends.vta.isa.instructions import AluOp, Memory, Opcode
from toolchain.errors import InputError

_WORD = 64  # bits; no field of an instruction crosses its middle
_LOADED = (Memory.UOP, Memory.WGT, Memory.INP, Memory.ACC)


class Field(NamedTuple):
    """The position of a value in an instruction.

    Attributes:
        name: The value's name.
        low: Its lowest bit.
        width: Its bits.
        kind: The type of the value: int, bool or one of the enumerations.
        signed: Whether it is a two's complement.
        members: The value of each code, where these are not numbers.
    """

    name: str
    low: int
    width: int
    kind: type[int] = int
    signed: bool = False
    members: tuple[IntEnum, ...] = ()

    @property
    def mask(self) -> int:
        """As many ones as it has bits."""
        return (1 << self.width) - 1

    @property
    def minimum(self) -> int:
        return -(1 << self.width - 1) if self.signed else 0

    @property
    def maximum(self) -> int:
        return self.minimum + self.mask

    @property
    def allowed(self) -> str:
        if self.members:
            return ", ".join(member.name for member in sorted(self.members))
        return f"{self.minimum} to {self.maximum}"

    def codes(self) -> dict[int, int]:
        """Return the code of each member; empty where values are their own codes."""
        return {int(member): code for code, member in enumerate(self.members)}

    def takes(self, value: int) -> bool:
        return value in self.members if self.members else self.minimum <= value <= self.maximum

    def read(self, word: int) -> Any:
        """Take the value out of an instruction.

        Raises:
            ValueError: Its code is unknown.
        """
        code = word >> self.low & self.mask
        if self.members:
            if code >= len(self.members):
                raise ValueError(f"{self.name} {code} is unknown")
            return self.members[code]
        negative = self.signed and code > self.maximum
        return self.kind(code - (1 << self.width) if negative else code)


_TOKEN_NAMES = ("pop_prev", "pop_next", "push_prev", "push_next")
OPCODE = Field("opcode", 0, 3, Opcode, members=tuple(Opcode))
TOKENS = tuple(Field(name, OPCODE.width + bit, 1, bool) for bit, name in enumerate(_TOKEN_NAMES))
_FIRST = OPCODE.width + len(TOKENS)  # the first bit of what an opcode has of its own


def of_opcodes(config: VtaConfig, *, old: bool) -> dict[Opcode, list[Field]]:
    """Return the fields that each opcode has beside itself and the tokens, the lowest bits first.

    Args:
        config: The machine's sizes.
        old: Whether memories and ALU operations have 2 bits, and ALU operands are counted as INP elements are.

    Raises:
        InputError: They need more bits than there are.
    """
    kind_bits = 2 if old else 3
    # Two bits have no room for OUT, which is the only memory that is ever stored.
    stored = (Memory.OUT, *_LOADED[1:]) if old else tuple(Memory)
    pads = [Field(name, 0, 4) for name in ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")]
    products = _factors(config, {"dst": Memory.ACC, "src": Memory.INP, "wgt": Memory.WGT})
    operands = _factors(config, {"dst": Memory.ACC, "src": Memory.INP if old else Memory.ACC})
    operations = (AluOp.MIN, AluOp.MAX, AluOp.ADD, AluOp.SHR) if old else tuple(AluOp)
    op = Field("op", 0, kind_bits, AluOp, members=operations)
    alu = [op, Field("use_imm", 0, 1, bool), Field("imm", 0, 16, signed=True)]
    return {
        Opcode.LOAD: _transfer(Field("memory", 0, kind_bits, Memory, members=_LOADED), pads),
        Opcode.STORE: _transfer(Field("memory", 0, kind_bits, Memory, members=stored), []),
        Opcode.GEMM: _two_words("GEMM", _loops(config, Field("reset", 0, 1, bool)), products),
        Opcode.FINISH: [],
        Opcode.ALU: _two_words("ALU", _loops(config, Field("", 0, 1)), [*operands, *alu]),
    }


def of_uops(config: VtaConfig) -> list[Field]:
    """Return the fields of a micro-op.

    Raises:
        InputError: They need more bits than there are.
    """
    indices = {"dst": Memory.ACC, "src": Memory.INP, "wgt": Memory.WGT}
    widths = [Field(name, 0, config.log_depth(memory)) for name, memory in indices.items()]
    return _place("micro-ops", widths, 0, UOP_BYTES * 8)


def _transfer(memory: Field, pads: list[Field]) -> list[Field]:
    sizes = [Field(name, 0, 16) for name in ("y_size", "x_size", "x_stride")]
    return _two_words("LOAD and STORE", [memory, Field("sram_base", 0, 16), Field("dram_base", 0, 32)], [*sizes, *pads])


def _loops(config: VtaConfig, reset: Field) -> list[Field]:
    depth = config.log_depth(Memory.UOP)
    uops = [Field("uop_bgn", 0, depth), Field("uop_end", 0, depth + 1)]
    return [reset, *uops, Field("iter_out", 0, 14), Field("iter_in", 0, 14)]


def _factors(config: VtaConfig, memories: Mapping[str, Memory]) -> list[Field]:
    return [
        Field(f"{name}_factor_{loop}", 0, config.log_depth(memory))
        for name, memory in memories.items()
        for loop in ("out", "in")
    ]


def _two_words(title: str, first: list[Field], second: list[Field]) -> list[Field]:
    return [*_place(title, first, _FIRST, _WORD), *_place(title, second, _WORD, 2 * _WORD)]


def _place(title: str, fields: Iterable[Field], low: int, end: int) -> list[Field]:
    """Put fields one behind the other; those without a name are gaps."""
    positioned = []
    for field in fields:
        positioned.append(field._replace(low=low))
        low += field.width
    # Larger memories have wider addresses, which may not fit.
    if low > end:
        raise InputError(
            f"the fields of {title} need {low - end} bit(s) more than there are with such large memories",
            hint=f"make the SRAM smaller; the default configuration is {DEFAULT.name}",
        )
    return [field for field in positioned if field.name]
