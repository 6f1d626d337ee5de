"""A small VTA stream, and ways to spoil it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Store,
    Tokens,
    Uop,
)
from toolchain.backends.vta.isa.stream import UOPS, Buffer, Stream

PIXELS = 4
SHIFT = 4
LOAD_UOP, LOAD_INP, LOAD_WGT, LOAD_ACC, GEMM, ALU, STORE, WAIT, FINISH = range(9)
"""Places of its instructions."""

_NEST = {"dst_factor_out": 0, "src_factor_out": 0, "wgt_factor_out": 0, "wgt_factor_in": 0}


@dataclass
class Arrays:
    """Its arguments: x (4, 1, 16) int8, w (1, 16, 16) int8, bias (4, 1, 16) int32, y like x."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray
    y: np.ndarray = field(default_factory=lambda: np.full((PIXELS, 1, 16), 77, np.int8))

    def all(self) -> list[np.ndarray]:
        """Return them in the order of the stream's buffers."""
        return [self.x, self.w, self.bias, self.y]

    def expected(self) -> np.ndarray:
        """Return what y becomes."""
        sums = self.x.astype(np.int32) @ self.w[0].astype(np.int32).T + self.bias
        return (sums >> SHIFT).astype(np.int8)


def arrays(seed: int = 0) -> Arrays:
    """Return random arguments."""
    random = np.random.default_rng(seed)
    x = random.integers(-128, 128, (PIXELS, 1, 16), dtype=np.int8)
    w = random.integers(-128, 128, (1, 16, 16), dtype=np.int8)
    return Arrays(x, w, random.integers(-1000, 1000, (PIXELS, 1, 16), dtype=np.int32))


def stream(config: VtaConfig = DEFAULT, revision: Revision = Revision.V2020_12) -> Stream:
    """Return y = (x w^T + bias) >> 4, its low bytes, for four pixels of one block."""
    none = Tokens()
    instructions = (
        Load(Memory.UOP, 0, 0, 1, 1, 1),
        Load(Memory.INP, 0, 0, 1, PIXELS, PIXELS),
        Load(Memory.WGT, 0, 0, 1, 1, 1, tokens=Tokens(push_next=True)),
        Load(Memory.ACC, 0, 0, 1, PIXELS, PIXELS),
        Gemm(0, 1, 1, PIXELS, dst_factor_in=1, src_factor_in=1, **_NEST, tokens=Tokens(pop_prev=True)),
        Alu(AluOp.SHR, 0, 1, 1, PIXELS, 0, 1, 0, 0, use_imm=True, imm=SHIFT, tokens=Tokens(push_next=True)),
        Store(Memory.OUT, 0, 0, 1, PIXELS, PIXELS, Tokens(pop_prev=True, push_prev=True)),
        Load(Memory.UOP, 0, 0, 0, 0, 0, tokens=Tokens(pop_next=True)),
        Finish(none),
    )
    buffers = (
        Buffer(Memory.INP, written=False, elements=PIXELS),
        Buffer(Memory.WGT, written=False, elements=1),
        Buffer(Memory.ACC, written=False, elements=PIXELS),
        Buffer(Memory.OUT, written=True, elements=PIXELS),
    )
    relocations = ((LOAD_UOP, UOPS), (LOAD_INP, 0), (LOAD_WGT, 1), (LOAD_ACC, 2), (STORE, 3))
    return Stream(config, revision, buffers, instructions, (Uop(0, 0, 0),), relocations)


def edited(changes: Mapping[int, Mapping[str, Any]], of: Stream | None = None) -> Stream:
    """Return the stream with other values in some instructions."""
    base = of or stream()
    instructions = [
        replace(instruction, **changes.get(number, {})) for number, instruction in enumerate(base.instructions)
    ]
    return replace(base, instructions=tuple(instructions))


def changed(number: int, **fields: Any) -> Stream:
    """Return the stream with other values in one instruction."""
    return edited({number: fields})


def inserted(position: int, *added: Instruction) -> Stream:
    """Return the stream with more instructions, which access no DRAM, before one of its own."""
    base = stream()
    instructions = (*base.instructions[:position], *added, *base.instructions[position:])
    moved = ((number + len(added) * (number >= position), buffer) for number, buffer in base.relocations)
    return replace(base, instructions=instructions, relocations=tuple(moved))


def mended(data: bytes | bytearray) -> bytes:
    """Return a stream's bytes with the checksum that they should have."""
    return bytes(data[:40]) + struct.pack("<I", zlib.crc32(bytes(data[44:]))) + bytes(data[44:])
