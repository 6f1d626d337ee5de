"""Kernels as functions: what they hand to the program on the board is what computes the layer; and their estimates."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest

from tests.support import vta_layers
from tests.support.vta_layers import RESNET, task
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import RUN, estimated_cycles, kernel, stream_of
from toolchain.backends.vta.codegen.layers import Conv2d, Pool
from toolchain.backends.vta.codegen.tilings import Choice, Tiling
from toolchain.backends.vta.device.devices import DEVICES
from toolchain.backends.vta.device.simulator import Simulator
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.isa.stream import Stream
from toolchain.errors import BuildError

DEVICE = DEVICES["vta-sim"]
LAYER = Conv2d(1, 6, 6, 16, 32, (3, 3), (1, 1), (1, 1, 1, 1), shift=12, residual_shift=7)
CHOICE = Choice(tile_h=3, tile_w=6, tile_co=2)


def call(function):
    """Return what a kernel calls: the name, the device, the stream and the tensors."""
    name, device, stream, *tensors = function.body.value.args
    return str(name.value), str(device.value), Stream.decode(base64.b64decode(str(stream.value))), tensors


def test_a_kernel_hands_over_its_stream_and_its_tensors():
    function = kernel(LAYER, CHOICE, DEVICE)
    name, device, stream, tensors = call(function)
    assert (name, device) == (RUN, "sim")
    assert stream == kernels.stream(LAYER, CHOICE, DEVICE.config, DEVICE.revision)
    shapes = [(tuple(map(int, param.shape)), str(param.dtype)) for param in function.params]
    assert shapes == list(LAYER.arguments())
    assert [str(tensor.args[0]) for tensor in tensors] == [f"{param}.data" for param in function.params]
    assert len(tensors) == len(stream.buffers)


def test_the_device_is_the_boards():
    assert call(kernel(LAYER, CHOICE, DEVICES["vta-ultra96"]))[1] == "ultra96"


def test_a_stream_is_made_once(monkeypatch):
    first = stream_of(replace(LAYER, shift=11), CHOICE, DEVICE)
    monkeypatch.setattr(kernels, "stream", lambda *_: pytest.fail("it was made again"))
    assert stream_of(replace(LAYER, shift=11), CHOICE, DEVICE) is first


def test_tiles_that_do_not_divide_the_layer():
    with pytest.raises(BuildError, match="do not divide"):
        kernel(LAYER, replace(CHOICE, tile_h=4), DEVICE)


@pytest.mark.parametrize("layer", [LAYER, replace(LAYER, bias=False, residual_shift=None)], ids=["all", "bare"])
def test_the_stream_in_a_kernel_computes_the_layer(layer):
    _name, _device, stream, _tensors = call(kernel(layer, CHOICE, DEVICE))
    arguments = vta_layers.tensors(layer)
    expected = vta_layers.reference(layer, arguments)
    Simulator().run(stream, arguments)
    assert np.unique(expected).size > 8
    np.testing.assert_array_equal(arguments[-1], expected)


def test_a_stream_that_a_board_would_refuse_is_no_kernel(monkeypatch):
    layer = replace(LAYER, shift=9)
    good = kernels.stream(layer, CHOICE, DEVICE.config, DEVICE.revision)
    where = next(number for number, instruction in enumerate(good.instructions) if instruction.tokens.push_next)
    bare = replace(good.instructions[where], tokens=replace(good.instructions[where].tokens, push_next=False))
    bad = replace(good, instructions=(*good.instructions[:where], bare, *good.instructions[where + 1 :]))
    monkeypatch.setattr(kernels, "stream", lambda *_: bad)
    with pytest.raises(BuildError, match="not valid for a board") as caught:
        kernel(layer, CHOICE, DEVICE)
    assert layer.to_json() in caught.value.details
    assert "--without vta" in caught.value.hint


# --- estimates -------------------------------------------------------------------------------------------------------

ESTIMATED = Conv2d(1, 14, 14, 256, 256, (3, 3), padding=(1, 1, 1, 1), shift=8)
ESTIMATED_CHOICE = Choice(1, 14, 14, 2, 4, 2, 2)


def estimate(layer=ESTIMATED, choice=ESTIMATED_CHOICE) -> float:
    return estimated_cycles(Tiling(layer, choice))


@pytest.mark.parametrize(
    ("shape", "choice"), [(RESNET[6][0], ESTIMATED_CHOICE), (RESNET[0][0], Choice(1, 8, 28, 1, 4, 2, 2))]
)
def test_no_faster_than_the_array(shape, choice):
    layer = task(*shape)
    ideal = layer.macs() / 256
    assert ideal < estimate(layer, choice) < 1.25 * ideal


@pytest.mark.parametrize("config", [VtaConfig(log_batch=2), VtaConfig(log_block=5)])
def test_larger_arrays_are_faster_as_far_as_their_bus_goes(config):
    layer = replace(ESTIMATED, batch=config.batch)
    choice = Choice(1, 7, 14, 1, 2, 2, 2)
    ideal = layer.macs(config) / (config.batch * config.block**2)
    assert ideal < estimated_cycles(Tiling(layer, choice, config)) < 2 * ideal


@pytest.mark.parametrize("slots", [(1, 1), (1, 2), (2, 1)])
def test_two_slots_are_faster(slots):
    oc_threads, h_threads = slots
    assert estimate() < estimate(choice=replace(ESTIMATED_CHOICE, oc_threads=oc_threads, h_threads=h_threads))


def test_tiny_tiles_are_slower():
    assert estimate() < estimate(choice=Choice(1, 1, 1, 1, 1, 2, 2)) / 2


@pytest.mark.parametrize(
    "change",
    [
        {"residual_shift": 3},
        {"shift": 16},
        {"low": 0, "shift": 0},
        {"kernel": (5, 5), "padding": (2,) * 4},
        {"pad": -128},  # rows by themselves
    ],
)
def test_more_work_takes_longer(change):
    plain = replace(ESTIMATED, bias=False, shift=0 if "low" in change else 8)
    other = replace(plain, **change)
    assert estimate(other) >= estimate(plain)


def test_the_alu_takes_two_cycles_for_an_element():
    added = estimate(replace(ESTIMATED, shift=16)) - estimate(replace(ESTIMATED, shift=15))
    assert 2 <= added / (14 * 14 * 16) < 2.1


def test_biases_that_are_loaded_for_each_tile():
    once, each = (replace(ESTIMATED_CHOICE, tile_co=blocks) for blocks in (ESTIMATED.out_channels // 16, 1))
    added = [estimate(choice=choice) - estimate(replace(ESTIMATED, bias=False), choice) for choice in (once, each)]
    assert added[0] < added[1]


def test_what_follows_maxima_is_done_to_few():
    pooled = replace(ESTIMATED, padding=(2, 2, 1, 1), pool=Pool((3, 3), (2, 2), (1, 1, 0, 0)))
    few = Choice(1, 7, 7, 2, 4, 2, 2)
    added = estimate(replace(pooled, shift=16), few) - estimate(replace(pooled, shift=15), few)
    assert 2 <= added / (7 * 7 * 16) < 2.3
    wide = replace(pooled, pool=Pool((3, 5), (2, 2), (1, 1, 0, 0)), width=16)
    assert wide.out_width == pooled.out_width
    assert estimate(wide, few) > estimate(pooled, few)


def test_a_residual_that_needs_a_shift_of_its_own():
    assert estimate(replace(ESTIMATED, residual_shift=7)) > estimate(replace(ESTIMATED, residual_shift=6)) > estimate()
