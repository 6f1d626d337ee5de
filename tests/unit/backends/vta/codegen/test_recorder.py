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
        " ".join(field.name for field in fields(Tokens) if getattr(one.tokens, field.name))
        for one in stream.instructions
    ]


def once(made: Recorder, dst: int = 0, src: int = 0, wgt: int = 0, **options) -> None:
    made.gemm(made.sequence([(dst, src, wgt)]), UNIT, UNIT, **options)


def test_an_operand_of_the_alu_lies_where_micro_ops_can_point():
    """Their field for it is as wide as the memory of inputs is deep, here 8 elements; that of sums has 16."""
    made = recorder(VtaConfig(log_inp_buff_size=7, log_acc_buff_size=10))
    made.alu(AluOp.ADD, made.sequence([(15, 7, 0)]), UNIT, UNIT)
    with pytest.raises(BuildError, match="outside the range of a micro-op") as caught:
        made.alu(AluOp.ADD, made.sequence([(0, 8, 0)]), UNIT, UNIT)
    assert caught.value.details == "it is element 8 of ACC, but micro-ops can address 8 of INP"


def test_one_tile():
    made = recorder()
    made.load(Memory.INP, INP, row(0, 1))
    made.load(Memory.WGT, WGT, row(0, 1))
    once(made, reset=True)
    once(made)
    made.alu(AluOp.MAX, made.sequence([(0, 0, 0)]), UNIT, UNIT, 0)
    made.store(OUT, row(0, 1))
    stream = made.finish()
    assert [type(one).__name__ for one in stream.instructions] == [
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
    made = recorder()
    for tile in range(3):
        made.load(Memory.INP, INP, row(tile % 2, 1))
        once(made, src=tile % 2)
    stream = made.finish()
    found = [text for one, text in zip(stream.instructions, flags(stream), strict=True) if not uop(one)]
    assert found == ["push_next", "pop_prev push_prev", "push_next", "pop_prev", "pop_next push_next", "pop_prev", ""]


def uop(instruction) -> bool:
    return isinstance(instruction, Load) and instruction.memory is Memory.UOP


def test_results_are_written_again_only_when_stored():
    made = recorder()
    once(made, reset=True)
    made.store(OUT, row(0, 1))
    once(made, reset=True)
    stream = made.finish()
    assert flags(stream) == ["", "push_next", "pop_prev push_prev", "pop_next", "", ""]


def test_only_the_end_waits_for_what_nothing_reads():
    made = recorder()
    made.load(Memory.INP, INP, row(0, 2))
    once(made, src=1, reset=True)
    made.load(Memory.INP, INP, row(0, 2))
    made.load(Memory.ACC, INP, row(0, 2))
    assert flags(made.finish()) == ["", "", "", "push_next", "", "pop_prev", ""]


def test_finish_never_pops():
    made = recorder()
    once(made, reset=True)
    made.store(OUT, row(0, 1))
    *_, wait, finish = made.finish().instructions
    assert wait == Load(Memory.UOP, 0, 0, 0, 0, 0, tokens=Tokens(pop_next=True))
    assert finish == Finish()


def test_fields():
    made = recorder()
    outer, inner = Loop(2, 3, 4, 5), Loop(6, 7, 8, 9)
    made.gemm(made.sequence([(1, 2, 3), (4, 5, 6)]), outer, inner)
    made.alu(AluOp.ADD, made.sequence([(1, 2, 0)]), outer, inner)
    made.alu(AluOp.SHR, made.sequence([(1, 2, 0)]), outer, inner, -4)
    made.load(Memory.INP, INP, Rows(99, 2, 3, 4, 5, (6, 7), (8, 9)))
    _, gemm, _, add, shift, load, *_ = made.finish().instructions
    assert gemm == Gemm(0, 2, 2, 6, 3, 7, 4, 8, 5, 9)
    assert (add.uop_bgn, add.uop_end, add.use_imm) == (2, 3, False)
    assert (shift.uop_bgn, shift.src_factor_out, shift.use_imm, shift.imm) == (2, 4, True, -4)
    assert load == Load(Memory.INP, 99, 2, 3, 4, 5, 6, 7, 8, 9, tokens=Tokens(push_next=True))


@pytest.mark.parametrize("memory", [Memory.INP, Memory.WGT, Memory.ACC])
def test_room(memory):
    made = recorder()
    depth = DEFAULT.depth(memory)
    assert [made.allocate(memory, size) for size in (3, depth - 3)] == [0, 3]
    with pytest.raises(BuildError, match=f"fit in {memory.name}") as caught:
        made.allocate(memory, 1)
    assert caught.value.details == f"{depth + 1} elements are needed, but there are {depth}"


def test_micro_ops_are_loaded_once():
    made = recorder()
    for _ in range(3):
        once(made, 1)
        once(made, 2)
    stream = made.finish()
    assert [one.sram_base for one in stream.instructions if uop(one) and one.x_size] == [0, 1]
    assert len(stream.uops) == 2


def test_micro_ops_are_loaded_again_when_there_was_no_room():
    made = recorder(TINY)
    sequences = [made.sequence([(base + n, 0, 0) for n in range(5)]) for base in (0, 5)]
    for sequence in (*sequences, sequences[0]):
        made.gemm(sequence, UNIT, UNIT)
    stream = made.finish()
    assert [(one.sram_base, one.dram_base) for one in stream.instructions if uop(one) and one.x_size] == [
        (0, 0),
        (0, 5),
        (0, 0),
    ]
    assert len(stream.uops) == 10


def test_too_many_micro_ops():
    made = recorder(TINY)
    with pytest.raises(BuildError, match="UOP") as caught:
        made.gemm(made.sequence([(0, n, 0) for n in range(9)]), UNIT, UNIT)
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
    made = recorder(TINY)
    for name, *values in operations:
        if name == "load":
            made.load(values[0], INP, row(*values[1:]))
        elif name == "store":
            made.store(OUT, row(*values))
        elif name == "gemm":
            made.gemm(made.sequence([values[0]]), *values[1:3], reset=values[3])
        else:
            made.alu(AluOp.ADD, made.sequence([values[0]]), *values[1:])
    return made.finish()


def stage(one) -> Stage:
    if isinstance(one, Store):
        return Stage.STORE
    return Stage.LOAD if isinstance(one, Load) and one.memory in {Memory.INP, Memory.WGT} else Stage.COMPUTE


def touched(one, uops) -> tuple[set, set]:
    """Return what an instruction reads and writes of the memories that two stages share."""
    if isinstance(one, Load):
        size = one.y_size * one.x_size
        shared = one.memory in {Memory.INP, Memory.WGT}
        return set(), {(one.memory, one.sram_base + n) for n in range(size)} if shared else set()
    if isinstance(one, Store):
        return {(Memory.OUT, one.sram_base + n) for n in range(one.x_size)}, set()
    if isinstance(one, Finish):
        return set(), set()
    reads, writes = set(), set()
    for out, inside in itertools.product(range(one.iter_out), range(one.iter_in)):
        base = uops[one.uop_bgn]
        writes.add((Memory.OUT, base.dst + out * one.dst_factor_out + inside * one.dst_factor_in))
        if isinstance(one, Gemm) and not one.reset:
            reads.add((Memory.INP, base.src + out * one.src_factor_out + inside * one.src_factor_in))
            reads.add((Memory.WGT, base.wgt + out * one.wgt_factor_out + inside * one.wgt_factor_in))
    return reads, writes


def before(stream: Stream) -> list[set[int]]:
    """Return, for each instruction, those that have certainly ended when it starts."""
    tokens, newest, ended = defaultdict(list), {}, []
    for index, one in enumerate(stream.instructions):
        own = stage(one)
        behind = {newest[own]} if own in newest else set()
        for flag, other in (("pop_prev", own - 1), ("pop_next", own + 1)):
            if getattr(one.tokens, flag):
                behind.add(tokens[other, own].pop(0))
        ended.append(behind.union(*(ended[earlier] for earlier in behind)))
        for flag, other in (("push_prev", own - 1), ("push_next", own + 1)):
            if getattr(one.tokens, flag):
                tokens[own, other].append(index)
        newest[own] = index
    assert not any(tokens.values())
    return ended


@settings(deadline=None)
@given(OPERATIONS)
def test_every_conflict_is_waited_for(operations):
    stream = recorded(operations)
    ended = before(stream)
    resident: dict[int, Uop] = {}
    accesses = []
    for index, one in enumerate(stream.instructions):
        if uop(one):
            resident |= {one.sram_base + n: stream.uops[one.dram_base + n] for n in range(one.x_size)}
        reads, writes = touched(one, resident)
        for earlier, (before_reads, before_writes) in enumerate(accesses):
            if writes & (before_reads | before_writes) or reads & before_writes:
                assert earlier in ended[index]
        accesses.append((reads, writes))


@settings(deadline=None)
@given(OPERATIONS)
def test_all_is_stored_at_the_end(operations):
    stream = recorded(operations)
    stores = {index for index, one in enumerate(stream.instructions) if isinstance(one, Store)}
    assert stores <= before(stream)[-1]
