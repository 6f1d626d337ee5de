"""Winograd convolution along a row: every kernel gives what ONNX Runtime gives, whatever the taps and dilation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_kernels as kernels
from tests.support.cpu_kernels import MIDDLE, NARROW, WIDE
from toolchain.backends.cpu import kernels as templates
from toolchain.backends.cpu.kernels.winograd import row
from toolchain.backends.cpu.kernels.winograd.line import Line
from toolchain.backends.cpu.kernels.winograd.row import Config
from toolchain.backends.cpu.layers import Conv, PostOp


def layer_of(taps, width, channels=(16, 16), lanes=8, dilation=1, padding=None, batch=1, **options) -> Conv:
    before = (taps - 1) * dilation // 2 if padding is None else padding
    return kernels.layer_of(
        (batch, channels[0], 1, width),
        channels[1],
        (1, taps),
        lanes,
        padding=(0, before, 0, before),
        dilation=(1, dilation),
        **options,
    )


def column_of(layer: Conv) -> Conv:
    """Return a convolution along a row as one along a column."""
    data, out = (replace(activation, height=activation.width, width=1) for activation in (layer.data, layer.out))
    (_, taps), (_, before, _, after), (_, dilation) = layer.kernel, layer.padding, layer.dilation
    return replace(layer, data=data, out=out, kernel=(taps, 1), padding=(before, 0, after, 0), dilation=(dilation, 1))


PLAIN = layer_of(3, 40)


@pytest.mark.parametrize(
    ("layer", "covered"),
    [
        (PLAIN, True),
        (column_of(PLAIN), True),
        (layer_of(11, 40, dilation=5), True),
        (layer_of(3, 40, channels=(12, 20)), True),
        (layer_of(2, 40), False),
        (layer_of(17, 40), False),
        (layer_of(3, 40, lanes=4), False),
        (layer_of(3, 40, groups=2), False),
        (layer_of(3, 40, strides=(1, 2)), False),
        (kernels.layer_of((1, 16, 2, 40), 16, (1, 3), 8), False),
        (kernels.layer_of((1, 16, 40, 40), 16, (3, 3), 8), False),
        (kernels.layer_of((1, 3, 1, 40), 16, (1, 3), 8, plain=True), False),
        (replace(PLAIN, data=replace(PLAIN.data, dtype="float16")), False),
    ],
)
def test_covers(layer, covered):
    assert row.covers(layer) == covered


@pytest.mark.parametrize("taps", [3, 4, 7, 11, 16])
def test_taps(taps):
    kernels.check(row, layer_of(taps, 45), MIDDLE, Config(3, 2, 1))


@pytest.mark.parametrize(("taps", "dilation", "width"), [(3, 3, 41), (7, 5, 64), (11, 5, 100), (3, 7, 5)])
def test_dilation(taps, dilation, width):
    kernels.check(row, layer_of(taps, width, dilation=dilation), MIDDLE, Config(2, 2, 2))


@pytest.mark.parametrize("width", [1, 3, 4, 16, 17])
def test_widths(width):
    kernels.check(row, layer_of(3, width), MIDDLE, Config(2, 1, 1))


@pytest.mark.parametrize("padding", [0, 3])
def test_padding(padding):
    kernels.check(row, layer_of(3, 21, padding=padding), MIDDLE, Config(2, 2, 2))


@pytest.mark.parametrize("machine", [MIDDLE, WIDE], ids=lambda machine: str(machine.lanes))
def test_channels_lanes_and_images(machine):
    layer = layer_of(7, 30, (19, 37), machine.lanes, batch=2, bias=False)
    kernels.check(row, layer, machine, Config(3, 2, 1))


def test_column():
    kernels.check(row, column_of(layer_of(7, 40, dilation=3)), MIDDLE, Config(3, 2, 2))


def test_epilogue():
    other = layer_of(3, 21).out
    epilogue = (PostOp("add", other=other), PostOp("leaky_relu", (0.1,)))
    kernels.check(row, layer_of(3, 21, epilogue=epilogue), MIDDLE, Config(3, 2, 2))


def test_candidates_fit_into_the_registers():
    for config, cost in row.configs(layer_of(11, 1024, (128, 128)), MIDDLE):
        assert config.tiles * config.blocks + config.blocks + 1 <= MIDDLE.registers
        assert cost > 0


@pytest.mark.parametrize(("taps", "dilation"), [(3, 1), (7, 3), (11, 5)])
def test_long_rows_are_convolved_so_by_default(taps, dilation):
    layer = layer_of(taps, 4096, (64, 64), dilation=dilation)
    assert templates.default(layer, MIDDLE).template == row.NAME
    assert templates.default(layer, MIDDLE, without=frozenset({"winograd"})).template == "direct"
    listed = templates.variants(layer, MIDDLE, without=frozenset({"winograd"}))
    assert {candidate.choice.template for candidate in listed} == {"direct"}
    assert not row.covers(layer_of(taps, 4096, (64, 64), NARROW.lanes, dilation=dilation))


@pytest.mark.parametrize(("taps", "tolerance"), [(3, 5e-6), (4, 1e-5)])
def test_errors_stay_near_those_of_direct_convolution(taps, tolerance):
    layer = layer_of(4 * 2 + taps - 1 if taps == 4 else taps, 64, (256, 16))
    buffer = kernels.computed(row, layer, MIDDLE, Config(4, 2, 2))
    inputs = kernels.inputs_of(layer)
    expected = kernels.expected(layer, inputs)
    assert np.abs(kernels.unblocked(buffer, layer.out) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize(("taps", "components"), [(3, 6), (4, 7)])
def test_components(taps, components):
    line = Line(4, taps)
    assert line.components == components == len(line.filters)
