"""The instructions of VTA and its micro-ops as values; `isa` has their bits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Opcode(IntEnum):
    """What an instruction does."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class Memory(IntEnum):
    """The SRAM that a LOAD fills or a STORE empties."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4


class AluOp(IntEnum):
    """What an ALU instruction computes; SHR by a negative amount shifts left."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens by which an instruction waits for others, and lets others go on.

    The stages stand in the order load, compute, store: `prev` and `next` are the neighbours of the instruction's own.

    Attributes:
        pop_prev: It takes a token of the stage before its own first.
        pop_next: It takes a token of the stage behind its own first.
        push_prev: It gives the stage before its own a token at its end.
        push_next: It gives the stage behind its own a token at its end.
    """

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False


NO_TOKENS = Tokens()


@dataclass(frozen=True, slots=True)
class Load:
    """Copy rows of elements from DRAM to consecutive SRAM, with zeros around them.

    Attributes:
        memory: The SRAM.
        sram_base: First element there.
        dram_base: First element in DRAM: bytes divided by those of an element.
        y_size: Rows in DRAM.
        x_size: Elements of a row in DRAM.
        x_stride: Elements from one row in DRAM to the next.
        y_pad_0: Rows of zeros above.
        y_pad_1: Rows of zeros below.
        x_pad_0: Zeros before each row.
        x_pad_1: Zeros behind each row.
        tokens: Its tokens.
    """

    memory: Memory
    sram_base: int
    dram_base: int
    y_size: int
    x_size: int
    x_stride: int
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Store:
    """Copy consecutive elements of SRAM to rows in DRAM.

    Attributes:
        memory: The SRAM.
        sram_base: First element there.
        dram_base: First element in DRAM: bytes divided by those of an element.
        y_size: Rows.
        x_size: Elements of a row.
        x_stride: Elements from one row in DRAM to the next.
        tokens: Its tokens.
    """

    memory: Memory
    sram_base: int
    dram_base: int
    y_size: int
    x_size: int
    x_stride: int
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Gemm:
    """Multiply tiles and add up: two loops around a range of micro-ops.

    Attributes:
        uop_bgn: First micro-op.
        uop_end: The one behind the last.
        iter_out: Passes of the outer loop.
        iter_in: Passes of the inner loop.
        dst_factor_out: Elements of ACC from one outer pass to the next; the other factors alike.
        dst_factor_in: Elements of ACC, inner loop.
        src_factor_out: Elements of INP, outer loop.
        src_factor_in: Elements of INP, inner loop.
        wgt_factor_out: Elements of WGT, outer loop.
        wgt_factor_in: Elements of WGT, inner loop.
        reset: Whether it writes zeros instead.
        tokens: Its tokens.
    """

    uop_bgn: int
    uop_end: int
    iter_out: int
    iter_in: int
    dst_factor_out: int
    dst_factor_in: int
    src_factor_out: int
    src_factor_in: int
    wgt_factor_out: int
    wgt_factor_in: int
    reset: bool = False
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Alu:
    """Combine elements of ACC with others, or with a number: two loops around a range of micro-ops.

    Attributes:
        op: The operation.
        uop_bgn: First micro-op.
        uop_end: The one behind the last.
        iter_out: Passes of the outer loop.
        iter_in: Passes of the inner loop.
        dst_factor_out: Elements of ACC, the result, from one outer pass to the next; the other factors alike.
        dst_factor_in: Elements of ACC, the result, inner loop.
        src_factor_out: Elements of ACC, the operand, outer loop.
        src_factor_in: Elements of ACC, the operand, inner loop.
        use_imm: Whether the operand is `imm`.
        imm: The number, -32768 to 32767.
        tokens: Its tokens.
    """

    op: AluOp
    uop_bgn: int
    uop_end: int
    iter_out: int
    iter_in: int
    dst_factor_out: int
    dst_factor_in: int
    src_factor_out: int
    src_factor_in: int
    use_imm: bool = False
    imm: int = 0
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Finish:
    """End the program.

    Attributes:
        tokens: Its tokens.
    """

    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Uop:
    """The elements of one step of a GEMM or ALU instruction, before its loops add to them.

    Attributes:
        dst: Element of ACC that is written.
        src: Element of INP (GEMM) or of ACC (ALU).
        wgt: Element of WGT; not used by ALU.
    """

    dst: int
    src: int
    wgt: int = 0


Instruction = Load | Store | Gemm | Alu | Finish
