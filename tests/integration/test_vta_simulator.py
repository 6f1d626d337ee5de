"""The simulator of VTA: what instructions do, what the FPGA refuses, in which order and how long."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.backends.vta.device import native, simulator
from toolchain.backends.vta.device.devices import Profile
from toolchain.backends.vta.device.simulator import Policy, Simulator
from toolchain.backends.vta.isa import Isa, Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Alu, AluOp, Finish, Gemm, Load, Memory, Store, Tokens, Uop
from toolchain.backends.vta.isa.stream import UOPS, Buffer, Stream
from toolchain.errors import BuildError, InputError, VerificationError

OLD, NEW = Revision.V2020_07, Revision.V2020_12
# The block that has code of its own, and three that have not.
CONFIGS = [
    DEFAULT,
    VtaConfig(log_batch=1, log_block=2, log_inp_buff_size=12, log_wgt_buff_size=10, log_acc_buff_size=14),
    VtaConfig(log_block=1, log_inp_buff_size=9, log_wgt_buff_size=8, log_acc_buff_size=12, log_uop_buff_size=9),
    VtaConfig(log_batch=1, log_block=5),
]
EVERY = [(Policy.TIMED, 0), (Policy.LOAD_FIRST, 0), (Policy.STORE_FIRST, 0), (Policy.RANDOM, 1), (Policy.RANDOM, 2)]
ROWS = 64  # elements of INP and ACC that the property tests work on
WEIGHTS = 16
ORIGIN = Uop(0, 0)


@pytest.fixture(scope="module", autouse=True)
def _library():
    native.loaded()


# --- programs --------------------------------------------------------------------------------------------------------


def stage(instruction) -> int:
    """Return 0 for load, 1 for compute, 2 for store."""
    if isinstance(instruction, Store):
        return 2
    return 0 if isinstance(instruction, Load) and instruction.memory in {Memory.INP, Memory.WGT} else 1


def nop(memory=Memory.UOP, **flags):
    return Load(memory, 0, 0, 0, 0, 0, tokens=Tokens(**flags))


def flagged(instruction, **flags):
    return dataclasses.replace(instruction, tokens=dataclasses.replace(instruction.tokens, **flags))


def serial(instructions, relocations=()):
    """Give instructions all the tokens that keep them in their order, and an end."""
    ordered, moved = [], {}
    for index, instruction in enumerate([*instructions, Finish()]):
        if ordered and abs(stage(ordered[-1]) - stage(instruction)) == 2:
            ordered.append(nop())
        moved[index] = len(ordered)
        ordered.append(instruction)
    for index in range(1, len(ordered)):
        before, after = stage(ordered[index - 1]), stage(ordered[index])
        if before < after:
            ordered[index - 1] = flagged(ordered[index - 1], push_next=True)
            ordered[index] = flagged(ordered[index], pop_prev=True)
        elif before > after:
            ordered[index - 1] = flagged(ordered[index - 1], push_prev=True)
            ordered[index] = flagged(ordered[index], pop_next=True)
    return ordered, tuple((moved[index], buffer) for index, buffer in relocations)


def whole(memory, count, **options):
    """Load or store the first `count` elements of a buffer."""
    kind = Store if memory is Memory.OUT else Load
    return kind(memory, 0, 0, 1, count, count, **options)


def each(count, op=AluOp.SHR, imm=0, at=0):
    """Do the same to the first `count` elements of ACC; a shift by 0 brings them to OUT."""
    return Alu(op, at, at + 1, 1, count, 0, 1, 0, 1, use_imm=True, imm=imm)


class Program:
    """Instructions with their buffers and micro-ops, made one after another."""

    def __init__(self, config=DEFAULT, revision=NEW, uops=(ORIGIN,)):
        self.config, self.revision, self.uops = config, revision, list(uops)
        self.instructions, self.relocations, self.buffers, self.arrays = [], [], [], []
        self.add(whole(Memory.UOP, len(self.uops)), UOPS)

    def add(self, instruction, buffer=None):
        if buffer is not None:
            self.relocations.append((len(self.instructions), buffer))
        self.instructions.append(instruction)

    def load(self, memory, array, instruction=None):
        elements = array.nbytes // self.config.element_bytes(memory)
        self.add(instruction or whole(memory, elements), len(self.buffers))
        self.buffers.append(Buffer(memory, written=False, elements=elements))
        self.arrays.append(array)

    def store(self, elements, instruction=None, fill=0):
        array = np.full((elements, self.config.batch, self.config.block), fill, np.int8)
        self.add(instruction or whole(Memory.OUT, elements), len(self.buffers))
        self.buffers.append(Buffer(Memory.OUT, written=True, elements=elements))
        self.arrays.append(array)
        return array

    def dump(self, count):
        """Store what ACC has, byte by byte; needs a micro-op 0, 0 as the last."""
        last = len(self.uops) - 1
        stored = []
        for shift in (0, 8, 8, 8):
            self.add(each(count, imm=shift, at=last))
            stored.append(self.store(count))
        return lambda: sum(byte.astype(np.uint8).astype(np.uint32) << 8 * i for i, byte in enumerate(stored)).astype(
            np.int32
        )

    def stream(self):
        instructions, relocations = serial(self.instructions, self.relocations)
        return Stream(
            self.config, self.revision, tuple(self.buffers), tuple(instructions), tuple(self.uops), relocations
        )

    def run(self, policy=Policy.TIMED, seed=0, **options):
        return Simulator(self.config, self.revision, **options).run(self.stream(), self.arrays, policy, seed=seed)


def numbers(rng, shape, dtype):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def sums(rng, config, count=ROWS):
    return numbers(rng, (count, config.batch, config.block), np.int32)


def steps(nest, uops):
    """Return dst, src and wgt of each step, in order."""
    loops = itertools.product(range(nest.iter_out), range(nest.iter_in), uops[nest.uop_bgn : nest.uop_end])
    factors = [("dst", "dst"), ("src", "src"), ("wgt", "wgt")]
    return [
        tuple(
            getattr(uop, name)
            + out * getattr(nest, f"{factor}_factor_out", 0)
            + inner * getattr(nest, f"{factor}_factor_in", 0)
            for name, factor in factors
        )
        for out, inner, uop in loops
    ]


def is_hazardous(order, which=0):
    """Whether a step writes, or reads as operand 1, what one of the two before it has written."""
    return any(
        step[which] in {other[0] for other in order[max(0, index - 2) : index]} for index, step in enumerate(order)
    )


# --- GEMM and ALU ----------------------------------------------------------------------------------------------------


@st.composite
def nests(draw, kind, **fixed):
    """Draw micro-ops and a nest over them that stays within ROWS and WEIGHTS."""
    uops = draw(st.lists(st.builds(Uop, st.integers(0, 20), st.integers(0, 20), st.integers(0, 3)), max_size=5))
    iterations = {"iter_out": draw(st.integers(0, 4)), "iter_in": draw(st.integers(0, 5))}
    names = [f"{name}_factor_{loop}" for name in ("dst", "src") for loop in ("out", "in")]
    factors = {name: draw(st.integers(0, 5)) for name in names}
    if kind is Gemm:
        factors |= {f"wgt_factor_{loop}": draw(st.integers(0, 1)) for loop in ("out", "in")}
    skipped = draw(st.integers(0, len(uops)))
    return uops, kind(uop_bgn=skipped, uop_end=len(uops), **iterations, **factors, **fixed)


def refused_if_hazardous(program, order, *, reads=False):
    """Run a program; return whether it was one to refuse."""
    twice = is_hazardous(order)
    if not twice and not (reads and is_hazardous(order, 1)):
        program.run()
        return False
    cause = "of ACC twice within 3 steps" if twice else "that one of the 2 steps before writes"
    with pytest.raises(VerificationError, match=cause):
        program.run()
    return True


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), reset=st.booleans(), seed=st.integers(0, 1000))
def test_gemm_adds_products_and_writes_low_bytes_to_out(config, data, reset, seed):
    uops, gemm = data.draw(nests(Gemm, reset=reset))
    rng = np.random.default_rng(seed)
    program = Program(config, uops=[*uops, Uop(0, 0)])
    acc = sums(rng, config)
    inp = numbers(rng, acc.shape, np.int8)
    wgt = numbers(rng, (WEIGHTS, config.block, config.block), np.int8)
    for memory, array in ((Memory.ACC, acc), (Memory.INP, inp), (Memory.WGT, wgt)):
        program.load(memory, array)
    program.add(gemm)
    low = program.store(ROWS)
    dumped = program.dump(ROWS)
    order = steps(gemm, uops)
    if refused_if_hazardous(program, order):
        return
    expected, out = acc.copy(), {}
    for dst, src, weight in order:
        total = expected[dst] + inp[src].astype(np.int32) @ wgt[weight].astype(np.int32).T
        out[dst] = total.astype(np.int8)
        expected[dst] = 0 if reset else total
    np.testing.assert_array_equal(dumped(), expected)
    for dst, bytes_ in out.items():
        np.testing.assert_array_equal(low[dst], bytes_)


def alu_result(op, first, other):
    if op is AluOp.SHR:
        shift = ((other & 31) ^ 16) - 16
        shifted = (first.astype(np.int64) << np.maximum(-shift, 0)).astype(np.int32)
        return np.where(shift >= 0, first >> np.maximum(shift, 0), shifted)
    return {AluOp.MIN: np.minimum, AluOp.MAX: np.maximum, AluOp.ADD: np.add}[op](first, other)


@pytest.mark.parametrize("op", [AluOp.MIN, AluOp.MAX, AluOp.ADD, AluOp.SHR])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), use_imm=st.booleans(), seed=st.integers(0, 1000), revision=st.sampled_from(Revision))
def test_alu_combines_with_elements_or_a_number(op, data, use_imm, seed, revision):
    imm = data.draw(st.integers(-32768, 32767))
    uops, alu = data.draw(nests(Alu, op=op, use_imm=use_imm, imm=imm))
    program = Program(data.draw(st.sampled_from(CONFIGS)), revision, [*uops, Uop(0, 0)])
    acc = sums(np.random.default_rng(seed), program.config)
    program.load(Memory.ACC, acc)
    program.add(alu)
    dumped = program.dump(ROWS)
    order = steps(alu, uops)
    if refused_if_hazardous(program, order, reads=not use_imm):
        return
    expected = acc.copy()
    for dst, src, _ in order:
        expected[dst] = alu_result(op, expected[dst], np.int32(imm) if use_imm else expected[src])
    np.testing.assert_array_equal(dumped(), expected)


# --- LOAD and STORE --------------------------------------------------------------------------------------------------

PADS = ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")
SIZES = {"y_size": (1, 4), "x_size": (1, 4), "dram_base": (0, 5), "more": (0, 3)}
tiles = st.fixed_dictionaries({name: st.integers(*limits) for name, limits in SIZES.items()})


def rows_of(array, tile):
    stride = tile["x_size"] + tile["more"]
    starts = [tile["dram_base"] + row * stride for row in range(tile["y_size"])]
    return np.stack([array[start : start + tile["x_size"]] for start in starts])


def transfer(kind, memory, tile, **options):
    size = {name: tile[name] for name in ("y_size", "x_size", "dram_base")}
    return kind(memory, x_stride=tile["x_size"] + tile["more"], **size, **options)


@pytest.mark.parametrize("memory", [Memory.INP, Memory.ACC])
@settings(max_examples=60, deadline=None)
@given(tile=tiles, pads=st.tuples(*[st.integers(0, 3)] * 4), base=st.integers(0, 3), seed=st.integers(0, 1000))
def test_loads_are_strided_and_padded(memory, tile, pads, base, seed):
    rng = np.random.default_rng(seed)
    array = numbers(rng, (40, 1, 16), np.int8 if memory is Memory.INP else np.int32)
    inside = rows_of(array, tile)
    expected = np.pad(inside, ((pads[0], pads[1]), (pads[2], pads[3]), (0, 0), (0, 0))).reshape(-1, 1, 16)
    count = len(expected)
    program = Program()
    load = transfer(Load, memory, tile, sram_base=base, **dict(zip(PADS, pads, strict=True)))
    program.load(memory, array, load)
    if memory is Memory.INP:  # brought to ACC by weights of 1
        program.load(Memory.WGT, np.eye(16, dtype=np.int8))
        program.load(Memory.ACC, np.zeros((ROWS + 40, 16), np.int32))
        program.add(Gemm(0, 1, 1, count + base, 0, 1, 0, 1, 0, 0))
    dumped = program.dump(count + base)
    program.run()
    np.testing.assert_array_equal(dumped()[base:], expected)


@settings(max_examples=60, deadline=None)
@given(tile=tiles, base=st.integers(0, 3), seed=st.integers(0, 1000))
def test_a_store_writes_low_bytes_of_its_rows_and_nothing_else(tile, base, seed):
    acc = sums(np.random.default_rng(seed), DEFAULT)
    program = Program()
    program.load(Memory.ACC, acc)
    program.add(each(ROWS))
    out = program.store(40, transfer(Store, Memory.OUT, tile, sram_base=base), fill=77)
    program.run()
    expected = np.full_like(out, 77)
    stored = acc[base : base + tile["y_size"] * tile["x_size"]].astype(np.int8)
    rows_at = rows_of(np.arange(40), tile).reshape(-1)
    expected[rows_at] = stored
    np.testing.assert_array_equal(out, expected)


def product(zeros, *, loaded):
    """Multiply ones, but for one memory that holds zeros and may not be loaded at all."""
    program = Program()
    shapes = {Memory.ACC: (2, 1, 16), Memory.INP: (2, 1, 16), Memory.WGT: (1, 16, 16)}
    for memory, shape in shapes.items():
        array = np.full(shape, memory is not zeros, np.int32 if memory is Memory.ACC else np.int8)
        program.load(memory, array, None if loaded or memory is not zeros else nop(memory))
    if zeros is Memory.UOP and not loaded:
        program.instructions[0] = nop()
    program.add(Gemm(0, 1, 1, 1, 0, 0, 0, 0, 0, 0))
    out = program.store(1)
    program.run()
    return out


@pytest.mark.parametrize("memory", [Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC])
def test_a_missing_load_shows_even_of_zeros(memory):
    assert (product(memory, loaded=True) != product(memory, loaded=False)).any()


def test_a_load_of_acc_does_not_reach_out():
    program = Program()
    program.load(Memory.ACC, np.full((2, 1, 16), 5, np.int32))
    program.add(each(2))
    first = program.store(2)
    program.load(Memory.ACC, np.full((2, 1, 16), 9, np.int32))
    second = program.store(2)
    program.run()
    assert (first == 5).all()
    assert (second == 5).all()


def test_sram_keeps_its_contents_between_raw_runs_only():
    program = Program()
    program.load(Memory.ACC, np.full((2, 1, 16), 5, np.int32))
    program.add(each(2))
    simulated = Simulator()
    simulated.run(program.stream(), program.arrays)
    instructions, _ = serial([Store(Memory.OUT, 0, 1 << 8, 1, 2, 2)])
    out = np.zeros((2, 16), np.int8)
    simulated.run_raw(Isa().encode_all(instructions), {1 << 12: out})
    assert (out == 5).all()
    simulated.reset()
    simulated.run_raw(Isa().encode_all(instructions), {1 << 12: out})
    assert (out != 5).any()


# --- what is refused -------------------------------------------------------------------------------------------------


def one_step(kind=Gemm, **changes):
    numbers_ = dict.fromkeys([field.name for field in dataclasses.fields(kind) if "factor" in field.name], 0)
    return kind(**numbers_ | {"uop_bgn": 0, "uop_end": 1, "iter_out": 1, "iter_in": 1} | changes)


def padded(memory, **pads):
    return Load(memory, 0, 0, 1, 1, 1, **pads)


REFUSED = {
    "WGT padding": (padded(Memory.WGT, x_pad_0=1), "the FPGA ignores padding of WGT loads"),
    "UOP padding": (padded(Memory.UOP, y_pad_1=1), "the FPGA ignores padding of UOP loads"),
    "UOP rows": (Load(Memory.UOP, 0, 0, 2, 1, 1), "UOP loads have one row"),
    "STORE of ACC": (Store(Memory.ACC, 0, 0, 1, 1, 1), "only OUT can be stored, not ACC"),
    "INP range": (Load(Memory.INP, 2047, 0, 1, 1, 1, x_pad_1=1), "reaches element 2048 of INP, which has 2048"),
    "OUT range": (Store(Memory.OUT, 0, 0, 3, 1000, 1000), "reaches element 2999 of OUT, which has 2048"),
    "UOP range": (one_step(uop_bgn=8190, uop_end=8193), "takes micro-ops up to 8192 of UOP, which has 8192"),
    "ACC range": (one_step(iter_in=3, dst_factor_in=1024), "reaches element 2048 of ACC, which has 2048"),
    "WGT range": (one_step(iter_out=3, dst_factor_out=1, wgt_factor_out=512), "reaches element 1024 of WGT"),
    "ALU range": (one_step(Alu, op=AluOp.ADD, iter_in=3, dst_factor_in=1, src_factor_in=1024), "element 2048 of ACC"),
    "unmapped": (Load(Memory.INP, 0, 1 << 20, 1, 1, 1), "nothing is mapped to all of the 16 bytes of DRAM at 0x"),
    "read-only": (Store(Memory.OUT, 0, (1 << 28) // 16, 1, 1, 1), "DRAM at 0x10000000 may only be read"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("revision", Revision)
def test_what_the_fpga_cannot_do_is_refused(name, revision):
    instruction, message = REFUSED[name]
    program = Program(revision=revision, uops=[Uop(0, 0)] * 4)
    program.add(instruction)
    with pytest.raises(VerificationError, match=message):
        program.run()


@pytest.mark.parametrize("kind", [Load, Store])
def test_no_transfer_leaves_its_buffer(kind):
    memory = Memory.INP if kind is Load else Memory.OUT
    array = np.zeros((2, 16), np.int8)
    for base, count, fits in ((256, 2, True), (256, 3, False), (255, 1, False), (258, 1, False)):
        instructions = Isa().encode_all(serial([kind(memory, 0, base, 1, count, count)])[0])
        if fits:
            Simulator().run_raw(instructions, {4096: array})
            continue
        with pytest.raises(VerificationError, match=f"nothing is mapped to all of the {16 * count} bytes of DRAM"):
            Simulator().run_raw(instructions, {4096: array})


def test_there_is_no_mul():
    with pytest.raises(VerificationError, match=r"instruction 0 \(ALU .*MUL.*\): the FPGA has no MUL"):
        raw([one_step(Alu, op=AluOp.MUL), Finish()])


@pytest.mark.parametrize("revision", Revision)
def test_padding_of_acc_loads_needs_the_newer_machine(revision):
    program = Program(revision=revision)
    program.load(Memory.ACC, np.ones((1, 16), np.int32), padded(Memory.ACC, x_pad_0=1))
    if revision is NEW:
        program.run()
        return
    with pytest.raises(VerificationError, match="padding of ACC loads is broken before revision 2020-12"):
        program.run()


def test_a_hazard_needs_no_uops_next_to_each_other():
    program = Program(uops=[Uop(0, 0), Uop(1, 0), Uop(2, 0)])
    program.load(Memory.INP, np.zeros((1, 16), np.int8))
    program.load(Memory.WGT, np.zeros((1, 16, 16), np.int8))
    program.add(Gemm(0, 3, 1, 9, 0, 1, 0, 0, 0, 0))  # 0 1 2, 1 2 3
    with pytest.raises(VerificationError, match="writes element 1 of ACC twice within 3 steps, at micro-ops 1 and 0"):
        program.run()


def raw(instructions, memory=None, **options):
    return Simulator(**options).run_raw(Isa().encode_all(instructions), memory or {})


BAD_PROGRAMS = {
    "empty": ([], "the program is empty"),
    "no FINISH": ([nop()], "the last instruction is no FINISH"),
    "two FINISHes": ([Finish(), Finish()], r"instruction 0 \(FINISH\): there are instructions after it"),
    "load before": (
        [nop(Memory.INP, pop_prev=True), Finish()],
        "pop_prev is set, but the load stage has no",
    ),
    "load gives": ([nop(Memory.WGT, push_prev=True), Finish()], "push_prev is set, but the load stage"),
    "store behind": ([Store(Memory.OUT, 0, 0, 0, 0, 0, Tokens(pop_next=True)), Finish()], "pop_next is set"),
    "store gives": ([Store(Memory.OUT, 0, 0, 0, 0, 0, Tokens(push_next=True)), Finish()], "push_next is set"),
    "deadlock": (
        [nop(Memory.INP, pop_next=True), nop(pop_prev=True, pop_next=True), Finish()],
        r"deadlock: load waits for g2l at instruction 0.*; compute waits for l2g and s2g at .* 1 .*; store has ended",
    ),
    "full": (
        [nop(push_prev=True)] * 1025 + [Finish()],
        "instruction 1024 .* g2l, which is full: it holds 1024",
    ),
    "left": ([nop(push_next=True), Finish()], "tokens left in g2s for the next run: 1"),
}


@pytest.mark.parametrize("name", BAD_PROGRAMS)
def test_wrong_programs_are_refused(name):
    instructions, message = BAD_PROGRAMS[name]
    with pytest.raises(VerificationError, match=message):
        raw(instructions)


def test_finish_must_wait_for_the_last_store():
    store = Store(Memory.OUT, 0, 256, 1, 1, 1)
    for policy, seed in EVERY:
        instructions = Isa().encode_all([store, nop(), nop(), Finish()])
        out = {4096: np.zeros(16, np.int8)}
        if policy is Policy.STORE_FIRST:
            Simulator().run_raw(instructions, out, policy)
        elif policy is not Policy.RANDOM:
            with pytest.raises(VerificationError, match=r"FINISH.*(does not wait for|before the last STORE)"):
                Simulator().run_raw(instructions, out, policy, seed=seed)


def test_unknown_instructions_are_named():
    for data, message in (
        (b"\x07" + bytes(15), "instruction 0: 07000.*: opcode 7 is unknown"),
        (b"\x80\x02" + bytes(14), "there is no LOAD into memory 5"),
        (b"\x03" + bytes(14) + b"\x01", "bits of a FINISH that mean nothing are set"),
    ):
        with pytest.raises(VerificationError, match=message):
            Simulator().run_raw(data, {})


def test_endless_loops_end():
    endless = one_step(uop_end=8192, iter_out=16383, iter_in=16383, reset=True)
    with pytest.raises(VerificationError, match=r"instruction 0 \(GEMM .*more than 1073741824 steps and elements"):
        raw([endless, Finish()])


def test_the_limit_counts_steps_and_elements():
    program = Program()
    program.load(Memory.ACC, np.zeros((2, 1, 16), np.int32))
    program.add(each(2))
    program.store(2)
    program.run(most_steps=1 + 2 + 2 + 2)
    with pytest.raises(VerificationError, match=r"STORE .*more than 6 steps and elements by this instruction"):
        program.run(most_steps=6)


def test_a_simulator_is_of_use_after_a_fault():
    program = Program()
    program.load(Memory.ACC, np.full((2, 1, 16), 5, np.int32))
    program.add(each(2))
    out = program.store(2)
    simulated = Simulator()
    with pytest.raises(VerificationError, match="deadlock"):
        simulated.run_raw(Isa().encode_all([nop(push_prev=True), nop(pop_prev=True), Finish()]), {})
    simulated.run(program.stream(), program.arrays)
    assert (out == 5).all()


# --- arguments -------------------------------------------------------------------------------------------------------


def test_arrays_must_be_those_of_the_stream():
    program = Program()
    program.load(Memory.ACC, np.zeros((2, 1, 16), np.int32))
    program.add(each(2))
    out = program.store(2)
    stream, (acc, _) = program.stream(), program.arrays
    frozen = out.copy()
    frozen.flags.writeable = False
    for arrays, message in (
        ([acc], "takes 2 arrays, not 1"),
        ([acc[:1], out], "array 0 has 64 bytes; its buffer has 128"),
        ([acc, frozen], "array 1, which is read-only"),
        ([np.zeros((16, 2), np.int32).T, out], "not C-contiguous"),
    ):
        with pytest.raises(InputError, match=message):
            Simulator().run(stream, arrays)
    with pytest.raises(InputError, match=r"is for a VTA .* 2020-12, not for .* 2020-07"):
        Simulator(revision=OLD).run(stream, program.arrays)
    with pytest.raises(InputError, match="overlaps another"):
        raw([Finish()], {0: acc, 64: out})


# --- tokens and order ------------------------------------------------------------------------------------------------

TILE, TILES = 4, 6


def pipelined():
    """Work through tiles in two slots of INP, ACC and OUT, with every token that this needs and no other."""
    rng = np.random.default_rng(7)
    x = numbers(rng, (TILES * TILE, 1, 16), np.int8)
    w = numbers(rng, (1, 16, 16), np.int8)
    instructions = [whole(Memory.UOP, 2), Load(Memory.WGT, 0, 0, 1, 1, 1)]
    relocations = [(0, UOPS), (1, 1)]
    for tile in range(TILES):
        slot, again, last = tile % 2, tile >= 2, tile >= TILES - 2
        relocations.append((len(instructions), 0))
        wait = Tokens(pop_next=again, push_next=True)
        instructions.append(Load(Memory.INP, slot * TILE, tile * TILE, 1, TILE, TILE, tokens=wait))
        nest = (slot, slot + 1, 1, TILE, 0, 1, 0, 1)
        # A reset writes OUT too, so that it waits for the store of the slot.
        reset = Tokens(pop_prev=True, pop_next=again)
        instructions.append(Gemm(*nest, 0, 0, reset=True, tokens=reset))
        instructions.append(Gemm(*nest, 0, 0, tokens=Tokens(push_prev=not last)))
        instructions.append(Alu(AluOp.SHR, *nest, use_imm=True, imm=6, tokens=Tokens(push_next=True)))
        relocations.append((len(instructions), 2))
        tokens = Tokens(pop_prev=True, push_prev=True)
        instructions.append(Store(Memory.OUT, slot * TILE, tile * TILE, 1, TILE, TILE, tokens))
    instructions += [nop(pop_next=True), Finish(Tokens(pop_next=True))]
    buffers = (
        Buffer(Memory.INP, written=False, elements=len(x)),
        Buffer(Memory.WGT, written=False, elements=1),
        Buffer(Memory.OUT, written=True, elements=len(x)),
    )
    uops = (Uop(0, 0), Uop(TILE, TILE))
    stream = Stream(DEFAULT, NEW, buffers, tuple(instructions), uops, tuple(relocations))
    expected = (x.astype(np.int32) @ w[0].astype(np.int32).T >> 6).astype(np.int8)
    return stream, [x, w], expected


def outcome(stream, inputs, expected, policy, seed):
    """Say whether a run gives the right result, a wrong one, or a fault."""
    out = np.zeros_like(expected)
    try:
        Simulator().run(stream, [*inputs, out], policy, seed=seed)
    except VerificationError as fault:
        return fault.message
    return "right" if (out == expected).all() else "wrong"


@pytest.mark.parametrize(("policy", "seed"), EVERY)
def test_enough_tokens_give_the_right_result_in_any_order(policy, seed):
    assert outcome(*pipelined(), policy, seed) == "right"


QUEUES = {
    "l2g": ((0, "push_next"), (1, "pop_prev")),
    "g2l": ((1, "push_prev"), (0, "pop_next")),
    "g2s": ((1, "push_next"), (2, "pop_prev")),
    "s2g": ((2, "push_prev"), (1, "pop_next")),
}
FLAGS = sorted({flag for ends in QUEUES.values() for flag in ends})


def without(stream, flags):
    remaining = tuple(
        flagged(instruction, **{flag: False for where, flag in flags if where == stage(instruction)})
        for instruction in stream.instructions
    )
    return dataclasses.replace(stream, instructions=remaining)


@pytest.mark.parametrize("queue", QUEUES)
def test_each_queue_is_missed_under_some_policy(queue):
    stream, inputs, expected = pipelined()
    outcomes = {outcome(without(stream, QUEUES[queue]), inputs, expected, *how) for how in EVERY}
    assert outcomes != {"right"}


@pytest.mark.parametrize("flag", FLAGS, ids=str)
def test_one_end_of_a_queue_is_missed_under_every_policy(flag):
    stream, inputs, expected = pipelined()
    for how in EVERY:
        assert outcome(without(stream, [flag]), inputs, expected, *how) not in {"right", "wrong"}


def test_runs_repeat():
    stream, inputs, expected = pipelined()
    out = np.zeros_like(expected)
    simulated = Simulator()
    first, second = (simulated.run(stream, [*inputs, out]) for _ in range(2))
    assert first == second
    assert first.cycles == simulated.cycles(stream).cycles


# --- cycles ----------------------------------------------------------------------------------------------------------


def timed():
    """Return a small program whose cycles are worked out by hand below."""
    instructions = [
        whole(Memory.UOP, 2),
        Load(Memory.INP, 0, 0, 2, 4, 4, x_pad_0=1, tokens=Tokens(push_next=True)),
        Gemm(0, 2, 3, 2, 0, 2, 0, 0, 0, 0, tokens=Tokens(pop_prev=True)),
        Gemm(0, 2, 3, 2, 0, 2, 0, 0, 0, 0, reset=True),
        Alu(AluOp.MAX, 0, 1, 5, 1, 1, 0, 1, 0, tokens=Tokens(push_next=True)),
        Store(Memory.OUT, 0, 0, 2, 4, 4, Tokens(pop_prev=True, push_prev=True)),
        Finish(Tokens(pop_next=True)),
    ]
    return Stream(DEFAULT, NEW, (), tuple(instructions), (), ())


def test_ideal_cycles_are_those_of_the_work():
    # Both loads ask for the bus at 0: INP has it for 128 / 8 cycles, UOP, 8 bytes, from 16 to 17. GEMM takes 2 * 12
    # steps until 41, ALU 2 * 5 until 51, STORE 16 until 67, FINISH one.
    cycles = Simulator().cycles(timed(), Profile.IDEAL)
    assert (cycles.cycles, cycles.gemm_cycles, cycles.alu_cycles) == (68, 24, 10)
    assert (cycles.load_stalls, cycles.compute_stalls, cycles.store_stalls) == (0, 16, 51)
    assert (cycles.bus_stalls, cycles.bus_cycles) == (16, 33)
    assert (cycles.load_bytes, cycles.store_bytes, cycles.macs) == (136, 128, 12 * 256)
    assert (cycles.instructions, cycles.loads, cycles.stores, cycles.gemms, cycles.alus) == (7, 2, 1, 2, 1)
    assert cycles.utilisation == pytest.approx(12 / 68)


def test_hls_cycles_have_latencies_and_refills():
    # INP: bus until 16, then 32 + 2 * 8 until 64. UOP: bus from 16 to 17, then 32 + 8 until 57. GEMM: from 64, each
    # 12 + 12 + 5 refills of 10, until 212. ALU: 12 + 2 * 5 + 4 * 10 until 274. STORE: 16 + 32 + 16 until 338.
    cycles = Simulator().cycles(timed(), Profile.HLS_PYNQ)
    assert (cycles.cycles, cycles.gemm_cycles, cycles.alu_cycles) == (339, 148, 62)
    assert (cycles.load_stalls, cycles.compute_stalls, cycles.store_stalls) == (0, 7 + 64, 274)
    assert (cycles.bus_stalls, cycles.bus_cycles) == (16, 33)


def test_pynq_cycles_have_rows_on_a_slower_bus_and_a_start():
    # INP: bus for 128 / 4 + 2 * 56 until 144, then 48 until 192. UOP: bus from 144 to 202, then 40 until 242. GEMM:
    # until 390, ALU until 452. STORE: 144 + 48 until 644, which FINISH waits for. The start: 3200.
    cycles = Simulator().cycles(timed(), Profile.PYNQ_Z1)
    assert (cycles.cycles, cycles.gemm_cycles, cycles.alu_cycles) == (3845, 148, 62)
    assert (cycles.load_stalls, cycles.compute_stalls, cycles.store_stalls) == (0, 192, 452)
    assert (cycles.bus_stalls, cycles.bus_cycles) == (144, 346)


def test_a_queue_waits_for_the_token_and_not_for_what_comes_after():
    # LOAD, 16 cycles each on the bus; the second has no one waiting for it.
    instructions = [
        Load(Memory.INP, 0, 0, 1, 8, 8, tokens=Tokens(push_next=True)),
        Load(Memory.INP, 8, 8, 1, 8, 8),
        Gemm(0, 1, 1, 4, 0, 1, 0, 0, 0, 0, tokens=Tokens(pop_prev=True)),
        Finish(),
    ]
    cycles = Simulator().cycles(Stream(DEFAULT, NEW, (), tuple(instructions), (), ()), Profile.IDEAL)
    assert (cycles.cycles, cycles.compute_stalls, cycles.load_stalls) == (32, 16, 0)


def test_only_the_timed_policy_has_cycles():
    stream, inputs, expected = pipelined()
    result = Simulator().run(stream, [*inputs, np.zeros_like(expected)], Policy.LOAD_FIRST)
    assert (result.cycles, result.utilisation, result.bus_cycles) == (0, 0.0, 0)
    assert result.macs == TILES * TILE * 256


def test_two_slots_take_less_time_than_one_after_the_other():
    stream, _, _ = pipelined()
    plain = [flagged(instruction, **dataclasses.asdict(Tokens())) for instruction in stream.instructions[:-2]]
    slow = dataclasses.replace(stream, instructions=tuple(serial(plain)[0]), relocations=())
    assert Simulator().cycles(stream).cycles < 0.8 * Simulator().cycles(slow).cycles


# --- encoding: the same bits as in Python ----------------------------------------------------------------------------


@st.composite
def encoded(draw):
    isa = Isa(draw(st.sampled_from(CONFIGS)), draw(st.sampled_from(Revision)))
    kind = draw(st.sampled_from([Load, Store, Gemm, Alu, Finish]))
    ranges = {field.name: field for field in isa.fields()[kind.__name__.upper()]}
    values = {
        field.name: draw(_values(ranges[field.name])) for field in dataclasses.fields(kind) if field.name != "tokens"
    }
    return isa, kind(**values, tokens=draw(st.builds(Tokens, *[st.booleans()] * 4)))


def _values(field):
    if field.members:
        return st.sampled_from(field.members)
    return st.integers(field.minimum, field.maximum).map(field.kind)


def words(isa, instruction):
    """Describe an instruction as the simulator does, from Python's fields."""
    name = type(instruction).__name__.upper()
    fields = [name]
    for field in isa.fields()[name]:
        if field.name == "opcode":
            continue
        value = getattr(instruction.tokens if "p" in field.name[0] else instruction, field.name)
        if field.name in {"memory", "op"}:
            fields.append(value.name)
        elif field.name == "imm":
            fields.append(f"imm={value}")
        elif value:
            fields.append(field.name if field.width == 1 else f"{field.name}={value}")
    return " ".join(fields)


@settings(max_examples=300, deadline=None)
@given(program=encoded())
def test_both_decoders_read_the_same(program):
    isa, instruction = program
    data = isa.encode(instruction)
    assert isa.decode(data) == instruction
    assert simulator.instruction_text(isa.config, isa.revision, data) == (words(isa, instruction), data)


@settings(max_examples=300, deadline=None)
@given(program=encoded(), bit=st.integers(0, 127))
def test_both_decoders_refuse_the_same(program, bit):
    isa, instruction = program
    data = (int.from_bytes(isa.encode(instruction), "little") ^ 1 << bit).to_bytes(16, "little")
    try:
        expected_text = words(isa, isa.decode(data))
    except InputError:
        expected_text = ""
    try:
        text, _ = simulator.instruction_text(isa.config, isa.revision, data)
    except InputError:
        text = ""
    assert text == expected_text


def test_a_machine_whose_fields_do_not_fit_is_refused():
    wide = {"log_batch": 0, "log_block": 1, "log_acc_buff_size": 20, "log_inp_buff_size": 20}
    with pytest.raises(InputError):
        Isa(VtaConfig(**wide))
    with pytest.raises(InputError, match="do not fit"):
        simulator.instruction_text(VtaConfig(**wide), NEW, bytes(16))


# --- the library -----------------------------------------------------------------------------------------------------


def test_the_library_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path))
    messages = []
    built = native.library(messages.append)
    assert native.library(messages.append) == built
    assert len(messages) == 1
    assert [path.name for path in (tmp_path / "vta").iterdir()] == [built.name]
    built.write_bytes(b"cut off")
    with pytest.raises(BuildError, match="cannot be loaded"):
        native.loaded.__wrapped__()


def test_a_machine_without_any_compiler_is_told(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda _: None)
    monkeypatch.setattr(native.platform, "machine", lambda: "s390x")
    with pytest.raises(BuildError, match="no compiler for the VTA simulator on s390x"):
        native.library()
