"""VTA on boards: the driver over a model of the FPGA's blocks, its ways into the kernel, and what TVM calls."""

from __future__ import annotations

import base64
import ctypes
import ctypes.util
import fcntl
import itertools
import json
import os
import platform
import re
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from tests.integration.test_board_server import KINDS, built
from tests.integration.test_board_server import running as serving
from tests.support import vta_harness, vta_layers, vta_streams
from tests.support.parts import require
from tests.support.paths import DATA
from tests.support.vta_harness import Board, HarnessError, call
from toolchain.backends.base import build_plugin
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.simulator import Simulator
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig

PYNQ = 0x43C00000
OLD, NEW = Revision.V2020_07, Revision.V2020_12
REVISIONS = [OLD, NEW]
FAKE_CMA = DATA / "fake_cma.c"
SYNC = b"\xaa\x99\x55\x66"
WORDS = b"\xff" * 32 + SYNC + bytes(range(64))
NO_CMA, NO_XRT = b"no-libcma.so", b"no-libxrt_core.so"
FAKE_XRT = DATA / "fake_xrt.cc"
SWAPPED = b"".join(WORDS[first : first + 4][::-1] for first in range(0, len(WORDS), 4))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return vta_harness.build(tmp_path_factory.mktemp("harness"))


@pytest.fixture
def board(library):
    """Return a function that makes a board, which is closed in the end."""
    opened = []

    def make(*arguments, **faults) -> Board:
        opened.append(Board(library, *arguments, **faults))
        return opened[-1]

    yield make
    for fpga in opened:
        fpga.close()


def ready(fpga: Board) -> Board:
    """Program a board and forget what that did."""
    fpga.init()
    fpga.log()
    return fpga


# --- a stream on the FPGA --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [pytest.param(OLD, marks=pytest.mark.nightly), NEW])
@pytest.mark.parametrize("name", ["pynq-z1", "ultra96"])
def test_a_stream_runs(board, name, revision):
    arrays = vta_streams.arrays()
    ready(board(name, revision.value)).run(vta_streams.stream(revision=revision), arrays.all())
    np.testing.assert_array_equal(arrays.y, arrays.expected())


def test_registers_are_written_in_their_order(board):
    fpga = ready(board())
    fpga.run(vta_streams.stream(), vta_streams.arrays().all())
    log = fpga.log()
    memory = 0x18000000
    assert [line for line in log if "=" in line] == [
        f"0x43c00010 = {9:#x}",
        f"0x43c00018 = {memory:#x}",
        "0x43c01010 = 0x0",
        "0x43c01018 = 0x0",
        "0x43c02020 = 0x0",
        "0x43c02028 = 0x0",
        "0x43c03010 = 0x0",
        "0x43c00000 = 0x1",
        "0x43c01000 = 0x81",
        "0x43c02000 = 0x81",
        "0x43c03000 = 0x81",
    ]
    # Instructions, uops and three buffers, a page each. The fourth is overwritten: nobody copies it there.
    assert log[0] == f"flushed 0 {4 * 4096 + 256}"


def test_the_ultra96_has_them_elsewhere(board):
    fpga = ready(board("ultra96"))
    fpga.run(vta_streams.stream(), vta_streams.arrays().all())
    log = fpga.log()
    assert "0xa0003000 = 0x81" in log
    assert log[-1] == f"invalidated {5 * 4096} 64"  # the last of the buffers comes back


def test_of_a_coherent_fpga_nothing_is_invalidated(board):
    """Its results are in the caches, and to invalidate them is to throw them away."""
    fpga, arrays = ready(board()), vta_streams.arrays()
    fpga.run(vta_streams.stream(), arrays.all())
    assert not [line for line in fpga.log() if line.startswith("invalidated")]
    np.testing.assert_array_equal(arrays.y, arrays.expected())


def test_a_driver_that_invalidates_loses_what_a_coherent_fpga_wrote(board):
    with pytest.raises(HarnessError, match="stored nothing where either revision"):
        board("ultra96", coherent=True).init()


def test_a_driver_that_does_not_sees_nothing_of_one_that_is_not(board):
    with pytest.raises(HarnessError, match="stored nothing where either revision"):
        board("pynq-z1", coherent=False).init()


@pytest.mark.parametrize("name", ["pynq-z1", "ultra96"])
def test_memory_that_the_kernel_calls_coherent_needs_nothing(board, name):
    fpga, arrays = ready(board(name, coherent=True, kernel_coherent=True)), vta_streams.arrays()
    fpga.run(vta_streams.stream(), arrays.all())
    np.testing.assert_array_equal(arrays.y, arrays.expected())
    assert not [line for line in fpga.log() if "flushed" in line or "invalidated" in line]


def test_what_a_stream_does_not_write_stays(board):
    arrays = vta_streams.arrays()
    stream_edited = vta_streams.edited({vta_streams.STORE: {"x_size": 2}})
    ready(board()).run(stream_edited, arrays.all())
    np.testing.assert_array_equal(arrays.y[:2], arrays.expected()[:2])
    assert (arrays.y[2:] == 77).all()


def test_tensors_that_change_between_two_runs(board):
    fpga, first = ready(board()), vta_streams.arrays(1)
    fpga.run(vta_streams.stream(), first.all())
    first.w[...] = 3
    fpga.run(vta_streams.stream(), first.all())
    np.testing.assert_array_equal(first.y, first.expected())


def test_memory_grows_with_the_streams_and_their_addresses_follow(board):
    fpga, small = ready(board()), vta_streams.arrays()
    layer = Conv2d(1, 14, 14, 64, 64, (3, 3), (1, 1), (1, 1, 1, 1), shift=9)
    stream = kernels.stream(layer, kernels.candidates(layer, DEFAULT)[0], DEFAULT, NEW)
    random = np.random.default_rng(0)
    sizes = [buffer.elements * DEFAULT.element_bytes(buffer.memory) for buffer in stream.buffers]
    tensors = [random.integers(-100, 100, size, dtype=np.int8) for size in sizes]
    expected = [tensor.copy() for tensor in tensors]
    Simulator().run(stream, expected)
    for _ in range(2):
        fpga.run(vta_streams.stream(), small.all())
        fpga.run(stream, tensors)
    np.testing.assert_array_equal(small.y, small.expected())
    np.testing.assert_array_equal(tensors[-1], expected[-1])
    assert len([line for line in fpga.log() if line.startswith("allocated")]) == 1


def test_a_stream_is_run_by_its_content_not_by_its_place(board):
    """Two streams with the same header, checksum and all, differ in a way that only a comparison finds."""
    fpga, arrays = ready(board()), vta_streams.arrays()
    text = base64.b64encode(vta_streams.stream().encoded()).decode()
    fpga.run(text, arrays.all())
    changed = text[:-8] + ("A" if text[-8] != "A" else "B") + text[-7:]
    with pytest.raises(HarnessError, match="checksum"):
        fpga.run(changed, arrays.all())


# --- weights that stay in the device's memory ------------------------------------------------------------------------


def layers(count: int) -> list[vta_streams.Arrays]:
    """Return the arguments of as many layers that one stream computes."""
    return [vta_streams.arrays(seed) for seed in range(count)]


def constants(all_arrays: list[vta_streams.Arrays]) -> list[np.ndarray]:
    return [array for arrays in all_arrays for array in (arrays.w, arrays.bias)]


def refill(arrays: vta_streams.Arrays, seed: int) -> None:
    """Put other activations in the place of those that are there."""
    arrays.x[...] = vta_streams.arrays(1000 + seed).x
    arrays.y[...] = 77


def run_exactly(fpga: Board, all_arrays: list[vta_streams.Arrays], rounds: int, device: str = "") -> None:
    for number in range(rounds):
        for arrays in all_arrays:
            refill(arrays, number)
            fpga.run(vta_streams.stream(), arrays.all(), device)
            np.testing.assert_array_equal(arrays.y, arrays.expected())


def copied(fpga: Board) -> dict[str, int]:
    (counters,) = fpga.traffic()
    return counters


X, W, BIAS, Y = 64, 256, 256, 64
PROGRAM = 9 * 16 + 4
"""Bytes of what a run takes."""


@pytest.mark.parametrize("name", ["pynq-z1", "ultra96"])
def test_weights_are_copied_once(board, name):
    fpga, model = ready(board(name)), layers(3)
    before = copied(fpga)
    fpga.hold(constants(model))
    run_exactly(fpga, model, 1)
    first = copied(fpga)
    assert first["bytes_to_device"] - before["bytes_to_device"] == 3 * (PROGRAM + X + W + BIAS)
    fpga.log()
    run_exactly(fpga, model, 20)
    later = copied(fpga)
    assert later["runs"] - first["runs"] == 60
    assert later["bytes_to_device"] - first["bytes_to_device"] == 60 * X
    assert later["bytes_from_device"] - first["bytes_from_device"] == 60 * Y
    assert later["bytes_resident"] == 3 * 4 * 4096
    log = fpga.log()
    assert {line for line in log if line.startswith("flushed")} == {f"flushed 0 {X}"}
    assert not [line for line in log if "allocated" in line or "freed" in line]


def test_on_the_simulator_too(board):
    fpga, model = board(), layers(3)
    fpga.hold(constants(model))
    run_exactly(fpga, model, 5, "sim")
    assert copied(fpga)["bytes_to_device"] == 3 * (PROGRAM + W + BIAS) + 15 * X


def test_tensors_that_nobody_holds_are_copied_each_time(board):
    """As a tuner's and a check's are, which are refilled in place."""
    fpga, arrays = ready(board()), vta_streams.arrays()
    other = layers(2)
    fpga.hold(constants(other))
    before = copied(fpga)
    for seed in range(3):
        arrays.w[...], arrays.bias[...] = vta_streams.arrays(50 + seed).w, vta_streams.arrays(50 + seed).bias
        fpga.run(vta_streams.stream(), arrays.all())
        np.testing.assert_array_equal(arrays.y, arrays.expected())
    after = copied(fpga)
    assert after["bytes_to_device"] - before["bytes_to_device"] == 3 * (PROGRAM + X + W + BIAS)
    assert after["bytes_resident"] == 0


def test_a_part_of_a_constant_is_none(board):
    fpga, arrays = ready(board()), vta_streams.arrays()
    larger = np.zeros(W + 64, np.int8)
    fpga.hold([larger])
    arrays.w = larger[:W].reshape(arrays.w.shape)
    for value in (1, 2):
        arrays.w[...] = value
        fpga.run(vta_streams.stream(), arrays.all())
        np.testing.assert_array_equal(arrays.y, arrays.expected())


def test_memory_that_is_used_again_for_other_weights(board):
    """A model is closed, and the next one's weights come to lie where the first one's were."""
    fpga, model = ready(board()), layers(2)
    for value in range(3):
        for arrays in model:
            arrays.w[...] = value
        handle = fpga.hold(constants(model))
        run_exactly(fpga, model, 2)
        assert copied(fpga)["bytes_resident"] == 2 * 4 * 4096
        fpga.release(handle)
        assert copied(fpga)["bytes_resident"] == 0
    fpga.release(handle)  # nothing more happens


def test_two_models_with_the_same_weights(board):
    fpga, model = ready(board()), layers(1)
    first, second = fpga.hold(constants(model)), fpga.hold(constants(model))
    run_exactly(fpga, model, 2)
    fpga.release(first)
    assert copied(fpga)["bytes_resident"] == 4 * 4096
    run_exactly(fpga, model, 2)
    fpga.release(second)
    assert copied(fpga)["bytes_resident"] == 0
    model[0].w[...] = 5
    run_exactly(fpga, model, 2)


def test_a_board_that_is_programmed_again_has_forgotten(board):
    fpga, model = ready(board()), layers(2)
    fpga.hold(constants(model))
    run_exactly(fpga, model, 2)
    fpga.init()
    assert copied(fpga)["bytes_resident"] == 0
    run_exactly(fpga, model, 2)


def test_a_self_test_between_two_runs(board):
    fpga, model = ready(board()), layers(2)
    fpga.hold(constants(model))
    run_exactly(fpga, model, 2)
    fpga.self_test()
    run_exactly(fpga, model, 2)


def test_memory_for_the_program_moves(board):
    """A larger layer comes: what stays in the device's memory has to follow its activations."""
    fpga, model = ready(board()), layers(2)
    fpga.hold(constants(model))
    run_exactly(fpga, model, 1)
    layer = Conv2d(1, 14, 14, 64, 64, (3, 3), (1, 1), (1, 1, 1, 1), shift=9)
    stream = kernels.stream(layer, kernels.candidates(layer, DEFAULT)[0], DEFAULT, NEW)
    tensors = random_tensors(stream)
    expected = [array.copy() for array in tensors]
    Simulator().run(stream, expected)
    fpga.run(stream, tensors)
    np.testing.assert_array_equal(tensors[-1], expected[-1])
    assert copied(fpga)["bytes_resident"] == 2 * 4 * 4096
    run_exactly(fpga, model, 2)


def random_tensors(stream) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    sizes = [buffer.elements * DEFAULT.element_bytes(buffer.memory) for buffer in stream.buffers]
    return [random.integers(-100, 100, size, dtype=np.int8) for size in sizes]


@pytest.mark.parametrize("pages", range(13, 40))
def test_memory_that_is_too_small_for_all_weights(board, pages):
    """Whatever fits stays, all else is copied: from what one stream needs, and the self-test, to all of them."""
    fpga, model = board(pages=pages), layers(6)
    fpga.init()
    fpga.hold(constants(model))
    run_exactly(fpga, model, 4)
    resident = copied(fpga)["bytes_resident"] // 4096
    assert resident % 4 == 0
    assert resident <= pages
    if pages >= 13 + 6 * 4:
        assert resident == 6 * 4


def test_memory_that_is_too_small_for_anything(board):
    with pytest.raises(HarnessError, match="no memory"):
        board(pages=12).init()


def test_what_was_not_used_for_long_makes_room(board):
    fpga, model = board(pages=13 + 2 * 4), layers(4)
    fpga.init()
    fpga.hold(constants(model))
    run_exactly(fpga, model[:2], 2)
    assert copied(fpga)["bytes_resident"] == 2 * 4 * 4096
    before = copied(fpga)["bytes_to_device"]
    run_exactly(fpga, model[2:], 3)
    assert copied(fpga)["bytes_to_device"] - before == 6 * (PROGRAM + X + W + BIAS)
    run_exactly(fpga, model[2:], 510)  # a thousand runs later
    before = copied(fpga)["bytes_to_device"]
    run_exactly(fpga, model[2:], 3)
    assert copied(fpga)["bytes_to_device"] - before == 6 * X


def test_a_run_that_failed(board):
    fpga, model = board(never_done=False), layers(1)
    fpga.init()
    fpga.hold(constants(model))
    run_exactly(fpga, model, 1)
    fpga.break_down()
    before = model[0].y.copy()
    with pytest.raises(HarnessError, match="hangs"):
        fpga.run(vta_streams.stream(), model[0].all())
    np.testing.assert_array_equal(model[0].y, before)
    with pytest.raises(HarnessError, match="hangs since"):
        fpga.run(vta_streams.stream(), model[0].all())
    assert copied(fpga)["bytes_resident"] == 0
    fpga.repair()
    fpga.init()
    run_exactly(fpga, model, 2)


def test_results_that_are_not_all_written_are_copied_there(board):
    fpga, model = ready(board()), vta_streams.arrays()
    fpga.hold(constants([model]))
    stream = vta_streams.edited({vta_streams.STORE: {"x_size": 2}})
    for value in (5, 6):
        model.y[...] = value
        fpga.run(stream, model.all())
        np.testing.assert_array_equal(model.y[:2], model.expected()[:2])
        assert (model.y[2:] == value).all()


# --- results that stay there, for the kernels behind them ------------------------------------------------------------

READ, WRITTEN = 1, 8
"""The bits of x and y."""
PAGE = 4096


def chain(count: int) -> list[vta_streams.Arrays]:
    """Return the arguments of layers each of which reads what the one before it writes."""
    model = layers(count)
    for first, second in itertools.pairwise(model):
        second.x = first.y
    return model


def run_chain(fpga: Board, model: list[vta_streams.Arrays], seed: int = 0, device: str = "") -> None:
    """Run layers behind each other, check the result, and that the CPU has nothing of what stays between them."""
    refill(model[0], seed)
    value = model[0].x.copy()
    for number, arrays in enumerate(model):
        run_link(fpga, model, number, device)
        value = vta_streams.Arrays(value, arrays.w, arrays.bias).expected()
    np.testing.assert_array_equal(model[-1].y, value)


def run_link(fpga: Board, model: list[vta_streams.Arrays], number: int, device: str = "") -> None:
    arrays, is_last = model[number], number == len(model) - 1
    arrays.y[...] = 77
    fpga.run(vta_streams.stream(), arrays.all(), device, (READ if number else 0) | (0 if is_last else WRITTEN))


@pytest.mark.parametrize("name", ["pynq-z1", "ultra96"])
def test_results_stay(board, name):
    fpga, model = ready(board(name)), chain(3)
    fpga.hold(constants(model))
    run_chain(fpga, model)
    before = copied(fpga)
    fpga.log()
    for seed in range(5):
        run_chain(fpga, model, seed)
    after = copied(fpga)
    assert after["bytes_to_device"] - before["bytes_to_device"] == 5 * X
    assert after["bytes_from_device"] - before["bytes_from_device"] == 5 * Y
    assert after["bytes_resident"] == 3 * 4 * PAGE + 2 * PAGE
    assert all((arrays.y == 77).all() for arrays in model[:-1])
    assert not [line for line in fpga.log() if "allocated" in line or "freed" in line]


def test_results_stay_on_the_simulator_too(board):
    fpga, model = board(), chain(3)
    fpga.hold(constants(model))
    for seed in range(3):
        run_chain(fpga, model, seed, "sim")
    assert copied(fpga)["bytes_to_device"] == 3 * (PROGRAM + W + BIAS) + 3 * X
    assert copied(fpga)["bytes_from_device"] == 3 * Y


def test_results_of_nobodys_constants_are_copied(board):
    """Nobody would say when their memory may be given back."""
    fpga, model = ready(board()), chain(3)
    before = copied(fpga)
    run_chain(fpga, model)
    after = copied(fpga)
    assert after["bytes_from_device"] - before["bytes_from_device"] == 3 * Y
    assert after["bytes_resident"] == 0
    assert all((arrays.y != 77).any() for arrays in model)


def test_closing_a_model_gives_back_the_memory_of_its_results(board):
    fpga, model, other = ready(board()), chain(3), chain(2)
    handle, _ = fpga.hold(constants(model)), fpga.hold([other[0].w])
    run_chain(fpga, model)
    run_chain(fpga, other)
    fpga.release(handle)
    assert copied(fpga)["bytes_resident"] == 3 * PAGE + PAGE  # the program, the weights and the result of the other
    run_chain(fpga, other)
    run_chain(fpga, model)


def test_two_models_in_turns(board):
    fpga, first, second = ready(board()), chain(4), chain(4)
    for seed, arrays in enumerate(second):
        arrays.w[...] = vta_streams.arrays(70 + seed).w
    fpga.hold(constants(first) + constants(second))
    for seed in range(3):
        values = []
        for model in (first, second):
            refill(model[0], seed)
            values.append(model[0].x.copy())
        for number in range(4):
            for index, model in enumerate((first, second)):
                run_link(fpga, model, number)
                values[index] = vta_streams.Arrays(values[index], model[number].w, model[number].bias).expected()
        for model, value in zip((first, second), values, strict=True):
            np.testing.assert_array_equal(model[-1].y, value)


def test_tensors_that_take_turns_in_one_place(board):
    """As a planner of memory lets them: the result of the third layer lies where that of the first one was."""
    fpga, model = ready(board()), chain(5)
    model[2].y = model[3].x = model[0].y
    model[3].y = model[4].x = model[1].y
    fpga.hold(constants(model))
    for seed in range(3):
        run_chain(fpga, model, seed)
    assert copied(fpga)["bytes_resident"] == 5 * 4 * PAGE + 2 * PAGE


def test_what_the_cpu_writes_is_read_where_it_lies(board):
    """A result stayed there once, and is not meant by somebody who reads what the CPU wrote there since."""
    fpga, model = ready(board()), chain(2)
    fpga.hold(constants(model))
    run_chain(fpga, model)
    model[1].x[...] = 5
    fpga.run(vta_streams.stream(), model[1].all())
    np.testing.assert_array_equal(model[1].y, model[1].expected())


@pytest.mark.parametrize("pages", range(13, 34))
def test_results_and_memory_that_is_too_small(board, pages):
    fpga, model = board(pages=pages), chain(4)
    fpga.init()
    fpga.hold(constants(model))
    for seed in range(3):
        run_chain(fpga, model, seed)
    assert copied(fpga)["bytes_resident"] <= pages * PAGE


def test_results_give_way_to_a_run_that_needs_the_memory(board):
    layer = Conv2d(1, 28, 28, 64, 64, (3, 3), (1, 1), (1, 1, 1, 1), shift=9)
    stream = kernels.stream(layer, kernels.candidates(layer, DEFAULT)[0], DEFAULT, NEW)
    tensors = random_tensors(stream)
    sizes = [len(stream.instructions) * 16, len(stream.uops) * 4, *(tensor.nbytes for tensor in tensors)]
    fpga, model = board(pages=sum(-(-size // PAGE) for size in sizes)), chain(2)
    fpga.init()
    fpga.hold(constants(model))
    run_chain(fpga, model)
    assert copied(fpga)["bytes_resident"] == 2 * 4 * PAGE + PAGE
    with pytest.raises(HarnessError, match="run the model anew"):
        fpga.run(stream, tensors)
    for _ in range(2):
        run_chain(fpga, model)
        fpga.run(stream, tensors)


def test_a_board_that_is_programmed_again_between_two_kernels(board):
    fpga, model = ready(board()), chain(2)
    fpga.hold(constants(model))
    run_chain(fpga, model)
    run_link(fpga, model, 0)
    fpga.init()
    with pytest.raises(HarnessError, match="programmed again: run the model anew"):
        run_link(fpga, model, 1)
    for seed in range(2):
        run_chain(fpga, model, seed)


def test_a_result_of_another_size(board):
    fpga, model = ready(board()), chain(2)
    fpga.hold(constants(model))
    run_link(fpga, model, 0)
    layer = Conv2d(1, 2, 1, 16, 16)
    stream = kernels.stream(layer, kernels.candidates(layer, DEFAULT)[0], DEFAULT, NEW)
    tensors = random_tensors(stream)
    tensors[0] = model[1].x.reshape(-1)[: tensors[0].size]
    with pytest.raises(HarnessError, match="64 bytes is read as one of 32"):
        fpga.run(stream, tensors, stays=READ)


def test_a_result_that_is_not_all_written_does_not_stay(board):
    fpga, model = ready(board()), chain(2)
    fpga.hold(constants(model))
    stream = vta_streams.edited({vta_streams.STORE: {"x_size": 2}})
    model[0].y[...] = 6
    fpga.run(stream, model[0].all(), stays=WRITTEN)
    np.testing.assert_array_equal(model[0].y[:2], model[0].expected()[:2])
    assert (model[0].y[2:] == 6).all()


def test_results_of_a_run_that_failed_are_gone(board):
    fpga, model = board(never_done=False), chain(2)
    fpga.init()
    fpga.hold(constants(model))
    run_chain(fpga, model)
    fpga.break_down()
    with pytest.raises(HarnessError, match="hangs"):
        run_link(fpga, model, 0)
    fpga.repair()
    fpga.init()
    for seed in range(2):
        run_chain(fpga, model, seed)


@pytest.mark.parametrize(
    ("text", "cause"),
    [("", "not a VTA stream"), ("VlR", "base64 text was cut"), ("Vl?=", "not valid base64"), ("QUJD", "not a")],
)
def test_text_that_is_no_stream(board, text, cause):
    with pytest.raises(HarnessError, match=cause):
        board().run(text, [])


def test_a_wrong_stream_never_gets_to_the_board(board):
    fpga = ready(board())
    with pytest.raises(HarnessError, match="outside of its 2048"):
        fpga.run(vta_streams.changed(vta_streams.LOAD_INP, sram_base=2047), vta_streams.arrays().all())
    assert fpga.log() == []


def test_tensors_that_are_not_the_streams(board):
    fpga, arrays = ready(board()), vta_streams.arrays()
    with pytest.raises(HarnessError, match="4 tensors, not on 3"):
        fpga.run(vta_streams.stream(), arrays.all()[:3])
    with pytest.raises(HarnessError, match=r"tensor 2 has 252 bytes; the stream's buffer has 256"):
        fpga.run(vta_streams.stream(), [arrays.x, arrays.w, arrays.bias.reshape(-1)[:63].copy(), arrays.y])
    assert fpga.log() == []


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_stream_of_another_revision_is_refused(board, revision):
    fpga = ready(board("pynq-z1", revision.value))
    other = NEW if revision is OLD else OLD
    with pytest.raises(HarnessError, match=f"revision {other.value} .* the FPGA has revision {revision.value}"):
        fpga.run(vta_streams.stream(revision=other), vta_streams.arrays().all())
    assert fpga.log() == []


def test_a_stream_of_another_configuration_is_refused(board):
    fpga = ready(board())
    with pytest.raises(HarnessError, match="1x16_i8w8a32_15_15_17_17; the FPGA has 1x16_i8w8a32_15_15_18_17"):
        fpga.run(vta_streams.stream(VtaConfig(log_wgt_buff_size=17)), vta_streams.arrays().all())
    layer, wide = Conv2d(4, 3, 3, 16, 16), VtaConfig(log_batch=2)
    with pytest.raises(HarnessError, match="for configuration 4x16_i8w8a32_15_15_18_17; the FPGA has 1x16_i8w8a32_"):
        fpga.run(kernels.stream(layer, kernels.Choice(), wide), vta_layers.tensors(layer, 0, wide))
    with pytest.raises(HarnessError, match=r"programmed with configuration 1x16_i8w8a32_15_15_18_17, not 1x16.*17_17"):
        fpga.reconfigure(VtaConfig(log_wgt_buff_size=17))
    fpga.reconfigure(DEFAULT)


def test_memory_that_the_fpga_cannot_reach(board):
    with pytest.raises(HarnessError, match="above 4 GiB"):
        board(physical=0xFFFFF000).init()


# --- the self-test ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_revision_is_recognised(board, revision):
    fpga = board("pynq-z1", revision.value)
    fpga.init()
    assert not [line for line in fpga.log() if "refused" in line]
    assert json.loads(fpga.self_test()) == {
        "device": "pynq-z1",
        "configuration": "1x16_i8w8a32_15_15_18_17",
        "revision": revision.value,
        "memory": "the model's",
        "passed_over": "",
        "passed": ["revision", "gemm", "alu", "load and store"],
    }


def test_the_simulator_passes_it_too(board):
    assert json.loads(board().self_test("sim"))["revision"] == NEW.value


def test_the_first_program_counts_from_base_registers(board):
    """What it would write on the other revision has to stay within its own memory."""
    fpga = board()
    fpga.init()
    lines = fpga.log()
    allocated = next(int(line.split()[1]) for line in lines if line.startswith("allocated"))
    assert "0x43c03010 = 0x18000000" in lines
    assert allocated >= 2 * 5 * 4096 + 16


def test_no_base_register_outlives_the_first_program(board):
    """What counts from another base than the program before is nothing, once in each block."""
    fpga = board()
    fpga.init()
    starts, bases = [], {}
    for line in fpga.log():
        where, _, value = line.partition(" = ")
        if where == "0x43c03010":
            bases[len(starts)] = int(value, 16)
        elif where == "0x43c00010":
            starts.append(int(value, 16))
    assert starts[:3] == [5, 8, 5]
    assert [bases[number] for number in (1, 2, 3)] == [0x18000000, 0x18000000, 0]
    assert {bases[number] for number in range(4, len(starts) + 1)} == {0}


@pytest.mark.parametrize("fault", ["forgets_flush", "forgets_invalidate"])
def test_caches_that_are_forgotten(board, fault):
    with pytest.raises(HarnessError, match=r"hangs|stored nothing where either revision"):
        board("ultra96", **{fault: True}).init()


def test_a_device_that_is_used_before_it_was_programmed(board, monkeypatch):
    monkeypatch.delenv("EDGE_VTA_BITSTREAM", raising=False)
    fpga, arrays = board(), vta_streams.arrays()
    with pytest.raises(HarnessError, match=r"no bitstream of VTA on this board: copy it .* EDGE_VTA_BITSTREAM"):
        fpga.run(vta_streams.stream(), arrays.all())
    monkeypatch.setenv("EDGE_VTA_BITSTREAM", "some.bit")
    fpga.run(vta_streams.stream(), arrays.all())
    np.testing.assert_array_equal(arrays.y, arrays.expected())


def test_names_of_devices(board):
    fpga, arrays = ready(board()), vta_streams.arrays()
    with pytest.raises(HarnessError, match='no VTA device "zcu": sim, pynq-z1, ultra96'):
        fpga.run(vta_streams.stream(), arrays.all(), "zcu")
    with pytest.raises(HarnessError, match="no ultra96 but pynq-z1"):
        fpga.run(vta_streams.stream(), arrays.all(), "ultra96")
    fpga.run(vta_streams.stream(), arrays.all(), "sim")
    assert fpga.log() == []


# --- time ------------------------------------------------------------------------------------------------------------


def test_an_fpga_that_never_ends(board):
    fpga = board(never_done=True)
    start = time.monotonic()
    with pytest.raises(HarnessError) as caught:
        fpga.init()
    assert 1.0 <= time.monotonic() - start < 30.0
    for text in ("within 1 s", "fetch 0x0c idle ready", "load 0x81 start auto-restart", "compute 0x81", "store 0x81"):
        assert text in str(caught.value)
    assert "freed" not in "".join(fpga.log())  # the FPGA may still write there


# --- the model has its own eyes --------------------------------------------------------------------------------------


def write_all(fpga: Board, *but: int) -> None:
    for offset in (0x10, 0x18, 0x1010, 0x1018, 0x2020, 0x2028, 0x3010):
        if offset not in but:
            fpga.write(PYNQ + offset, 0)


@pytest.mark.parametrize("missing", [0x10, 0x18, 0x1010, 0x1018, 0x2020, 0x2028, 0x3010])
def test_the_model_misses_a_register(board, missing):
    fpga = board()
    write_all(fpga, missing)
    with pytest.raises(HarnessError, match=f"started without .*{missing:#x}$"):
        fpga.write(PYNQ, 1)


@pytest.mark.parametrize(
    ("offset", "value", "cause"),
    [
        (0x1000, 0x81, "before the fetch block"),
        (0x0, 0x81, "started with 0x81"),
        (0x20, 0, "no register"),
        (0x2018, 0, "no register"),
        (0x4000, 1, "no register"),
        (-4, 0, "no register"),
    ],
)
def test_the_model_refuses(board, offset, value, cause):
    fpga = board()
    write_all(fpga)
    with pytest.raises(HarnessError, match=cause):
        fpga.write(PYNQ + offset, value)


def test_the_model_refuses_blocks_that_run_once(board):
    fpga = board()
    write_all(fpga)
    fpga.write(PYNQ, 1)
    with pytest.raises(HarnessError, match="block 0x2000 is started with 0x1"):
        fpga.write(PYNQ + 0x2000, 1)
    with pytest.raises(HarnessError, match="while blocks run"):
        fpga.write(PYNQ + 0x10, 1)


# --- bitstreams ------------------------------------------------------------------------------------------------------


def bit_file(chip: str = "7z020clg400", words: bytes = WORDS) -> bytes:
    def text(letter: bytes, value: str) -> bytes:
        return letter + struct.pack(">H", len(value) + 1) + value.encode() + b"\0"

    start = bytes.fromhex("00090ff00ff00ff00ff0000001")
    fields = text(b"a", "vta_wrapper;UserID=0XFFFFFFFF") + text(b"b", chip)
    fields += text(b"c", "2020/07/02") + text(b"d", "10:11:12")
    return start + fields + b"e" + struct.pack(">I", len(words)) + words


class Root:
    """A folder that looks like a board's file system."""

    def __init__(self, folder: Path, library: ctypes.CDLL, compatible: bytes = b"xlnx,zynq-7000") -> None:
        self.folder, self._library = folder, library
        self.put("proc/device-tree/compatible", b"digilent,pynq-z1\0" + compatible + b"\0")
        self.put("dev/mem", b"")
        self.put("sys/class/fpga_manager/fpga0/firmware")
        self.put("sys/class/fpga_manager/fpga0/flags", b"1")
        self.put("sys/class/fpga_manager/fpga0/state", b"operating\n")
        self.udmabuf("udmabuf0", 1 << 16)
        (folder / "lib").mkdir()

    def put(self, name: str, data: bytes = b"") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def udmabuf(self, name: str, size: int, module: str = "u-dma-buf") -> None:
        for file, text in {"phys_addr": "0x1f400000", "size": str(size)}.items():
            self.put(f"sys/class/{module}/{name}/{file}", text.encode() + b"\n")
        for file in ("sync_offset", "sync_size", "sync_direction", "sync_for_device", "sync_for_cpu"):
            self.put(f"sys/class/{module}/{name}/{file}")
        self.put(f"dev/{name}", bytes(size))

    def open(self, bitstream: Path | str, board: str = "pynq-z1") -> None:
        call(self._library.harness_open, str(self.folder).encode(), NO_CMA, NO_XRT, board.encode(),
             str(bitstream).encode())  # fmt: skip

    def memory(self, size: int, value: int, cma: str = NO_CMA.decode(), before: int = 0) -> int:
        return self.kind(size, value, cma, NO_XRT.decode(), before)[0]

    def kind(self, size: int, value: int, cma: str, xrt: str, before: int = 0) -> tuple[int, str, str]:
        """Use a buffer; returns its address, which kind of memory it is, and why."""
        physical = ctypes.c_uint64()
        report = call(self._library.harness_memory, str(self.folder).encode(), cma.encode(), xrt.encode(),
                    ctypes.c_uint64(size), value, before, ctypes.byref(physical))  # fmt: skip
        return (physical.value, *report.split("\n"))


@pytest.fixture
def root(tmp_path, library):
    return Root(tmp_path / "root", library)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("vta.bit", bit_file()),
        ("vta.bin", SWAPPED),
        ("raw.bin", WORDS),
        ("1x16_i8w8a32_15_15_18_17.bit", bit_file()),
        ("vta-1x16_i8w8a32_15_15_18_17.bit", bit_file()),
    ],
)
def test_the_fpga_manager_gets_words_in_its_order(root, tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    root.open(path)
    assert root.read("lib/firmware/edge-vta.bin") == SWAPPED
    assert root.read("sys/class/fpga_manager/fpga0/firmware") == b"edge-vta.bin"
    assert root.read("sys/class/fpga_manager/fpga0/flags") == b"0"


def test_old_kernels_have_xdevcfg(root, tmp_path):
    root.remove("sys/class/fpga_manager/fpga0/firmware")
    root.put("dev/xdevcfg", b"before")
    flag = "sys/devices/soc0/amba/f8007000.devcfg/prog_done"
    root.put(flag, b"1\n")
    path = root.put("vta.bit", bit_file())
    root.open(path)
    assert root.read("dev/xdevcfg") == SWAPPED
    root.put(flag, b"0\n")
    with pytest.raises(HarnessError, match="prog_done is 0"):
        root.open(path)


@pytest.mark.parametrize(
    ("name", "data", "cause"),
    [
        ("a.bit", bit_file("xczu3eg-sbva484-1-e"), "is for the FPGA xczu3eg-sbva484-1-e; this board has 7z020"),
        ("a.bit", bit_file()[:-1], "the .bit file was cut"),
        ("a.bit", bit_file()[:20], "the .bit file was cut"),
        ("a.bit", bit_file().replace(b"c\0", b"x\0", 1), "header of a .bit file is damaged"),
        ("a.bit", bit_file(words=bytes(256)), "no synchronisation word"),
        ("a.bin", b"", "not a bitstream"),
        ("a.bin", SWAPPED + b"\0", "not a bitstream"),
        ("a.bin", b"\x7fELF" * 100, "not a bitstream"),
        ("pynq_1x16_i8w8a32_15_15_17_17.bit", bit_file(), "is of configuration 1x16_i8w8a32_15_15_17_17, not of"),
        ("vta-1x16_i8w8a32_15_15_17_17.bit", bit_file(), "is of configuration 1x16_i8w8a32_15_15_17_17, not of"),
    ],
)
def test_bitstreams_for_something_else(root, name, data, cause):
    path = root.put(name, data)
    with pytest.raises(HarnessError, match=cause):
        root.open(path)
    assert not (root.folder / "lib/firmware").exists()


def test_the_usual_bitstream(root, monkeypatch):
    monkeypatch.delenv("EDGE_VTA_BITSTREAM", raising=False)
    where = f"lib/firmware/edge-toolchain/{DEFAULT.name}"
    with pytest.raises(HarnessError, match=f"no bitstream of VTA on this board: copy it to /{where}.bit"):
        root.open("")
    root.put(f"{where}.bin", b"none")
    with pytest.raises(HarnessError, match=f"{where}.bin is not a bitstream"):
        root.open("")
    root.put(f"{where}.bit", bit_file())
    root.open("")
    monkeypatch.setenv("EDGE_VTA_BITSTREAM", "/none.bit")
    with pytest.raises(HarnessError, match=r"cannot read the bitstream /none.bit"):
        root.open("")


def test_a_bitstream_that_is_not_there(root):
    with pytest.raises(HarnessError, match=r"cannot read the bitstream /none.bit: No such file"):
        root.open("/none.bit")


def test_an_fpga_that_does_not_take_it(root):
    path = root.put("vta.bit", bit_file())
    root.put("sys/class/fpga_manager/fpga0/state", b"write error\n")
    with pytest.raises(HarnessError, match=r'its state is "write error".*dmesg'):
        root.open(path)


def test_a_kernel_that_cannot_program(root):
    root.remove("sys/class/fpga_manager/fpga0/firmware")
    with pytest.raises(HarnessError, match="this kernel cannot program the FPGA"):
        root.open(root.put("vta.bit", bit_file()))


# --- the kernel's files ----------------------------------------------------------------------------------------------


def test_machines_that_are_no_such_board(tmp_path, library):
    path = str(tmp_path / "vta.bit")
    with pytest.raises(HarnessError, match="names neither Zynq-7000 nor"):
        Root(tmp_path / "other", library, b"raspberrypi,4").open(path)
    ultra = Root(tmp_path / "ultra", library, b"xlnx,zynqmp")
    with pytest.raises(HarnessError, match="no pynq-z1 but ultra96"):
        ultra.open(path)
    ultra.open(ultra.put("vta.bit", bit_file("xczu3eg-sbva484-1-e")), "ultra96")
    ultra.open(ultra.put("zcu104.bit", bit_file("xczu7ev-ffvc1156-2-e")), "ultra96")
    with pytest.raises(HarnessError, match="is for the FPGA 7z020clg400; this board has zu3eg or zu7ev"):
        ultra.open(ultra.put("pynq.bit", bit_file("7z020clg400")), "ultra96")
    ultra.remove("proc/device-tree/compatible")
    with pytest.raises(HarnessError, match="compatible cannot be read"):
        ultra.open(path)


def test_no_registers(root):
    path = root.put("vta.bit", bit_file())
    root.remove("dev/mem")
    with pytest.raises(HarnessError, match=r"cannot open .*/dev/mem: No such file"):
        root.open(path)
    assert not (root.folder / "lib/firmware").exists()


@contextmanager
def as_nobody():
    """Be a user without rights, if this one has them."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_registers_that_are_for_root_alone(root, library):
    path = root.folder / "dev/mem"
    path.chmod(0)
    with as_nobody(), pytest.raises(HarnessError, match=r"Permission denied.*run this program as root"):
        call(library.harness_register, str(path).encode(), ctypes.c_uint64(0), 0, ctypes.byref(ctypes.c_uint32()))


def test_registers_that_another_process_uses(root):
    path = root.put("vta.bit", bit_file())
    with (root.folder / "dev/mem").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(HarnessError, match="another process uses the FPGA"):
            root.open(path)
    root.open(path)


def test_registers_are_words_of_a_mapped_file(tmp_path, library):
    path, address = tmp_path / "mem", PYNQ + 0x2018
    with path.open("wb") as file:
        file.truncate(PYNQ + 0x4000)  # a file with a hole
        file.seek(address)
        file.write(struct.pack("<I", 0x12345678))
    read = ctypes.c_uint32()
    call(library.harness_register, str(path).encode(), ctypes.c_uint64(address), 0xCAFE, ctypes.byref(read))
    assert read.value == 0x12345678
    with path.open("rb") as file:
        file.seek(address - 4)
        assert struct.unpack("<3I", file.read(12)) == (0, 0xCAFE, 0)


@pytest.mark.parametrize("module", ["u-dma-buf", "udmabuf"])
def test_memory_of_the_kernel_module(root, module):
    if module == "udmabuf":
        (root.folder / "sys/class/u-dma-buf").rename(root.folder / "sys/class/udmabuf")
    assert root.memory(3 * 4096, 0x5A) == 0x1F400000
    assert root.read("dev/udmabuf0") == b"\x5a" * (3 * 4096) + bytes((1 << 16) - 3 * 4096)
    folder = f"sys/class/{module}/udmabuf0/"
    assert root.read(folder + "sync_for_device") == root.read(folder + "sync_for_cpu") == b"1"
    # The last was to invalidate.
    assert [root.read(folder + name) for name in ("sync_offset", "sync_size", "sync_direction")] == [
        b"0",
        b"4096",
        b"2",
    ]


def test_several_buffers_are_parts_of_one_device(root):
    assert root.memory(3 * 4096, 0x5A, before=2) == 0x1F400000 + 6 * 4096
    assert root.read("dev/udmabuf0") == bytes(6 * 4096) + b"\x5a" * (3 * 4096) + bytes((1 << 16) - 9 * 4096)
    folder = "sys/class/u-dma-buf/udmabuf0/"
    assert (root.read(folder + "sync_offset"), root.read(folder + "sync_size")) == (b"24576", b"4096")
    with pytest.raises(HarnessError, match=r"udmabuf0 has 65536 \(61440 in use\)"):
        root.memory(3 * 4096, 0, before=5)
    root.udmabuf("udmabuf1", 1 << 17)
    root.memory(3 * 4096, 7, before=5)
    assert root.read("dev/udmabuf1")[:1] == b"\7"


def test_the_smallest_device_that_is_large_enough(root):
    root.udmabuf("udmabuf1", 1 << 18)
    root.udmabuf("udmabuf2", 1 << 17)
    root.memory(100000, 7)
    assert root.read("dev/udmabuf2")[:1] == b"\7"
    assert root.read("dev/udmabuf0")[:1] == root.read("dev/udmabuf1")[:1] == b"\0"
    with pytest.raises(HarnessError, match=r"no u-dma-buf device has 300000 bytes: .*udmabuf1 has 262144.*modprobe"):
        root.memory(300000, 7)


def test_a_module_without_its_device_file(root):
    root.remove("dev/udmabuf0")
    with pytest.raises(HarnessError, match=r"cannot open .*/dev/udmabuf0: No such file"):
        root.memory(4096, 0)
    root.put("sys/class/u-dma-buf/udmabuf0/size", b"much")
    with pytest.raises(HarnessError, match='size does not contain a number: "much"'):
        root.memory(4096, 0)


def test_memory_that_the_kernel_keeps_coherent(root):
    root.put("sys/class/u-dma-buf/udmabuf0/dma_coherent", b"1\n")
    root.memory(4096, 3)
    folder = root.folder / "sys/class/u-dma-buf/udmabuf0"
    assert (folder / "sync_for_device").read_bytes() == (folder / "sync_for_cpu").read_bytes() == b""


@pytest.mark.parametrize(("mode", "cached"), [(0, True), (1, True), (4, True), (5, False), (6, False), (7, False)])
def test_memory_past_the_caches_is_refused(root, mode, cached):
    root.put("sys/class/u-dma-buf/udmabuf0/sync_mode", f"{mode}\n".encode())
    if cached:
        root.memory(4096, 3)
        return
    with pytest.raises(
        HarnessError, match=rf"udmabuf0 is mapped past the CPU's caches \(sync_mode {mode}\).*echo 1 > "
    ):
        root.memory(4096, 3)


def without_udmabuf(root: Root) -> None:
    (root.folder / "sys/class/u-dma-buf").rename(root.folder / "gone")


def test_no_memory_at_all(root):
    without_udmabuf(root)
    every = r"XRT: no-libxrt_core.so: .*; u-dma-buf: no device .*; libcma: no-libcma.so: .*modprobe"
    with pytest.raises(HarnessError, match=every):
        root.memory(4096, 0)
    with pytest.raises(HarnessError, match=every):
        root.open(root.put("vta.bit", bit_file()))


def test_memory_of_pynqs_library(root, tmp_path, monkeypatch):
    without_udmabuf(root)
    library, log = tmp_path / "libcma.so", tmp_path / "log"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(FAKE_CMA)], check=True)
    monkeypatch.setenv("FAKE_CMA_LOG", str(log))
    assert root.memory(3 * 4096, 1, str(library)) == 0x1E000000
    assert log.read_text().splitlines() == [
        "alloc 0x3000 1",
        "flush 0x1e001000 4096",
        "invalidate 0x1e000000 4096",
        "free 0x0 0",
    ]
    with pytest.raises(HarnessError, match="no contiguous memory for a buffer of 16777217 bytes"):
        root.memory((1 << 24) + 1, 1, str(library))


def test_a_library_that_is_another(root, tmp_path):
    without_udmabuf(root)
    source, library = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("void cma_alloc(void) {}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    with pytest.raises(HarnessError, match=r"libother.so has no function cma_get_phy_addr"):
        root.memory(4096, 1, str(library))


def xrt_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str = "") -> tuple[str, Path]:
    """Build what stands in for XRT's library; returns it and its log."""
    library, log, source = tmp_path / "libxrt_core.so", tmp_path / "log", tmp_path / "xrt.cc"
    source.write_text(text or FAKE_XRT.read_text())
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    monkeypatch.setenv("FAKE_XRT_LOG", str(log))
    return str(library), log


def test_memory_of_xrt_comes_first(root, tmp_path, monkeypatch):
    library, log = xrt_library(tmp_path, monkeypatch)
    assert root.kind(3 * 4096, 1, NO_CMA.decode(), library) == (0x1C000000, "XRT", "")
    assert log.read_text().splitlines() == [
        "open 0 0",
        f"alloc {1 << 24:#x} 12288",  # in the CPU's caches
        "map 0x1 1",
        "to 0x1000 4096",
        "from 0 4096",
        "unmap 0x1 0",
        "free 0x1 0",
        "close 0 0",
    ]
    assert root.read("dev/udmabuf0") == bytes(1 << 16)  # it is there, and was not needed
    log.unlink()
    root.kind(5, 1, NO_CMA.decode(), library, before=1)
    assert log.read_text().count(f"alloc {1 << 24:#x} 8192\n") == 2


@pytest.mark.parametrize(
    ("variable", "cause"),
    [("FAKE_XRT_DEVICES", "sees no device: is .* zocl loaded"), ("FAKE_XRT_OPENS", "cannot open its device")],
)
def test_xrt_without_a_device_is_passed_over(root, tmp_path, monkeypatch, variable, cause):
    library, log = xrt_library(tmp_path, monkeypatch)
    monkeypatch.setenv(variable, "0")
    physical, kind, why = root.kind(3 * 4096, 0x5A, NO_CMA.decode(), library)
    assert (physical, kind) == (0x1F400000, "u-dma-buf")
    assert re.fullmatch(f"XRT: .*libxrt_core.so {cause}.*", why)
    without_udmabuf(root)
    with pytest.raises(HarnessError, match=f"XRT: .*{cause}.*; u-dma-buf: .*; libcma: "):
        root.kind(4096, 1, NO_CMA.decode(), library)
    assert "alloc" not in (log.read_text() if log.exists() else "")


def test_xrt_of_another_interface_is_passed_over(root, tmp_path, monkeypatch):
    library, _ = xrt_library(tmp_path, monkeypatch, 'extern "C" unsigned xclProbe() { return 1; }\n')
    assert root.kind(4096, 1, NO_CMA.decode(), library)[1:] == ("u-dma-buf", f"XRT: {library} has no function xclOpen")


@pytest.mark.parametrize(
    ("variable", "value", "cause"),
    [
        ("FAKE_XRT_MOST", "4096", "XRT has no contiguous memory for a buffer of 12288 bytes"),
        ("FAKE_XRT_MAPS", "0", "XRT cannot map a buffer"),
        ("FAKE_XRT_TELLS", "0", "XRT does not tell where a buffer is"),
        ("FAKE_XRT_PADDR", "0", "XRT does not tell where a buffer is"),
        ("FAKE_XRT_SYNCS", "0", r"XRT cannot synchronise a buffer with the device \(-5\)"),
    ],
)
def test_xrt_that_fails(root, tmp_path, monkeypatch, variable, value, cause):
    library, log = xrt_library(tmp_path, monkeypatch)
    monkeypatch.setenv(variable, value)
    with pytest.raises(HarnessError, match=cause):
        root.kind(3 * 4096, 1, NO_CMA.decode(), library)
    if "SYNCS" not in variable and "MOST" not in variable:
        assert log.read_text().splitlines()[-2:] == ["free 0x1 0", "close 0 0"]


def test_debians_xrt_sees_no_device_here(root, capfd):
    """XRT itself, not what stands in for it: Debian's is for cards, of which there are none."""
    name = ctypes.util.find_library("xrt_core")
    require("XRT's library", "libxrt1", name is not None)
    physical, kind, why = root.kind(4096, 1, NO_CMA.decode(), str(name))
    assert (physical, kind) == (0x1F400000, "u-dma-buf")
    assert why == f"XRT: {name} sees no device: is the kernel's driver zocl loaded?"
    assert capfd.readouterr() == ("", "")  # it has words of its own for what is not there


# --- TVM -------------------------------------------------------------------------------------------------------------


def text_of(stream) -> str:
    return base64.b64encode(stream.encoded()).decode()


def check_functions(find, tensor) -> None:
    """Call everything that TVM finds by name, here or over RPC."""
    run, arrays = find("edge_toolchain.vta.run"), vta_streams.arrays()
    y = tensor(arrays.y)
    arguments = [tensor(array) for array in (arrays.x, arrays.w, arrays.bias)]
    for _ in range(2):
        run("sim", text_of(vta_streams.stream()), *arguments, y)
    np.testing.assert_array_equal(y.numpy(), arrays.expected())
    old = text_of(vta_streams.stream(revision=OLD))
    run("sim", old, *arguments, y)
    assert json.loads(find("edge_toolchain.vta.self_test")("sim"))["passed"][-1] == "load and store"
    reconfigure = find("tvm.contrib.vta.reconfig_runtime")
    names = {name.upper(): value for name, value in vars(DEFAULT).items()}
    reconfigure(json.dumps(names | {"TARGET": "pynq", "HW_VER": "0.0.2", "LOG_OUT_WIDTH": 3}))
    for call_it, cause in {
        lambda: run("sim", old[:-4], *arguments, y): "VTA: the stream should have",
        lambda: run("sim", old, *arguments): "VTA: the stream works on 4 tensors, not on 3",
        lambda: run("sim", old, *arguments, 3): "VTA: argument 5 is not a tensor",
        lambda: run("sim"): "VTA: a device, a stream and tensors",
        lambda: run("zcu104", old, *arguments, y): 'VTA: there is no VTA device "zcu104"',
        lambda: run("pynq-z1", old, *arguments, y): "VTA: this machine has no FPGA for VTA",
        lambda: find("tvm.contrib.vta.init")("/none.bit"): "VTA: this machine has no FPGA for VTA",
        lambda: reconfigure("{"): "VTA: the configuration is no JSON",
        lambda: reconfigure("[" * 100000): "VTA: the configuration is no JSON",
        lambda: reconfigure('{"LOG_BLOCK": 4}'): "VTA: the configuration lacks",
        lambda: reconfigure(json.dumps(names | {"LOG_BLOC": 4})): 'VTA: the configuration has a key "LOG_BLOC"',
        lambda: reconfigure(json.dumps(names | {"LOG_BLOCK": "4"})): "VTA: LOG_BLOCK of the configuration",
        lambda: reconfigure(json.dumps(names | {"LOG_BLOCK": 9})): "VTA: LOG_BLOCK is 9",
    }.items():
        with pytest.raises(Exception, match=cause):
            call_it()


@pytest.mark.parametrize("machine", [platform.machine(), "armv7l"])
def test_over_rpc(machine, tmp_path, monkeypatch):
    """The Zynq-7000 is a machine of 32 bits."""
    kind = KINDS[machine]
    kind.require()
    monkeypatch.delenv("EDGE_VTA_BITSTREAM", raising=False)
    with serving(built(kind), tmp_path, emulator=kind.emulator) as server:
        session = server.connect()
        check_functions(session.get_function, lambda array: tvm.runtime.tensor(array, session.cpu(0)))


def check_holding() -> None:
    """Hold tensors, as a loaded network does with its weights."""
    find = tvm.get_global_func
    run, hold, traffic = (find(f"edge_toolchain.vta.{name}") for name in ("run", "hold", "traffic"))
    arrays = vta_streams.arrays()
    x, w, bias, y = (tvm.runtime.tensor(array) for array in arrays.all())
    handle = hold([w, bias])
    assert handle() == 2
    counted = []
    for seed in range(3):
        x.copyfrom(vta_streams.arrays(seed).x)
        run("sim", text_of(vta_streams.stream()), x, w, bias, y)
        arrays.x = x.numpy()
        np.testing.assert_array_equal(y.numpy(), arrays.expected())
        (counters,) = json.loads(traffic())
        counted.append(counters["bytes_to_device"])
    assert [counted[1] - counted[0], counted[2] - counted[1]] == [X, X]
    assert counters["bytes_resident"] == 4 * 4096
    with pytest.raises(Exception, match="Expected `Array"):
        hold(["x"])
    del handle
    assert json.loads(traffic())[0]["bytes_resident"] == 0


def test_in_python(tmp_path, monkeypatch):
    """The plug-in is loaded by TVM's import, so in a process of its own."""
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EDGE_VTA_BITSTREAM", raising=False)
    messages = []
    path = build_plugin("vta", messages.append)
    assert messages == [f"building {path.name}"]
    script = (
        "import tvm; from tests.integration.test_vta_device import check_functions, check_holding; "
        "check_holding(); check_functions(tvm.get_global_func, tvm.runtime.tensor)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_threads_share_one_device(board):
    fpga = ready(board())
    stream = vta_streams.stream()
    all_arrays = [vta_streams.arrays(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(fpga.run, stream, arrays.all()) for arrays in all_arrays]:
            future.result()
    for arrays in all_arrays:
        np.testing.assert_array_equal(arrays.y, arrays.expected())


def test_a_stream_without_data(board):
    """Nothing but FINISH."""
    stream = vta_streams.stream()
    ready(board()).run(replace(stream, buffers=(), instructions=stream.instructions[-1:], uops=(), relocations=()), [])
