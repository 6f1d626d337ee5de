"""Kernels as functions: what they hand to the program on the board is what computes the layer."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest

from tests.support import vta_layers
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import RUN, Choice, kernel, stream_of
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.devices import DEVICES
from toolchain.backends.vta.device.simulator import Simulator
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
    shapes = [(tuple(map(int, one.shape)), str(one.dtype)) for one in function.params]
    assert shapes == list(LAYER.arguments())
    assert [str(one.args[0]) for one in tensors] == [f"{param}.data" for param in function.params]
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
    wanted = vta_layers.reference(layer, arguments)
    Simulator().run(stream, arguments)
    assert np.unique(wanted).size > 8
    np.testing.assert_array_equal(arguments[-1], wanted)


def test_a_stream_that_a_board_would_refuse_is_no_kernel(monkeypatch):
    layer = replace(LAYER, shift=9)
    good = kernels.stream(layer, CHOICE, DEVICE.config, DEVICE.revision)
    where = next(number for number, one in enumerate(good.instructions) if one.tokens.push_next)
    bare = replace(good.instructions[where], tokens=replace(good.instructions[where].tokens, push_next=False))
    bad = replace(good, instructions=(*good.instructions[:where], bare, *good.instructions[where + 1 :]))
    monkeypatch.setattr(kernels, "stream", lambda *_: bad)
    with pytest.raises(BuildError, match="not valid for a board") as caught:
        kernel(layer, CHOICE, DEVICE)
    assert layer.to_json() in caught.value.details
    assert "--without vta" in caught.value.hint
