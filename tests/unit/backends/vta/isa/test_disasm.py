from __future__ import annotations

import dataclasses

import pytest

from toolchain.backends.vta.isa import Revision, disasm
from toolchain.backends.vta.isa.config import DEFAULT
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

BUFFERS = (Buffer(Memory.INP, written=False, elements=64), Buffer(Memory.OUT, written=True, elements=32))
PROGRAM: tuple[Instruction, ...] = (
    Load(Memory.UOP, 4, 1, 1, 2, 2),
    Load(Memory.INP, 0, 16, 3, 4, 8, 1, 2, 0, 3, tokens=Tokens(push_next=True)),
    Load(Memory.WGT, 0, 0, 1, 0, 0, tokens=Tokens(pop_next=True)),
    Gemm(4, 5, 14, 2, 8, 1, 2, 3, 0, 9, reset=True, tokens=Tokens(pop_prev=True, push_prev=True)),
    Alu(AluOp.SHR, 4, 7, 1, 8, 0, 1, 5, 6, use_imm=True, imm=-3),
    Alu(AluOp.ADD, 5, 6, 1, 8, 0, 1, 5, 6, tokens=Tokens(pop_next=True, push_next=True)),
    Store(Memory.OUT, 7, 3, 2, 4, 16, tokens=Tokens(pop_prev=True, push_prev=True)),
    Finish(),
)
STREAM = Stream(
    *(DEFAULT, Revision.V2020_12, BUFFERS, PROGRAM),
    uops=(Uop(0, 0), Uop(1, 2, 3), Uop(4, 5, 6)),
    relocations=((0, UOPS), (1, 0), (6, 1)),
)
LISTING = """\
1x16_i8w8a32_15_15_18_17, revision 2020-12: 8 instructions, 3 micro-ops
buffer 0 (INP): 64 elements, read
buffer 1 (OUT): 32 elements, written

     0  compute                   LOAD UOP   sram=4 from the micro-ops at 1, 1 x 2
     1  load     >l2g             LOAD INP   sram=0 from buffer 0 (INP) at 16, 3 x 4, stride=8, zeros top=1 bottom=2 right=3
     2  load     <g2l             LOAD WGT   nothing
     3  compute  <l2g >g2l        GEMM       uops=4:5, loops=14 x 2, acc=+8,+1 inp=+2,+3 wgt=+0,+9, reset
     4  compute                   ALU SHR    uops=4:7, loops=1 x 8, acc=+0,+1, imm=-3
     5  compute  <s2g >g2s        ALU ADD    uops=5:6, loops=1 x 8, acc=+0,+1 operand=+5,+6
     6  store    <g2s >s2g        STORE OUT  sram=7 to buffer 1 (OUT) at 3, 2 x 4, stride=16
     7  compute                   FINISH"""  # noqa: E501 - a line of the listing


def of(*instructions: Instruction, **values) -> Stream:
    empty = dataclasses.replace(STREAM, buffers=(), uops=(), relocations=())
    return dataclasses.replace(empty, instructions=instructions, **values)


def test_a_listing():
    assert disasm.listing(STREAM) == LISTING


def test_a_listing_with_micro_ops():
    rows = disasm.listing(STREAM, with_uops=True).splitlines()
    added = [row for row in rows if row not in LISTING.splitlines()]
    assert added == [
        "         uop 4: acc=1 inp=2 wgt=3",
        "         uop 4: acc=1 operand=2 wgt=3",
        "         uop 5: acc=4 operand=5 wgt=6",
        "         uop 6: not loaded",
        "         uop 5: acc=4 operand=5 wgt=6",
    ]
    assert rows[rows.index(added[0]) - 1].startswith("     3  compute")


def test_a_document():
    document = disasm.document(STREAM)
    assert (document["config"], document["revision"], document["uops"]) == (DEFAULT.name, "2020-12", 3)
    assert document["buffers"][1] == {"memory": "OUT", "written": True, "elements": 32}
    opcodes = ["LOAD", "LOAD", "LOAD", "GEMM", "ALU", "ALU", "STORE", "FINISH"]
    assert [instruction["opcode"] for instruction in document["instructions"]] == opcodes
    assert document["instructions"][6] == {
        "index": 6,
        "queue": "store",
        "pops": ("g2s",),
        "pushes": ("s2g",),
        "opcode": "STORE",
        "buffer": "buffer 1 (OUT)",
        "memory": "OUT",
        "sram_base": 7,
        "dram_base": 3,
        "y_size": 2,
        "x_size": 4,
        "x_stride": 16,
    }
    assert document["instructions"][4]["op"] == "SHR"
    assert not any("uops" in instruction for instruction in document["instructions"])


def test_a_document_with_micro_ops():
    instructions = disasm.document(STREAM, with_uops=True)["instructions"]
    assert instructions[3]["uops"] == [{"index": 4, "uop": {"dst": 1, "src": 2, "wgt": 3}}]
    assert instructions[4]["uops"][2] == {"index": 6, "uop": None}


def test_micro_ops_are_those_of_the_moment():
    steps = Gemm(0, 1, 1, 1, 0, 0, 0, 0, 0, 0)
    first, second = (Load(Memory.UOP, 0, base, 1, 1, 1) for base in (0, 1))
    stream = of(first, steps, second, steps, uops=(Uop(1, 1), Uop(2, 2)), relocations=((0, UOPS), (2, UOPS)))
    assert [dict(line.uops) for line in disasm.lines(stream, with_uops=True)] == [
        {},
        {0: Uop(1, 1)},
        {},
        {0: Uop(2, 2)},
    ]


def test_what_no_relocation_names_is_an_address():
    row = disasm.listing(of(Load(Memory.ACC, 1, 99, 1, 2, 2))).splitlines()[-1]
    assert row.endswith("LOAD ACC   sram=1 from DRAM at 99, 1 x 2")


def test_a_buffer_that_is_missing():
    row = disasm.listing(of(Load(Memory.ACC, 1, 99, 1, 2, 2), relocations=((0, 7),))).splitlines()[-1]
    assert "from buffer 7 (missing) at 99" in row


@pytest.mark.parametrize(
    ("instruction", "queue", "pops", "pushes"),
    [
        (Load(Memory.INP, 0, 0, 1, 1, 1), "load", ("pop_prev", "g2l"), ("push_prev", "l2g")),
        (Load(Memory.WGT, 0, 0, 1, 1, 1), "load", ("pop_prev", "g2l"), ("push_prev", "l2g")),
        (Load(Memory.UOP, 0, 0, 1, 1, 1), "compute", ("l2g", "s2g"), ("g2l", "g2s")),
        (Load(Memory.ACC, 0, 0, 1, 1, 1), "compute", ("l2g", "s2g"), ("g2l", "g2s")),
        (Finish(), "compute", ("l2g", "s2g"), ("g2l", "g2s")),
        (Store(Memory.OUT, 0, 0, 1, 1, 1), "store", ("g2s", "pop_next"), ("s2g", "push_next")),
    ],
)
def test_queues_and_their_fifos(instruction, queue, pops, pushes):
    """A flag without a FIFO is shown by its own name: such a program is wrong."""
    every = dataclasses.replace(instruction, tokens=Tokens(*4 * [True]))
    (line,) = disasm.lines(of(every))
    assert (line.queue, line.pops, line.pushes) == (queue, pops, pushes)
    (line,) = disasm.lines(of(instruction))
    assert (line.pops, line.pushes) == ((), ())
