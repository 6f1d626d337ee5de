"""The check of streams, which boards do too: every kind of wrong stream is refused by its cause, and none runs."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import vta_streams
from tests.support.vta_streams import (
    ALU,
    FINISH,
    GEMM,
    LOAD_ACC,
    LOAD_INP,
    LOAD_UOP,
    LOAD_WGT,
    STORE,
    WAIT,
    changed,
    edited,
    inserted,
    mended,
)
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.native import verify
from toolchain.backends.vta.device.simulator import Simulator
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import AluOp, Load, Memory, Store, Tokens, Uop
from toolchain.backends.vta.isa.stream import Buffer, Stream
from toolchain.errors import VerificationError

GOOD = vta_streams.stream()
BLOB = GOOD.encoded()
HEADER = 48
INSTRUCTIONS = HEADER + 8 * len(GOOD.buffers)


def refused(stream: Stream | bytes, cause: str) -> None:
    with pytest.raises(VerificationError, match=cause):
        verify(stream if isinstance(stream, bytes) else stream.encoded())


def with_order(*numbers: int) -> Stream:
    """Return the stream with its instructions in another order, or without some, and their relocations with them."""
    buffers = dict(GOOD.relocations)
    relocations = tuple((number, buffers[old]) for number, old in enumerate(numbers) if old in buffers)
    return replace(GOOD, instructions=tuple(GOOD.instructions[old] for old in numbers), relocations=relocations)


# --- what may run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", list(Revision))
def test_a_good_stream(revision):
    verify(vta_streams.stream(revision=revision).encoded())


def test_another_configuration():
    verify(vta_streams.stream(VtaConfig(log_wgt_buff_size=17)).encoded())


@pytest.mark.parametrize(
    "layer",
    [
        Conv2d(1, 14, 14, 64, 32, (3, 3), (1, 1), (1, 1, 1, 1), shift=7),
        Conv2d(1, 8, 8, 32, 32, (1, 1), (2, 2), shift=5, bias=False),
        Conv2d(1, 1, 1, 64, 80, shift=8),
        Conv2d(1, 6, 6, 16, 16, (3, 3), (1, 1), (1, 1, 1, 1), shift=7, residual_shift=3),
    ],
)
def test_the_compilers_kernels(layer):
    for choice in kernels.candidates(layer, DEFAULT)[:4]:
        verify(kernels.stream(layer, choice, DEFAULT, Revision.V2020_12).encoded())


def repeated(turns: int, *, waiting: bool = True) -> Stream:
    """Return a stream that does the same several times, each time into the same SRAM."""
    instructions, relocations = [GOOD.instructions[LOAD_UOP]], [GOOD.relocations[0]]
    for turn in range(turns):
        body = list(GOOD.instructions[LOAD_INP:FINISH])
        if waiting and turn:
            body[0] = replace(body[0], tokens=Tokens(pop_next=True))
        if waiting and turn < turns - 1:
            gemm = GEMM - LOAD_INP
            body[gemm] = replace(body[gemm], tokens=Tokens(pop_prev=True, push_prev=True))
        relocations += [(number + len(instructions) - LOAD_INP, buffer) for number, buffer in GOOD.relocations[1:]]
        instructions += body
    instructions.append(GOOD.instructions[FINISH])
    return replace(GOOD, instructions=tuple(instructions), relocations=tuple(relocations))


def test_a_long_stream_takes_milliseconds():
    data = repeated(700).encoded()
    verify(BLOB)  # the library is loaded
    start = time.perf_counter()
    verify(data)
    assert time.perf_counter() - start < 0.1  # 2 ms where nothing else runs


# --- the bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 7, 20, 47, HEADER, HEADER + 3, INSTRUCTIONS + 5, len(BLOB) - 1])
def test_cut(size):
    refused(BLOB[:size], "was cut" if size >= HEADER else "not a VTA stream")


def test_too_long():
    refused(BLOB + b"\0", f"should have {len(BLOB)} bytes and has {len(BLOB) + 1}$")


@pytest.mark.parametrize("number", [44, HEADER, INSTRUCTIONS + 3, len(BLOB) - 1])
def test_damaged(number):
    data = bytearray(BLOB)
    data[number] ^= 0x10
    refused(bytes(data), "checksum is wrong")


def test_a_wrong_checksum():
    data = bytearray(BLOB)
    data[40] ^= 1
    refused(bytes(data), "checksum is wrong")


@pytest.mark.parametrize(
    ("number", "value", "cause"),
    [
        (0, ord("X"), "not a VTA stream"),
        (7, 2, "version 2 of the format"),
        (8, 3, "no revision 3"),
        (12, 4, "LOG_INP_WIDTH is 4"),
        (16, 9, "LOG_BLOCK is 9"),
        (21, 1, "unused bytes"),
        (24, 200, "should have"),
        (39, 255, "should have 34"),
        (44, 1, "unused bytes"),
        (HEADER, 5, "buffer 0 of the stream has no memory"),
        (HEADER + 1, 2, "buffer 0 of the stream has no memory and direction"),
        (HEADER + 2, 1, "buffer 0 of the stream has no memory"),
        (INSTRUCTIONS, 7, "instruction 0 .*opcode 7 is unknown"),
        (INSTRUCTIONS + 7, 0x80, "instruction 0 .*mean nothing"),
    ],
)
def test_tampered_with_a_mended_checksum(number, value, cause):
    data = bytearray(BLOB)
    data[number] = value
    refused(mended(data), cause)


def test_an_operation_that_the_fpga_has_not():
    refused(changed(ALU, op=AluOp.MUL), f"instruction {ALU} .*no MUL")


@pytest.mark.parametrize("shift", [16, 31, -17])
def test_shifts_that_do_not_fit(shift):
    refused(changed(ALU, imm=shift), f"shifts by {shift}")


@pytest.mark.parametrize("shift", [15, -16])
def test_shifts_that_do(shift):
    verify(changed(ALU, imm=shift).encoded())


# --- what is where ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "fields", "cause"),
    [
        (LOAD_INP, {"sram_base": 2045}, "INP elements 2045 to 2048 are outside of its 2048"),
        (LOAD_INP, {"y_size": 513, "x_stride": 0}, "INP elements 0 to 2051"),
        (LOAD_INP, {"sram_base": 2043, "x_pad_1": 2}, "INP elements 2043 to 2048"),
        (LOAD_INP, {"sram_base": 2040, "y_pad_0": 1, "y_pad_1": 1}, "INP elements 2040 to 2051"),
        (LOAD_WGT, {"sram_base": 1024}, "WGT element 1024"),
        (LOAD_ACC, {"sram_base": 2045}, "ACC elements 2045 to 2048"),
        (LOAD_UOP, {"sram_base": 8192}, "UOP element 8192"),
        (STORE, {"sram_base": 2045}, "OUT elements 2045 to 2048"),
        (GEMM, {"iter_in": 2049, "src_factor_in": 0}, "dst gets to ACC element 2048"),
        (GEMM, {"iter_out": 2, "dst_factor_out": 2045}, "dst gets to ACC element 2048"),
        (GEMM, {"iter_out": 2, "dst_factor_out": 4, "src_factor_out": 2047}, "src gets to INP element 2050"),
        (GEMM, {"iter_in": 3, "wgt_factor_in": 1023}, "wgt gets to WGT element 2046"),
        (ALU, {"iter_in": 2049}, "dst gets to ACC element 2048"),
        (ALU, {"iter_out": 3, "src_factor_out": 1024}, "src gets to ACC element 2048"),
        (LOAD_INP, {"dram_base": 1}, "elements up to 5 of buffer 0, which has 4"),
        (LOAD_INP, {"dram_base": 2**32 - 1}, "elements up to 4294967299 of buffer 0"),
        (LOAD_INP, {"y_size": 2, "x_stride": 1}, "elements up to 5 of buffer 0"),
        (LOAD_INP, {"y_size": 3, "x_size": 1, "x_stride": 60000}, "elements up to 120001 of buffer 0"),
        (LOAD_UOP, {"x_size": 2}, "elements up to 2 of the micro-ops, which has 1"),
        (STORE, {"dram_base": 1}, "elements up to 5 of buffer 3"),
        (STORE, {"y_size": 2, "x_size": 2, "x_stride": 3}, "elements up to 5 of buffer 3"),
        (LOAD_WGT, {"x_pad_0": 1}, "without padding"),
        (LOAD_UOP, {"y_pad_0": 1}, "without padding"),
        (LOAD_UOP, {"y_size": 2}, "one row"),
        (WAIT, {"x_pad_0": 1}, "loads nothing and pads it"),
        (LOAD_INP, {"memory": Memory.WGT}, "buffer 0 is for INP"),
        (STORE, {"memory": Memory.ACC}, "only OUT can be stored"),
        (GEMM, {"uop_end": 2}, "UOP element 1 was not loaded"),
        (GEMM, {"uop_bgn": 8191, "uop_end": 8193}, "UOP elements 8191 to 8192 are outside"),
        (GEMM, {"src_factor_in": 2}, "INP element 4 is read and nothing was put there"),
        (GEMM, {"wgt_factor_in": 1}, "WGT element 1 is read"),
        (ALU, {"use_imm": False, "src_factor_in": 2}, "ACC element 4 is read"),
        (STORE, {"sram_base": 1}, "OUT element 4 holds no result"),
    ],
)
def test_accesses(number, fields, cause):
    refused(changed(number, **fields), f"instruction {number} .*{cause}")


def test_a_store_before_anything_was_computed():
    order = (LOAD_UOP, LOAD_ACC, STORE, WAIT, FINISH)
    refused(edited({1: {"tokens": Tokens(push_next=True)}}, with_order(*order)), "instruction 2 .*holds no result")


def test_a_reset_spoils_what_out_held():
    reset = replace(GOOD.instructions[GEMM], reset=True, tokens=Tokens())
    stream = inserted(ALU, reset)
    verify(stream.encoded())
    refused(edited({ALU + 1: {"iter_in": 3}}, stream), "OUT element 3 holds no result")


def test_sums_of_nothing_may_be_made_but_not_stored():
    changed_stream = changed(GEMM, iter_in=5, src_factor_in=0)
    verify(changed_stream.encoded())
    changed_stream = edited({ALU: {"iter_in": 5}, STORE: {"x_size": 5}}, changed_stream)
    refused(
        replace(changed_stream, buffers=(*changed_stream.buffers[:3], Buffer(Memory.OUT, written=True, elements=5))),
        "OUT element 4 holds no result",
    )


def test_directions():
    to_input = replace(GOOD, relocations=(*GOOD.relocations[:4], (STORE, 0)))
    refused(to_input, f"instruction {STORE} .*buffer 0 is for INP")
    read_only = replace(GOOD, buffers=(*GOOD.buffers[:3], Buffer(Memory.OUT, written=False, elements=4)))
    refused(read_only, "buffer 3 is for OUT and the wrong way round")
    output_buffers = replace(GOOD, buffers=(Buffer(Memory.INP, written=True, elements=4), *GOOD.buffers[1:]))
    refused(output_buffers, "buffer 0 is for INP and the wrong way round")


@pytest.mark.parametrize(
    ("relocations", "cause"),
    [
        (GOOD.relocations[:4], f"instruction {STORE} .*no relocation names its buffer"),
        (GOOD.relocations[1:], "instruction 0 .*no relocation"),
        (GOOD.relocations[::-1], "instruction 0 .*no relocation"),
        ((*GOOD.relocations, (WAIT, 0)), f"instruction {WAIT} .*has a relocation"),
        ((*GOOD.relocations, (99, 0)), "relocation 5 of the stream is out of order"),
        ((*GOOD.relocations, GOOD.relocations[-1]), "relocation 5 of the stream"),
        ((*GOOD.relocations[:4], (STORE, 9)), "buffer 9 is not one of the stream's"),
        (((LOAD_UOP, 0), *GOOD.relocations[1:]), "micro-ops come from the stream itself"),
        ((GOOD.relocations[0], (LOAD_INP, 0xFFFFFFFF), *GOOD.relocations[2:]), "buffer 4294967295 is not one"),
    ],
)
def test_relocations(relocations, cause):
    refused(replace(GOOD, relocations=tuple(relocations)), cause)


# --- time ------------------------------------------------------------------------------------------------------------


def with_uops(stream: Stream, destinations: list[int]) -> Stream:
    uops = tuple(Uop(dst, 0, 0) for dst in destinations)
    return edited({LOAD_UOP: {"x_size": len(uops)}}, replace(stream, uops=uops))


def test_loops_without_an_end():
    endless = {"iter_out": 16383, "iter_in": 16383, "dst_factor_in": 0, "src_factor_in": 0, "uop_end": 8}
    start = time.perf_counter()
    refused(with_uops(changed(GEMM, **endless), list(range(8))), f"instruction {GEMM} .*too many steps")
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    ("fields", "uops"),
    [
        ({"iter_out": 2, "iter_in": 3}, [0]),  # the outer loop comes back after three steps
        ({"dst_factor_in": 0}, [0]),
        ({"iter_out": 4, "iter_in": 1}, [0]),
        ({"iter_in": 1, "uop_end": 4}, [0, 1, 2, 0]),
        ({"iter_in": 2, "dst_factor_in": 0, "uop_end": 3}, [0, 1, 2]),
        ({"iter_in": 3, "dst_factor_in": 1, "uop_end": 2}, [1, 0]),  # the next iteration's second is the first again
    ],
)
def test_writes_that_follow_too_soon(fields, uops):
    close = with_uops(changed(GEMM, **{"src_factor_in": 0, **fields}), uops)
    refused(close, f"instruction {GEMM} .*within 4 steps")


def with_operands(uops: list[tuple[int, int]], revision: Revision = Revision.V2020_12, **fields: int) -> Stream:
    """Return a stream whose ALU operation adds elements of ACC: dst and src of each micro-op, and its loops."""
    loops = {"dst_factor_in": 0, "iter_in": 1, "use_imm": False, "imm": 0, "op": AluOp.ADD, "uop_bgn": 1}
    changed_stream = edited(
        {
            LOAD_UOP: {"x_size": 1 + len(uops)},
            LOAD_ACC: {"x_size": PIXELS_HELD, "x_stride": PIXELS_HELD},
            ALU: {**loops, "uop_end": 1 + len(uops), **fields},
        },
        vta_streams.stream(revision=revision),
    )
    buffers = [
        replace(buffer, elements=PIXELS_HELD) if buffer.memory is Memory.ACC else buffer
        for buffer in changed_stream.buffers
    ]
    added = tuple(Uop(dst, src, 0) for dst, src in uops)
    return replace(changed_stream, uops=(*changed_stream.uops, *added), buffers=tuple(buffers))


PIXELS_HELD = 64
FAR = [(0, 40), (1, 41), (2, 42), (3, 43)]


@pytest.mark.parametrize("revision", list(Revision))
@pytest.mark.parametrize(
    ("uops", "loops", "apart"),
    [
        ([(0, 40), (1, 0), (2, 42), (3, 43)], {}, 1),
        ([(0, 40), (1, 41), (2, 0), (3, 43)], {}, 2),
        ([(0, 40), (1, 41), (2, 42), (3, 0)], {}, 3),
        # The loops bring what is read to what was written: at one of their iterations alone.
        ([(8, 20), (9, 12), (10, 40), (11, 41)], {"iter_in": 5, "dst_factor_in": 5, "src_factor_in": 4}, 1),
        ([(8, 20), (9, 12), (10, 40), (11, 41)], {"iter_out": 5, "dst_factor_out": 5, "src_factor_out": 4}, 1),
        # From one iteration into the next.
        ([(0, 5), (1, 6), (2, 7), (3, 8)], {"iter_in": 2, "dst_factor_in": 8, "src_factor_in": 1}, 2),
        ([(4, 2), (5, 40), (6, 41), (7, 42)], {"iter_in": 2, "dst_factor_in": 8, "src_factor_in": 5}, 1),
        ([(4, 2), (5, 40), (6, 41), (7, 42)], {"iter_out": 2, "dst_factor_out": 8, "src_factor_out": 5}, 1),
        ([(1, 0)], {"iter_in": 6, "dst_factor_in": 1, "src_factor_in": 1}, 1),
        ([(2, 0)], {"iter_in": 6, "dst_factor_in": 1, "src_factor_in": 1}, 2),
        ([(3, 0)], {"iter_in": 6, "dst_factor_in": 1, "src_factor_in": 1}, 3),
        ([(1, 0)], {"iter_out": 6, "dst_factor_out": 1, "src_factor_out": 1}, 1),
        ([(8, 1)], {"iter_out": 3, "iter_in": 2, "dst_factor_in": 1, "dst_factor_out": 9, "src_factor_in": 20,
                     "src_factor_out": 7}, 2),
        # Far enough, or the very step that writes.
        (FAR, {}, 0),
        ([(0, 0), (1, 1), (2, 2), (3, 3)], {}, 0),
        ([*FAR, (4, 0)], {}, 0),
        ([(4, 0)], {"iter_in": 6, "dst_factor_in": 1, "src_factor_in": 1}, 0),
        ([(0, 1)], {"iter_in": 6, "dst_factor_in": 1, "src_factor_in": 1}, 0),
        ([(1, 0), (2, 1), (3, 2), (4, 3)], {"use_imm": True, "imm": 1, "iter_in": 2, "dst_factor_in": 8}, 0),
    ],
)  # fmt: skip
def test_operands_that_were_just_written(uops, loops, apart, revision):
    stream = with_operands(uops, revision, **loops)
    if apart:
        refused(stream, f"instruction {ALU} .*reads an ACC element within 4 steps of writing it")
    else:
        verify(stream.encoded())
    sizes = [buffer.elements * stream.config.element_bytes(buffer.memory) for buffer in stream.buffers]
    arrays = [np.zeros(size, np.int8) for size in sizes]
    if apart in {1, 2}:
        with pytest.raises(VerificationError, match="that one of the 2 steps before writes"):
            Simulator(revision=revision).run(stream, arrays)
    else:
        Simulator(revision=revision).run(stream, arrays)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=5),
    st.tuples(st.integers(1, 4), st.integers(1, 5)),
    st.tuples(*[st.integers(0, 6)] * 4),
)
def test_operands_are_followed_through_all_loops(uops, iterations, factors):
    """What the check works out is what one finds who goes through all steps."""
    outs, ins = iterations
    dst_out, dst_in, src_out, src_in = factors
    order = [
        (dst + out * dst_out + inner * dst_in, src + out * src_out + inner * src_in)
        for out in range(outs) for inner in range(ins) for dst, src in uops
    ]  # fmt: skip

    def near(which: int) -> bool:
        return any(
            order[index][which] in {dst for dst, _ in order[max(0, index - 3) : index]} for index in range(len(order))
        )

    stream = with_operands(
        uops, iter_out=outs, iter_in=ins, dst_factor_out=dst_out, dst_factor_in=dst_in, src_factor_out=src_out,
        src_factor_in=src_in,
    )  # fmt: skip
    if near(0):
        refused(stream, "writes an ACC element twice")
    elif near(1):
        refused(stream, "reads an ACC element within 4 steps")
    else:
        verify(stream.encoded())


def test_the_operands_of_a_long_operation_take_no_time():
    """What it costs to look depends on the micro-ops and one of the loops."""
    uops = [(600 + number, 3 * number % 560) for number in range(400)]
    start = time.perf_counter()
    loops = {"iter_out": 1000, "dst_factor_out": 1, "src_factor_out": 0, "iter_in": 1500, "dst_factor_in": 0}
    refused(with_operands(uops, **loops, src_factor_in=0), "nothing was put there")
    assert time.perf_counter() - start < 2.0


def test_writes_that_are_just_far_enough_apart():
    verify(changed(GEMM, iter_out=9, src_factor_out=0).encoded())


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "tokens", "cause"),
    [
        (LOAD_INP, Tokens(pop_prev=True), f"instruction {LOAD_INP}: pop_prev is set"),
        (LOAD_INP, Tokens(push_prev=True), f"instruction {LOAD_INP}: push_prev"),
        (STORE, Tokens(pop_prev=True, push_prev=True, pop_next=True), f"instruction {STORE}: pop_next"),
        (STORE, Tokens(pop_prev=True, push_prev=True, push_next=True), f"instruction {STORE}: push_next"),
        (FINISH, Tokens(pop_next=True), f"instruction {FINISH}: FINISH passes no tokens"),
        (LOAD_WGT, Tokens(), f"instruction {GEMM} waits for a token that never comes"),
        (ALU, Tokens(), f"instruction {STORE} waits for a token"),
        (GEMM, Tokens(), "tokens that no instruction takes are left in l2g"),
        (GEMM, Tokens(pop_prev=True, push_prev=True), "left in g2l"),
        (WAIT, Tokens(), "left in s2g"),
    ],
)
def test_tokens(number, tokens, cause):
    refused(changed(number, tokens=tokens), cause)


def test_an_end_that_waits_for_nobody():
    store = {STORE: {"tokens": Tokens(pop_prev=True)}, WAIT: {"tokens": Tokens()}}
    refused(edited(store), "FINISH does not wait for the last STORE")
    load = {LOAD_WGT: {"tokens": Tokens()}, GEMM: {"tokens": Tokens()}}
    refused(edited(load), "FINISH does not wait for the last LOAD")


@pytest.mark.parametrize(("loads", "runs"), [(510, True), (600, False)])
def test_a_queue_of_commands_has_512_places(loads, runs):
    """LOADs wait for an instruction behind them: beyond so many of them, it is never fetched."""
    nothing = replace(GOOD.instructions[LOAD_INP], x_size=0, x_stride=0)
    waiting = replace(nothing, tokens=Tokens(pop_next=True))
    release = replace(GOOD.instructions[WAIT], tokens=Tokens(push_prev=True))
    stream = inserted(LOAD_WGT, waiting, *[nothing] * loads, release)
    if runs:
        verify(stream.encoded())
    else:
        refused(stream, f"instruction {LOAD_WGT} waits for a token")


@pytest.mark.parametrize(
    ("stream", "cause"),
    [
        (repeated(2, waiting=False), "INP element 0 is overwritten while the compute stage may still read it"),
        (
            edited({GEMM: {"tokens": Tokens()}, ALU: {"tokens": Tokens(pop_prev=True, push_next=True)}}),
            f"instruction {GEMM} .*INP element 0 is read before the load stage has surely written it",
        ),
        (
            edited({GEMM: {"tokens": Tokens(pop_prev=True, push_next=True)}, ALU: {"tokens": Tokens()}}),
            f"instruction {STORE} .*OUT element 0 is read before the compute stage has surely written it",
        ),
        (
            inserted(WAIT, replace(GOOD.instructions[GEMM], tokens=Tokens())),
            f"instruction {WAIT} .*OUT element 0 is overwritten while the store stage may still read it",
        ),
    ],
)
def test_two_stages_at_one_element(stream, cause):
    refused(stream, cause)


FLAGS = {"pop_prev": -1, "pop_next": 1, "push_prev": -1, "push_next": 1}


def token_pairs(stream: Stream) -> list[tuple[tuple[int, str], tuple[int, str]]]:
    """List who pushes and who pops each token: number and flag of either."""
    queues: dict[tuple[int, int], tuple[list[tuple[int, str]], list[tuple[int, str]]]] = {}
    for number, instruction in enumerate(stream.instructions):
        loads = isinstance(instruction, Load) and instruction.memory in {Memory.INP, Memory.WGT}
        stage = 2 if isinstance(instruction, Store) else 0 if loads else 1
        for flag, side in FLAGS.items():
            if getattr(instruction.tokens, flag):
                ends = (stage, stage + side) if flag.startswith("push") else (stage + side, stage)
                queues.setdefault(ends, ([], []))[flag.startswith("pop")].append((number, flag))
    return [pair for pushes, pops in queues.values() for pair in zip(pushes, pops, strict=True)]


def test_every_token_of_a_kernel_is_needed():
    layer = Conv2d(1, 4, 4, 32, 64, (3, 3), (1, 1), (1, 1, 1, 1), shift=7)
    choice = next(candidate for candidate in kernels.candidates(layer, DEFAULT) if candidate.oc_threads == 2)
    stream = kernels.stream(layer, choice, DEFAULT, Revision.V2020_12)
    for pair in token_pairs(stream):
        tokens = ((number, replace(stream.instructions[number].tokens, **{flag: False})) for number, flag in pair)
        without = edited({number: {"tokens": remaining} for number, remaining in tokens}, stream)
        refused(without, "a token is missing|FINISH does not wait")


def test_nothing_at_all():
    refused(replace(GOOD, instructions=(), relocations=()), "does not end with FINISH")
    refused(with_order(*range(FINISH)), "does not end with FINISH")
    refused(with_order(FINISH, *range(FINISH + 1)), "instruction 0 .*not the last instruction")


def test_padding_of_acc_loads_needs_the_newer_machine():
    """It was let through for the older one, which the simulator refuses: `make fuzz` found it."""
    changes = {LOAD_ACC: {"x_size": 3, "x_stride": 3, "x_pad_0": 1}}
    older, newer = (edited(changes, vta_streams.stream(revision=revision)) for revision in Revision)
    verify(newer.encoded())
    refused(older, "padding of ACC loads is broken before revision 2020-12")


# --- anything --------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(8, len(BLOB) - 1), st.integers(0, 7)), min_size=1, max_size=3))
def test_what_is_let_through_runs_on_the_simulator(flips):
    """The simulator has its own checks, of each access: it must find nothing that was let through."""
    data = bytearray(BLOB)
    for position, bit in flips:
        data[position] ^= 1 << bit
    data = mended(data)
    try:
        verify(data)
    except VerificationError:
        return
    stream = Stream.decode(data)
    sizes = [buffer.elements * stream.config.element_bytes(buffer.memory) for buffer in stream.buffers]
    if sum(sizes) < 1 << 24:
        Simulator(stream.config, stream.revision).run(stream, [np.zeros(size, np.int8) for size in sizes])
