"""Listings of VTA programs: each instruction with its queue, its buffer and its micro-ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from toolchain.backends.vta.isa.instructions import Alu, Finish, Gemm, Instruction, Load, Memory, Store, Uop
from toolchain.backends.vta.isa.stream import UOPS, Buffer, Stream

LOAD, COMPUTE, STORE = "load", "compute", "store"

# The FIFO of each token flag, where a queue has it: of the stages load, g (which computes) and store.
_POPS = {
    LOAD: {"pop_next": "g2l"},
    COMPUTE: {"pop_prev": "l2g", "pop_next": "s2g"},
    STORE: {"pop_prev": "g2s"},
}
_PUSHES = {
    LOAD: {"push_next": "l2g"},
    COMPUTE: {"push_prev": "g2l", "push_next": "g2s"},
    STORE: {"push_prev": "s2g"},
}


@dataclass(frozen=True)
class Line:
    """One instruction of a listing.

    Attributes:
        index: Its index in the program, from 0.
        instruction: The instruction.
        queue: The queue that it goes through.
        pops: FIFOs that it takes a token of; the name of a flag stands for a FIFO that its queue does not have.
        pushes: FIFOs that it gives a token to, alike.
        buffer: Its buffer in DRAM, such as `buffer 0 (INP)`; empty without a relocation.
        uops: The micro-ops that it runs, by their index in SRAM; None for an index that nothing has loaded.
    """

    index: int
    instruction: Instruction
    queue: str
    pops: tuple[str, ...]
    pushes: tuple[str, ...]
    buffer: str
    uops: Mapping[int, Uop | None]


def lines(stream: Stream, *, with_uops: bool = False) -> Iterator[Line]:
    """Describe the instructions of a stream in their order.

    Args:
        stream: The program.
        with_uops: Whether to say which micro-ops each of them runs.
    """
    relocations = dict(stream.relocations)
    sram: dict[int, Uop] = {}
    for index, instruction in enumerate(stream.instructions):
        number = relocations.get(index)
        if isinstance(instruction, Load) and number == UOPS:
            # From here on, instructions run these micro-ops in place of earlier ones.
            first = instruction.dram_base
            sram.update(enumerate(stream.uops[first : first + instruction.x_size], instruction.sram_base))
        runs = range(0)
        if with_uops and isinstance(instruction, Gemm | Alu):
            runs = range(instruction.uop_bgn, instruction.uop_end)
        buffer = "" if number is None else _buffer_name(number, stream.buffers)
        where = queue(instruction)
        pops, pushes = _fifos(instruction, _POPS[where], "pop"), _fifos(instruction, _PUSHES[where], "push")
        yield Line(index, instruction, where, pops, pushes, buffer, {slot: sram.get(slot) for slot in runs})


def listing(stream: Stream, *, with_uops: bool = False) -> str:
    """Return a stream in words: its buffers, then a line for each instruction, with its micro-ops if wanted."""
    counts = f"{len(stream.instructions)} instructions, {len(stream.uops)} micro-ops"
    head = [f"{stream.config.name}, revision {stream.revision.date}: {counts}"]
    for number, buffer in enumerate(stream.buffers):
        direction = "written" if buffer.written else "read"
        head.append(f"{_buffer_name(number, stream.buffers)}: {buffer.elements} elements, {direction}")
    body = [row for line in lines(stream, with_uops=with_uops) for row in _line_rows(line)]
    return "\n".join([*head, "", *body])


def document(stream: Stream, *, with_uops: bool = False) -> dict[str, Any]:
    """Return what `listing` says, for JSON."""
    return {
        "config": stream.config.name,
        "revision": stream.revision.date,
        "buffers": [dataclasses.asdict(buffer) | {"memory": buffer.memory.name} for buffer in stream.buffers],
        "uops": len(stream.uops),
        "instructions": [_line_document(line) for line in lines(stream, with_uops=with_uops)],
    }


def queue(instruction: Instruction) -> str:
    """Name the queue that an instruction goes through: LOAD, COMPUTE or STORE."""
    if isinstance(instruction, Store):
        return STORE
    loads = isinstance(instruction, Load) and instruction.memory in {Memory.INP, Memory.WGT}
    return LOAD if loads else COMPUTE


def name(instruction: Instruction) -> str:
    """Name an instruction: its opcode, with the SRAM of a LOAD or STORE and the operation of an ALU instruction."""
    opcode = type(instruction).__name__.upper()
    if isinstance(instruction, Load | Store):
        return f"{opcode} {instruction.memory.name}"
    return f"{opcode} {instruction.op.name}" if isinstance(instruction, Alu) else opcode


def operands(instruction: Instruction, buffer: str = "") -> str:
    """Return what an instruction works on, in words.

    Args:
        buffer: The buffer that the `dram_base` of a LOAD or STORE counts from; empty for all of DRAM.
    """
    if isinstance(instruction, Load | Store):
        return _transfer(instruction, buffer or "DRAM")
    return "" if isinstance(instruction, Finish) else _steps(instruction)


def _transfer(move: Load | Store, buffer: str) -> str:
    if not move.x_size or not move.y_size:
        return "nothing"
    direction = "from" if isinstance(move, Load) else "to"
    text = f"sram={move.sram_base} {direction} {buffer} at {move.dram_base}, {move.y_size} x {move.x_size}"
    if move.y_size > 1:
        text += f", stride={move.x_stride}"
    sides = ("top", "bottom", "left", "right")
    pads = (move.y_pad_0, move.y_pad_1, move.x_pad_0, move.x_pad_1) if isinstance(move, Load) else ()
    zeros = [f"{side}={pad}" for side, pad in zip(sides, pads, strict=False) if pad]
    return f"{text}, zeros {' '.join(zeros)}" if zeros else text


def _steps(op: Gemm | Alu) -> str:
    factors = {"acc": (op.dst_factor_out, op.dst_factor_in)}
    if isinstance(op, Gemm):
        factors |= {
            "inp": (op.src_factor_out, op.src_factor_in),
            "wgt": (op.wgt_factor_out, op.wgt_factor_in),
        }
        last = ", reset" if op.reset else ""
    elif op.use_imm:
        last = f", imm={op.imm}"
    else:
        factors["operand"] = (op.src_factor_out, op.src_factor_in)
        last = ""
    steps = " ".join(f"{memory}=+{outer},+{inner}" for memory, (outer, inner) in factors.items())
    return f"uops={op.uop_bgn}:{op.uop_end}, loops={op.iter_out} x {op.iter_in}, {steps}{last}"


def _fifos(instruction: Instruction, fifos: Mapping[str, str], verb: str) -> tuple[str, ...]:
    flags = (f"{verb}_prev", f"{verb}_next")
    return tuple(fifos.get(flag, flag) for flag in flags if getattr(instruction.tokens, flag))


def _buffer_name(number: int, buffers: Sequence[Buffer]) -> str:
    if number == UOPS:
        return "the micro-ops"
    memory = buffers[number].memory.name if number < len(buffers) else "missing"
    return f"buffer {number} ({memory})"


def _line_rows(line: Line) -> Iterator[str]:
    tokens = " ".join([*(f"<{fifo}" for fifo in line.pops), *(f">{fifo}" for fifo in line.pushes)])
    text = operands(line.instruction, line.buffer)
    yield f"{line.index:6}  {line.queue:<7}  {tokens:<15}  {name(line.instruction):<9}  {text}".rstrip()
    src = "inp" if isinstance(line.instruction, Gemm) else "operand"
    for slot, uop in line.uops.items():
        yield f"{'uop':>12} {slot}: " + (f"acc={uop.dst} {src}={uop.src} wgt={uop.wgt}" if uop else "not loaded")


def _line_document(line: Line) -> dict[str, Any]:
    fields = dataclasses.asdict(line.instruction)
    del fields["tokens"]
    table = {
        "index": line.index,
        "queue": line.queue,
        "pops": line.pops,
        "pushes": line.pushes,
        "opcode": type(line.instruction).__name__.upper(),
        "buffer": line.buffer or None,
    }
    table |= {key: value.name if isinstance(value, IntEnum) else value for key, value in fields.items()}
    if line.uops:
        table["uops"] = [{"index": slot, "uop": uop and dataclasses.asdict(uop)} for slot, uop in line.uops.items()]
    return table
