"""Kernels for VTA on the simulator: exact under every order of the stages, fast, and wrong without their tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.vta_layers import RESNET, reference, task, tensors
from toolchain.backends.vta.codegen.kernels import Choice, candidates, stream
from toolchain.backends.vta.codegen.layers import Conv2d, Pool
from toolchain.backends.vta.device import native
from toolchain.backends.vta.device.devices import Profile
from toolchain.backends.vta.device.native import verify
from toolchain.backends.vta.device.simulator import Policy, Simulator
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.isa.instructions import Gemm, Load, Memory, Store, Tokens
from toolchain.backends.vta.isa.stream import Stream
from toolchain.errors import VerificationError

ORDERS = [(Policy.TIMED, 0), (Policy.LOAD_FIRST, 0), (Policy.STORE_FIRST, 0), (Policy.RANDOM, 1), (Policy.RANDOM, 2)]


@pytest.fixture(scope="module", autouse=True)
def _library():
    native.loaded()


def ran(layer: Conv2d, compiled_stream: Stream, order: tuple[Policy, int] = ORDERS[0], arguments=None) -> np.ndarray:
    arguments = arguments or tensors(layer)
    arguments[-1][:] = 77
    Simulator(compiled_stream.config, compiled_stream.revision).run(
        compiled_stream, arguments, policy=order[0], seed=order[1]
    )
    return arguments[-1]


def assert_exact(layer: Conv2d, compiled_stream: Stream, orders=tuple(ORDERS)) -> None:
    arguments = tensors(layer)
    expected = reference(layer, arguments)
    for order in orders:
        np.testing.assert_array_equal(ran(layer, compiled_stream, order, arguments), expected)


# --- results --------------------------------------------------------------------------------------------------------


def smaller(shape: tuple[int, ...]) -> Conv2d:
    """Return a task of ResNet-18 with a quarter of its channels and a half of its larger pictures."""
    size, inputs, outputs, *rest = shape
    return task(min(size, 28), inputs // 4, outputs // 4, *rest)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("revision", Revision)
def test_channels_that_are_shifted_by_themselves(alone, bias, revision):
    layer = Conv2d(
        1, 9, 8, 48, 48, (3, 3), padding=(1, 1, 1, 1), shift=3, bias=bias, alone=alone, channel_shifts=True
    )  # fmt: skip
    for choice in candidates(layer)[::12]:
        assert_exact(layer, stream(layer, choice, revision=revision))


@pytest.mark.parametrize("pad", [-128, 5])
@pytest.mark.parametrize("revision", Revision)
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"alone": True},
        {"stride": (2, 1), "padding": (1, 0, 2, 1)},
        {"kernel": (1, 1), "stride": (2, 2), "padding": (2, 2, 1, 3)},  # a tile may be only padding
        {"kernel": (3, 1), "padding": (2, 0, 1, 0)},
        {"residual_shift": 7},
        {"channel_shifts": True, "bias": False},
    ],
    ids=str,
)
def test_padding_with_another_byte_than_zero(pad, revision, change):
    layer = replace(Conv2d(2, 9, 8, 48, 48, (3, 3), padding=(1, 1, 1, 1), shift=3, pad=pad), **change)
    for choice in candidates(layer)[::24]:
        compiled_stream = stream(layer, choice, revision=revision)
        verify(compiled_stream.encoded())
        assert_exact(layer, compiled_stream)


def test_rows_between_padding_are_loaded_without_it_where_it_lies_there_already():
    layer = Conv2d(1, 8, 8, 64, 16, (3, 3), padding=(1, 1, 1, 1), shift=8, pad=-128)
    compiled_stream = stream(layer, Choice(1, 8, 8, 1, 1, 1, 2))
    loads = [
        (buffer, compiled_stream.instructions[index].x_size)
        for index, buffer in compiled_stream.relocations
        if isinstance(compiled_stream.instructions[index], Load)
        and compiled_stream.instructions[index].memory is Memory.INP
    ]
    around = [(3, 11), *[(3, 2)] * 7, (3, 11)]
    assert loads == 2 * [*around, *[(0, 8)] * 8] + 2 * [(0, 8)] * 8


def test_other_padding_costs_next_to_nothing():
    for shape in (RESNET[0][0], RESNET[6][0]):
        layer = replace(task(*shape), bias=True)
        zeros, filled = (
            min(Simulator().cycles(stream(case, choice), Profile.HLS_PYNQ).cycles for choice in candidates(case)[:3])
            for case in (layer, replace(layer, pad=-128))
        )
        assert filled < 1.01 * zeros


@pytest.mark.parametrize("shape", [shape for shape, _ in RESNET])
@pytest.mark.parametrize("slots", [1, 2])
def test_small_layers_of_resnet(shape, slots):
    layer = smaller(shape)
    choice = candidates(layer)[0]
    few = replace(choice, h_threads=min(slots, choice.h_threads), oc_threads=min(slots, choice.oc_threads))
    assert_exact(layer, stream(layer, few))


@pytest.mark.parametrize("shape", [RESNET[4][0], RESNET[7][0]])
def test_layers_of_resnet(shape):
    layer = replace(task(*shape), bias=True)
    compiled_stream = stream(layer, candidates(layer)[0])
    verify(compiled_stream.encoded())
    assert_exact(layer, compiled_stream, ORDERS[:1])


POOLED = [
    Conv2d(1, 8, 8, 16, 16, (3, 3), padding=(2, 2, 1, 1), shift=4, pool=Pool((3, 3), (2, 2), (1, 1, 0, 0))),
    Conv2d(1, 4, 4, 16, 16, padding=(1, 1, 0, 0), shift=4, pool=Pool((3, 3), (2, 2), (1, 1, 0, 0))),
    Conv2d(1, 8, 8, 32, 32, padding=(1, 1, 1, 1), shift=4, pool=Pool((3, 3), (1, 1), (1, 1, 1, 1))),
    Conv2d(2, 9, 8, 32, 32, (3, 2), stride=(2, 1), shift=14, bias=False, low=0, pool=Pool((2, 2), (2, 2))),
    Conv2d(1, 9, 9, 16, 16, padding=(0, 0, 2, 1), bias=False, pool=Pool((3, 2), (2, 2), (0, 0, 2, 1))),
    Conv2d(1, 9, 8, 32, 32, (3, 3), shift=3, alone=True, channel_shifts=True, pool=Pool((2, 3), (1, 2))),
]


@pytest.mark.parametrize("layer", POOLED, ids=["edges", "two rows", "all places", "few", "behind", "apart"])
@pytest.mark.parametrize("revision", Revision)
def test_maxima_of_sums(layer, revision):
    choices = candidates(layer)
    for choice in choices[:: max(1, len(choices) // 4)]:
        compiled_stream = stream(layer, choice, revision=revision)
        verify(compiled_stream.encoded())
        assert_exact(layer, compiled_stream)


def test_micro_ops_that_do_not_fit_together_take_less_room_each():
    layer = Conv2d(
        1, 115, 115, 16, 64, (4, 4), padding=(1, 1, 0, 0), shift=9, low=0, pool=Pool((3, 3), (2, 2), (1, 1, 0, 0))
    )  # fmt: skip
    compiled_stream = stream(layer, Choice(1, 7, 8, 1, 2, 1, 2))
    loads = [
        instruction
        for instruction in compiled_stream.instructions
        if isinstance(instruction, Load) and instruction.memory is Memory.UOP and instruction.x_size
    ]
    assert sum(load.x_size for load in loads) <= compiled_stream.config.uop_depth
    assert_exact(layer, compiled_stream, ORDERS[:1])


def test_the_program_ends_after_rows_that_nothing_reads():
    layer = Conv2d(2, 3, 3, 16, 16, (2, 1), stride=(3, 1), padding=(0, 0, 2, 1), bias=False, pad=-128)
    compiled_stream = stream(layer, Choice(1, 2, 4, 1, 1, 1, 1))
    verify(compiled_stream.encoded())
    assert_exact(layer, compiled_stream)


@st.composite
def layers(draw) -> Conv2d:
    kernel = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    padding = draw(st.tuples(*4 * [st.integers(0, 4)]))
    height, width = (
        draw(st.integers(max(1, kernel[axis] - padding[axis] - padding[axis + 2]), 10)) for axis in range(2)
    )
    return Conv2d(
        draw(st.integers(1, 2)),
        height,
        width,
        16 * draw(st.integers(1, 4)),
        16 * draw(st.integers(1, 4)),
        kernel,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        padding,
        draw(st.integers(0, 20)),
        draw(st.sampled_from([-128, -7, 0])),
        draw(st.sampled_from([127, 63])),
        draw(st.booleans()),
        draw(st.sampled_from([None, None, 0, 6, 7, 15])),
        pad=draw(st.sampled_from([0, 0, -128, 5])),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layers().filter(lambda layer: layer.reads_input), st.data())
def test_any_layer(layer, data):
    choices = candidates(layer)
    for slots in (1, 2):
        fitting = [choice for choice in choices if max(choice.h_threads, choice.oc_threads) == slots] or choices
        compiled_stream = stream(layer, data.draw(st.sampled_from(fitting)))
        verify(compiled_stream.encoded())
        assert_exact(layer, compiled_stream)


@pytest.mark.parametrize("revision", Revision)
def test_another_machine(revision):
    config = VtaConfig(log_uop_buff_size=9, log_inp_buff_size=11, log_wgt_buff_size=15, log_acc_buff_size=12)
    layer = Conv2d(1, 9, 8, 48, 32, (3, 3), padding=(1, 1, 1, 1), shift=9, low=0, residual_shift=8)
    for choice in candidates(layer, config)[::12]:
        compiled_stream = stream(layer, choice, config, revision)
        verify(compiled_stream.encoded())
        assert_exact(layer, compiled_stream)


def test_sums_that_leave_32_bits():
    layer = Conv2d(1, 3, 3, 16, 16, shift=3)
    arguments = tensors(layer)
    arguments[2][:] = np.int32(2**31 - 1)
    compiled_stream = stream(layer, candidates(layer)[0])
    np.testing.assert_array_equal(ran(layer, compiled_stream, ORDERS[0], arguments), reference(layer, arguments))


def test_a_dense_layer():
    layer = Conv2d(3, 1, 1, 512, 1008, shift=10)
    compiled_stream = stream(layer, candidates(layer)[0])
    verify(compiled_stream.encoded())
    assert_exact(layer, compiled_stream, ORDERS[:2])


# --- speed ----------------------------------------------------------------------------------------------------------


@cache
def best(shape: tuple[int, ...], profile: Profile):
    """Return the statistics of the fastest of the first candidates."""
    simulator, layer = Simulator(), task(*shape)
    runs = [simulator.cycles(stream(layer, choice), profile) for choice in candidates(layer)[:4]]
    return min(runs, key=lambda run_result: run_result.cycles)


@pytest.mark.parametrize("shape", [shape for shape, _ in RESNET])
def test_the_array_is_busy(shape):
    used = best(shape, Profile.IDEAL).utilisation
    gemms = shape[1] // 16 * shape[3] ** 2
    bound = gemms / (gemms + 1 + 3 * 2)  # a reset, and three ALU operations of two cycles
    assert bound * 0.9 < used <= bound


@pytest.mark.parametrize(("profile", "maximum"), [(Profile.IDEAL, 7.6e6), (Profile.HLS_PYNQ, 7.75e6)])
def test_the_whole_network(profile, maximum):
    assert sum(times * best(shape, profile).cycles for shape, times in RESNET) < maximum


def test_two_slots_overlap():
    layer, simulator = task(*RESNET[6][0]), Simulator()
    choice = Choice(1, 7, 14, 2, 4, 2, 2)
    cycles = [
        simulator.cycles(stream(layer, replace(choice, h_threads=slots, oc_threads=slots)), Profile.IDEAL).cycles
        for slots in (1, 2)
    ]
    assert cycles[1] < 0.8 * cycles[0]


# --- tokens ---------------------------------------------------------------------------------------------------------

QUEUES = ["l2g", "g2l", "g2s", "s2g"]
SENDERS = {"l2g": (0, "push_next"), "g2l": (1, "push_prev"), "g2s": (1, "push_next"), "s2g": (2, "push_prev")}
TAKERS = {"l2g": (1, "pop_prev"), "g2l": (0, "pop_next"), "g2s": (2, "pop_prev"), "s2g": (1, "pop_next")}
TANGLED = Conv2d(1, 12, 12, 64, 64, (3, 3), padding=(1, 1, 1, 1), shift=9)


def stage(instruction) -> int:
    if isinstance(instruction, Store):
        return 2
    return 0 if isinstance(instruction, Load) and instruction.memory in {Memory.INP, Memory.WGT} else 1


def flagged(compiled_stream: Stream, queue: str, ends=(SENDERS, TAKERS)) -> list[list[int]]:
    """Return the instructions that send to a queue, and those that take from it."""
    return [
        [
            index
            for index, instruction in enumerate(compiled_stream.instructions)
            if stage(instruction) == end[queue][0] and getattr(instruction.tokens, end[queue][1])
        ]
        for end in ends
    ]


def without(compiled_stream: Stream, queue: str, which: list[int]) -> Stream:
    """Delete some tokens of a queue, on both of its ends."""
    changed = list(compiled_stream.instructions)
    for end, indices in zip((SENDERS, TAKERS), flagged(compiled_stream, queue), strict=True):
        for index in (indices[n] for n in which):
            tokens = replace(changed[index].tokens, **{end[queue][1]: False})
            changed[index] = replace(changed[index], tokens=tokens)
    return replace(compiled_stream, instructions=tuple(changed))


def caught(layer: Conv2d, compiled_stream: Stream) -> bool:
    """Whether a program is refused or computes something else under any order of the stages."""
    expected = reference(layer, tensors(layer))
    for order in ORDERS:
        try:
            if not np.array_equal(ran(layer, compiled_stream, order), expected):
                return True
        except VerificationError:
            return True
    return False


@cache
def tangled(slots: int) -> Stream:
    return stream(TANGLED, Choice(1, 4, 6, 2, 2, slots, slots))


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("queue", QUEUES)
def test_no_queue_is_idle(queue, slots):
    compiled_stream = tangled(slots)
    assert not caught(TANGLED, compiled_stream)
    sent, received = flagged(compiled_stream, queue)
    assert len(sent) == len(received) > 1
    assert caught(TANGLED, without(compiled_stream, queue, list(range(len(sent)))))


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("slots", [1, 2])
def test_no_token_is_idle(queue, slots):
    compiled_stream = tangled(slots)
    count = len(flagged(compiled_stream, queue)[0])
    chosen = sorted({0, count // 3, count // 2, count - 1})
    missed = [which for which in chosen if not caught(TANGLED, without(compiled_stream, queue, [which]))]
    assert missed == []


def test_a_token_too_few_on_one_side():
    compiled_stream = tangled(2)
    index = flagged(compiled_stream, "l2g")[0][-1]
    changed = list(compiled_stream.instructions)
    changed[index] = replace(changed[index], tokens=Tokens())
    with pytest.raises(VerificationError):
        ran(TANGLED, replace(compiled_stream, instructions=tuple(changed)))


def test_gemm_needs_the_distance():
    """The simulator refuses what the planner avoids: sums of one element in every step."""
    layer = Conv2d(1, 1, 1, 64, 16, shift=8)
    compiled_stream = stream(layer, Choice(tile_ci=4))
    (index,) = [
        number
        for number, instruction in enumerate(compiled_stream.instructions)
        if isinstance(instruction, Gemm) and not instruction.reset
    ]
    gemm = compiled_stream.instructions[index]
    changed = list(compiled_stream.instructions)
    start = gemm.uop_bgn
    changed[index] = replace(gemm, uop_end=start + 1, iter_out=4, src_factor_out=1, wgt_factor_out=1)
    with pytest.raises(VerificationError):
        ran(layer, replace(compiled_stream, instructions=tuple(changed)))
