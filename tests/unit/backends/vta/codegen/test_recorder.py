from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.backends.vta.codegen.nests import UNIT, Loop
from toolchain.backends.vta.codegen.recorder import Recorder, Rows, Stage
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import AluOp, Finish, Gemm, Load, Memory, Store, Tokens, Uop
from toolchain.backends.vta.isa.stream import UOPS, Buffer, Stream
from toolchain.errors import BuildError

BUFFERS = (Buffer(Memory.INP, written=False, elements=99), Buffer(Memory.OUT, written=True, elements=99))
INP, WGT, OUT = 0, 0, 1
TINY = VtaConfig(log_uop_buff_size=5, log_inp_buff_size=8, log_wgt_buff_size=12, log_acc_buff_size=10)  # 8 and 16s


def recorder(config=DEFAULT) -> Recorder:
    return Recorder(config, Revision.V2020_12, BUFFERS)


def row(sram: int, size: int) -> Rows:
    return Rows(sram, 0, 1, size, size)


def flags(stream: Stream) -> list[str]:
    return [
        " ".join(field.name for field in fields(Tokens) if getattr(instruction.tokens, field.name))
        for instruction in stream.instructions
    ]


def once(writer: Recorder, dst: int = 0, src: int = 0, wgt: int = 0, **options) -> None:
    writer.gemm(writer.sequence([(dst, src, wgt)]), UNIT, UNIT, **options)


def test_an_operand_of_the_alu_lies_where_micro_ops_can_point():
    """Their field for it is as wide as the memory of inputs is deep, here 8 elements; that of sums has 16."""
    writer = recorder(VtaConfig(log_inp_buff_size=7, log_acc_buff_size=10))
    writer.alu(AluOp.ADD, writer.sequence([(15, 7, 0)]), UNIT, UNIT)
    with pytest.raises(BuildError, match="outside the range of a micro-op") as caught:
        writer.alu(AluOp.ADD, writer.sequence([(0, 8, 0)]), UNIT, UNIT)
    assert caught.value.details == "it is element 8 of ACC, but micro-ops can address 8 of INP"


def test_one_tile():
    writer = recorder()
    writer.load(Memory.INP, INP, row(0, 1))
    writer.load(Memory.WGT, WGT, row(0, 1))
    once(writer, reset=True)
    once(writer)
    writer.alu(AluOp.MAX, writer.sequence([(0, 0, 0)]), UNIT, UNIT, 0)
    writer.store(OUT, row(0, 1))
    stream = writer.finish()
    assert [type(instruction).__name__ for instruction in stream.instructions] == [
        "Load",
        "Load",
        "Load",
        "Gemm",
        "Gemm",
        "Alu",
        "Store",
        "Load",
        "Finish",
    ]
    assert flags(stream) == ["", "push_next", "", "", "pop_prev", "push_next", "pop_prev push_prev", "pop_next", ""]
    assert stream.relocations == ((0, INP), (1, WGT), (2, UOPS), (6, OUT))
    assert stream.uops == (Uop(0, 0, 0),)


def test_a_slot_is_loaded_again_only_after_its_use():
    writer = recorder()
    for tile in range(3):
        writer.load(Memory.INP, INP, row(tile % 2, 1))
        once(writer, src=tile % 2)
    stream = writer.finish()
    found = [text for instruction, text in zip(stream.instructions, flags(stream), strict=True) if not uop(instruction)]
    assert found == ["push_next", "pop_prev push_prev", "push_next", "pop_prev", "pop_next push_next", "pop_prev", ""]


def uop(instruction) -> bool:
    return isinstance(instruction, Load) and instruction.memory is Memory.UOP


def test_results_are_written_again_only_when_stored():
    writer = recorder()
    once(writer, reset=True)
    writer.store(OUT, row(0, 1))
    once(writer, reset=True)
    stream = writer.finish()
    assert flags(stream) == ["", "push_next", "pop_prev push_prev", "pop_next", "", ""]


def test_only_the_end_waits_for_what_nothing_reads():
    writer = recorder()
    writer.load(Memory.INP, INP, row(0, 2))
    once(writer, src=1, reset=True)
    writer.load(Memory.INP, INP, row(0, 2))
    writer.load(Memory.ACC, INP, row(0, 2))
    assert flags(writer.finish()) == ["", "", "", "push_next", "", "pop_prev", ""]


def test_finish_never_pops():
    writer = recorder()
    once(writer, reset=True)
    writer.store(OUT, row(0, 1))
    *_, wait, finish = writer.finish().instructions
    assert wait == Load(Memory.UOP, 0, 0, 0, 0, 0, tokens=Tokens(pop_next=True))
    assert finish == Finish()


def test_fields():
    writer = recorder()
    outer, inner = Loop(2, 3, 4, 5), Loop(6, 7, 8, 9)
    writer.gemm(writer.sequence([(1, 2, 3), (4, 5, 6)]), outer, inner)
    writer.alu(AluOp.ADD, writer.sequence([(1, 2, 0)]), outer, inner)
    writer.alu(AluOp.SHR, writer.sequence([(1, 2, 0)]), outer, inner, -4)
    writer.load(Memory.INP, INP, Rows(99, 2, 3, 4, 5, (6, 7), (8, 9)))
    _, gemm, _, add, shift, load, *_ = writer.finish().instructions
    assert gemm == Gemm(0, 2, 2, 6, 3, 7, 4, 8, 5, 9)
    assert (add.uop_bgn, add.uop_end, add.use_imm) == (2, 3, False)
    assert (shift.uop_bgn, shift.src_factor_out, shift.use_imm, shift.imm) == (2, 4, True, -4)
    assert load == Load(Memory.INP, 99, 2, 3, 4, 5, 6, 7, 8, 9, tokens=Tokens(push_next=True))


@pytest.mark.parametrize("memory", [Memory.INP, Memory.WGT, Memory.ACC])
def test_room(memory):
    writer = recorder()
    depth = DEFAULT.depth(memory)
    assert [writer.allocate(memory, size) for size in (3, depth - 3)] == [0, 3]
    with pytest.raises(BuildError, match=f"fit in {memory.name}") as caught:
        writer.allocate(memory, 1)
    assert caught.value.details == f"{depth + 1} elements are needed, but there are {depth}"


def test_micro_ops_are_loaded_once():
    writer = recorder()
    for _ in range(3):
        once(writer, 1)
        once(writer, 2)
    stream = writer.finish()
    assert [
        instruction.sram_base for instruction in stream.instructions if uop(instruction) and instruction.x_size
    ] == [0, 1]
    assert len(stream.uops) == 2


def test_micro_ops_are_loaded_again_when_there_was_no_room():
    writer = recorder(TINY)
    sequences = [writer.sequence([(base + n, 0, 0) for n in range(5)]) for base in (0, 5)]
    for sequence in (*sequences, sequences[0]):
        writer.gemm(sequence, UNIT, UNIT)
    stream = writer.finish()
    assert [
        (instruction.sram_base, instruction.dram_base)
        for instruction in stream.instructions
        if uop(instruction) and instruction.x_size
    ] == [
        (0, 0),
        (0, 5),
        (0, 0),
    ]
    assert len(stream.uops) == 10


def test_too_many_micro_ops():
    writer = recorder(TINY)
    with pytest.raises(BuildError, match="UOP") as caught:
        writer.gemm(writer.sequence([(0, n, 0) for n in range(9)]), UNIT, UNIT)
    assert caught.value.details == "9 micro-ops are needed, but there is room for 8"


# --- no order of the stages that the tokens allow breaks a program ------------------------------------------------

PLACE = st.integers(0, 12)
SIZE = st.integers(1, 3)
LOOP = st.builds(Loop, st.integers(1, 2), *3 * [st.integers(0, 1)])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.sampled_from([Memory.INP, Memory.WGT, Memory.ACC]), PLACE, SIZE),
        st.tuples(st.just("store"), PLACE, SIZE),
        st.tuples(st.just("gemm"), st.tuples(PLACE, PLACE, PLACE), LOOP, LOOP, st.booleans()),
        st.tuples(st.just("alu"), st.tuples(PLACE, PLACE, st.just(0)), LOOP, LOOP),
    ),
    max_size=30,
)


def recorded(operations) -> Stream:
    writer = recorder(TINY)
    for name, *values in operations:
        if name == "load":
            writer.load(values[0], INP, row(*values[1:]))
        elif name == "store":
            writer.store(OUT, row(*values))
        elif name == "gemm":
            writer.gemm(writer.sequence([values[0]]), *values[1:3], reset=values[3])
        else:
            writer.alu(AluOp.ADD, writer.sequence([values[0]]), *values[1:])
    return writer.finish()


def stage(instruction) -> Stage:
    if isinstance(instruction, Store):
        return Stage.STORE
    return (
        Stage.LOAD
        if isinstance(instruction, Load) and instruction.memory in {Memory.INP, Memory.WGT}
        else Stage.COMPUTE
    )


def touched(instruction, uops) -> tuple[set, set]:
    """Return what an instruction reads and writes of the memories that two stages share."""
    if isinstance(instruction, Load):
        size = instruction.y_size * instruction.x_size
        shared = instruction.memory in {Memory.INP, Memory.WGT}
        return set(), {(instruction.memory, instruction.sram_base + n) for n in range(size)} if shared else set()
    if isinstance(instruction, Store):
        return {(Memory.OUT, instruction.sram_base + n) for n in range(instruction.x_size)}, set()
    if isinstance(instruction, Finish):
        return set(), set()
    reads, writes = set(), set()
    for out, inside in itertools.product(range(instruction.iter_out), range(instruction.iter_in)):
        base = uops[instruction.uop_bgn]
        writes.add((Memory.OUT, base.dst + out * instruction.dst_factor_out + inside * instruction.dst_factor_in))
        if isinstance(instruction, Gemm) and not instruction.reset:
            reads.add((Memory.INP, base.src + out * instruction.src_factor_out + inside * instruction.src_factor_in))
            reads.add((Memory.WGT, base.wgt + out * instruction.wgt_factor_out + inside * instruction.wgt_factor_in))
    return reads, writes


def before(stream: Stream) -> list[set[int]]:
    """Return, for each instruction, those that have certainly ended when it starts."""
    tokens, newest, ended = defaultdict(list), {}, []
    for index, instruction in enumerate(stream.instructions):
        current = stage(instruction)
        behind = {newest[current]} if current in newest else set()
        for flag, other in (("pop_prev", current - 1), ("pop_next", current + 1)):
            if getattr(instruction.tokens, flag):
                behind.add(tokens[other, current].pop(0))
        ended.append(behind.union(*(ended[earlier] for earlier in behind)))
        for flag, other in (("push_prev", current - 1), ("push_next", current + 1)):
            if getattr(instruction.tokens, flag):
                tokens[current, other].append(index)
        newest[current] = index
    assert not any(tokens.values())
    return ended


@settings(deadline=None)
@given(OPERATIONS)
def test_every_conflict_is_waited_for(operations):
    stream = recorded(operations)
    ended = before(stream)
    resident: dict[int, Uop] = {}
    accesses = []
    for index, instruction in enumerate(stream.instructions):
        if uop(instruction):
            resident |= {
                instruction.sram_base + n: stream.uops[instruction.dram_base + n] for n in range(instruction.x_size)
            }
        reads, writes = touched(instruction, resident)
        for earlier, (before_reads, before_writes) in enumerate(accesses):
            if writes & (before_reads | before_writes) or reads & before_writes:
                assert earlier in ended[index]
        accesses.append((reads, writes))


@settings(deadline=None)
@given(OPERATIONS)
def test_all_is_stored_at_the_end(operations):
    stream = recorded(operations)
    stores = {index for index, instruction in enumerate(stream.instructions) if isinstance(instruction, Store)}
    assert stores <= before(stream)[-1]
