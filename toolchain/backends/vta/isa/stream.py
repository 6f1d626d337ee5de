"""A recorded kernel: instructions, micro-ops, the buffers in DRAM they need, and how it is written as bytes.

The bytes are sent to a board and kept in a package; `runtime/vta/stream.h` reads them there.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from dataclasses import dataclass

from toolchain.backends.vta.isa import Isa, Revision
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.isa.instructions import Instruction, Memory, Uop
from toolchain.errors import InputError

MAGIC = b"VTASTRM\x01"
UOPS = 0xFFFFFFFF
"""The number of a relocation that names the micro-ops of the stream instead of a buffer."""

_HEAD = struct.Struct("<8sI9B3x4I")
_CHECK = struct.Struct("<I")
_ZERO = bytes(4)
_BUFFER = struct.Struct("<BBHI")
_RELOCATION = struct.Struct("<II")
_INSTRUCTION_BYTES = 16
_UOP_BYTES = 4
_BODY = _HEAD.size + _CHECK.size + len(_ZERO)


@dataclass(frozen=True)
class Buffer:
    """A tensor in DRAM, an argument of the kernel.

    Attributes:
        memory: The SRAM whose elements it consists of.
        written: Whether the kernel writes it; it reads the others.
        elements: Its size in elements of that SRAM.
    """

    memory: Memory
    written: bool
    elements: int


@dataclass(frozen=True)
class Stream:
    """A kernel as the machine runs it.

    Attributes:
        config: The machine that it is for.
        revision: The revision of its instructions.
        buffers: Its arguments in their order.
        instructions: The program; the last one is the only FINISH. `dram_base` counts from the start of a buffer.
        uops: The micro-ops that its LOADs of UOP fetch.
        relocations: Index of an instruction and of the buffer that it reads or writes, or UOPS, ascending.
    """

    config: VtaConfig
    revision: Revision
    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    uops: tuple[Uop, ...]
    relocations: tuple[tuple[int, int], ...]

    def encoded(self) -> bytes:
        """Return the stream as bytes.

        Raises:
            BuildError: A value does not fit its field.
        """
        isa = Isa(self.config, self.revision)
        body = b"".join(
            [
                *(_BUFFER.pack(one.memory, one.written, 0, one.elements) for one in self.buffers),
                isa.encode_all(self.instructions),
                *(isa.encode_uop(uop) for uop in self.uops),
                *(_RELOCATION.pack(*one) for one in self.relocations),
            ]
        )
        counts = (len(self.buffers), len(self.instructions), len(self.uops), len(self.relocations))
        head = _HEAD.pack(MAGIC, self.revision.value, *dataclasses.astuple(self.config), *counts)
        return head + _CHECK.pack(zlib.crc32(_ZERO + body)) + _ZERO + body

    @classmethod
    def decode(cls, data: bytes) -> Stream:
        """Read the bytes that `encoded` made.

        Raises:
            InputError: They are damaged, or made for another program; the message says where.
        """
        config, revision, counts = _decode_head(data)
        sections = _split_sections(data, counts)
        isa = Isa(config, revision)
        return cls(
            config,
            revision,
            tuple(_decode_buffer(fields, index) for index, fields in enumerate(_BUFFER.iter_unpack(sections[0]))),
            tuple(isa.decode_all(sections[1])),
            tuple(
                isa.decode_uop(sections[2][start : start + _UOP_BYTES])
                for start in range(0, len(sections[2]), _UOP_BYTES)
            ),
            tuple((instruction, buffer) for instruction, buffer in _RELOCATION.iter_unpack(sections[3])),
        )


def _decode_head(data: bytes) -> tuple[VtaConfig, Revision, tuple[int, ...]]:
    if len(data) < _BODY:
        raise _error(f"it ends after {len(data)} bytes, within its header of {_BODY}")
    magic, revision, *fields = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise _error(f"it starts with {magic!r}, not with {MAGIC!r}")
    if any(data[21:24]) or data[44:48] != _ZERO:
        raise _error("the unused bytes 21 to 23 and 44 to 47 are not all zero")
    try:
        known_revision = Revision(revision)
    except ValueError as fault:
        raise _error(f"byte 8: there is no revision {revision} of the instructions") from fault
    return VtaConfig(*fields[:9]), known_revision, tuple(fields[9:])


def _split_sections(data: bytes, counts: tuple[int, ...]) -> list[bytes]:
    sizes = (_BUFFER.size, _INSTRUCTION_BYTES, _UOP_BYTES, _RELOCATION.size)
    lengths = [count * size for count, size in zip(counts, sizes, strict=True)]
    # Lengths are checked before the checksum, so the message names the likely cause.
    if len(data) != _BODY + sum(lengths):
        raise _error(f"it has {len(data)} bytes, but its header counts {_BODY + sum(lengths)}")
    (checksum,) = _CHECK.unpack_from(data, _HEAD.size)
    if zlib.crc32(data[_HEAD.size + _CHECK.size :]) != checksum:
        raise _error("its checksum is wrong")
    starts = [_BODY + sum(lengths[:index]) for index in range(len(lengths))]
    return [data[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def _decode_buffer(fields: tuple[int, int, int, int], index: int) -> Buffer:
    memory, written, unused, elements = fields
    if memory not in set(Memory) or written > 1 or unused:
        raise _error(f"buffer {index} is of memory {memory}, direction {written}")
    return Buffer(Memory(memory), bool(written), elements)


def _error(cause: str) -> InputError:
    return InputError("this is not a stream of VTA instructions", details=cause, hint="build the kernel again")
