"""Convolutions of bytes against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_bytes as int8
from tests.support.cpu_bytes import MACHINES, NARROW, WIDE, check, conv
from tests.support.cpu_kernels import NATIVE, assembly, run
from toolchain.backends.cpu.kernels.int8 import conv as template
from toolchain.backends.cpu.kernels.int8.conv import Config
from toolchain.backends.cpu.layers import Activation, PostOp
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph.quantization import Grid

RESIDUAL = (PostOp("quantize"), PostOp("add"), PostOp("relu"))

CASES = {
    "1x1": ((1, 32, 7, 9), 48, (1, 1), {}),
    "1x1 with tails of channels": ((1, 20, 5, 6), 37, (1, 1), {"epilogue": RESIDUAL}),
    "1x1 down by 2": ((1, 32, 8, 7), 32, (1, 1), {"strides": (2, 2)}),
    "1x1 of one pixel": ((1, 64, 1, 1), 40, (1, 1), {}),
    "1x1 of several pixels": ((3, 16, 1, 1), 20, (1, 1), {}),
    "1x1 of many pixels": ((23, 32, 1, 1), 48, (1, 1), {"epilogue": RESIDUAL}),
    "3x3": ((1, 32, 9, 11), 32, (3, 3), {"padding": (1,) * 4, "epilogue": RESIDUAL}),
    "3x3 down by 2": ((2, 16, 11, 8), 24, (3, 3), {"padding": (1,) * 4, "strides": (2, 2)}),
    "padding at the end": ((1, 16, 8, 8), 16, (3, 3), {"padding": (0, 0, 1, 1), "strides": (2, 2)}),
    "padding that is not needed": ((1, 16, 6, 6), 16, (3, 3), {"padding": (1, 1, 2, 2), "strides": (3, 3)}),
    "dilation": ((1, 16, 9, 10), 16, (3, 3), {"padding": (2,) * 4, "dilation": (2, 2)}),
    "padding wider than the image": ((1, 16, 2, 3), 16, (3, 3), {"padding": (4,) * 4, "dilation": (4, 4)}),
    "nothing but padding": ((1, 16, 2, 2), 16, (1, 1), {"padding": (3, 3, 0, 0), "strides": (9, 9)}),
    "one row": ((1, 16, 1, 35), 32, (1, 5), {"padding": (0, 2, 0, 2)}),
    "one column": ((1, 16, 17, 1), 16, (3, 3), {"padding": (1,) * 4}),
    "three channels": ((1, 3, 30, 22), 32, (7, 7), {"padding": (3,) * 4, "strides": (2, 2), "few": True}),
    "functions": (
        (1, 16, 5, 5),
        16,
        (1, 1),
        {"epilogue": (PostOp("hard_swish"), PostOp("quantize"), PostOp("sigmoid"))},
    ),
    "product": ((1, 16, 5, 5), 20, (1, 1), {"epilogue": (PostOp("quantize"), PostOp("mul"), PostOp("relu"))}),
    "sum of three": ((1, 16, 5, 5), 16, (1, 1), {"epilogue": (PostOp("add"), PostOp("quantize"), PostOp("add"))}),
}


@pytest.fixture(autouse=True)
def _dot():
    int8.require_dot()


@pytest.mark.parametrize("width", MACHINES)
@pytest.mark.parametrize("case", CASES)
def test_best_config(case, width):
    data, channels, kernel, options = CASES[case]
    processor = MACHINES[width]
    check(template, conv(data, channels, kernel, processor.lanes, **options), processor)


@pytest.mark.parametrize("config", [Config(1, 1, 4), Config(1, 5, 2), Config(5, 3, 1), Config(1, 6, 4)], ids=str)
def test_rows_of_a_pointwise_convolution_as_one(config):
    layer = conv((1, 16, 5, 7), 64, (1, 1), 16, epilogue=RESIDUAL)
    assert config in dict(template.configs(layer, WIDE))
    check(template, layer, WIDE, config)


@pytest.mark.parametrize("config", [Config(1, 1, 4), Config(2, 5, 2), Config(3, 3, 1), Config(4, 2, 2)], ids=str)
def test_tiles_that_leave_a_rest(config):
    layer = conv((1, 16, 5, 7), 64, (3, 3), 16, padding=(1,) * 4)
    assert config in dict(template.configs(layer, WIDE))
    check(template, layer, WIDE, config)


def test_rows_of_a_matrix_that_are_parts_of_a_buffer():
    layer = conv((9, 32, 1, 1), 32, (1, 1), 16, epilogue=(PostOp("add"),))
    buffer_slice = replace(layer.out, first=1, held=4)
    layer = replace(layer, data=replace(layer.data, first=2, held=5), out=buffer_slice)
    assert Config(1, 4, 2) in dict(template.configs(layer, WIDE))
    check(template, layer, WIDE, Config(1, 4, 2))


@pytest.mark.parametrize("config", [Config(1, 3, 1), Config(2, 5, 2)], ids=str)
def test_a_product_with_one_pixel(config):
    pixel = Activation(2, 20, 1, 1, 16, dtype="uint8")
    layer = conv((2, 16, 6, 5), 20, (1, 1), 16, epilogue=(PostOp("mul", other=pixel), PostOp("relu")))
    check(template, layer, WIDE, config)


def test_numbers_as_the_result():
    layer = conv((1, 16, 5, 7), 20, (3, 3), 16, padding=(1,) * 4, epilogue=(PostOp("relu"),))
    check(template, replace(layer, out=replace(layer.out, dtype="float32")), WIDE)


def test_parts_of_buffers():
    layer = conv((1, 32, 6, 6), 32, (3, 3), 16, padding=(1,) * 4, epilogue=(PostOp("add"),))
    buffer_slice = replace(layer.out, first=1, held=4)
    check(template, replace(layer, data=replace(layer.data, first=2, held=5), out=buffer_slice), WIDE)
    check(template, replace(layer, epilogue=(PostOp("add", other=buffer_slice),)), WIDE)


def test_half_way_goes_to_the_even_byte():
    """Sums are the data here, and the unit is a half: 0.5, 1.5, 2.5 and so on."""
    layer = conv((1, 4, 1, 64), 4, (1, 1), 4)
    data = np.arange(256, dtype=np.uint8).reshape(1, 64, 4).transpose(0, 2, 1)[:, :, None]
    for zero in (0, 7):
        ones, unit = np.eye(4, dtype=np.int8)[:, :, None, None], Grid(1.0, zero)
        inputs = int8.Inputs(data, Grid(0.5, 3), (), (unit,), ones, np.ones(4), np.zeros(4))
        config = template.configs(layer, NARROW)[0][0]
        arguments = int8.arguments(template, layer, NARROW, config, inputs)
        actual = run(template.kernel(layer, NARROW, config), arguments, np.zeros(layer.out.shape, np.uint8))
        expected = np.rint((np.arange(256) - 3.0) / 2) + zero
        assert (actual.ravel() == np.clip(expected, 0, 255)).all()


def test_half_way_goes_up_where_biases_lie_a_quarter_higher():
    """As above, with what `toolchain quantize` adds to each bias: no half-way is left."""
    layer = conv((1, 4, 1, 64), 4, (1, 1), 4)
    data = np.arange(256, dtype=np.uint8).reshape(1, 64, 4).transpose(0, 2, 1)[:, :, None]
    ones = np.eye(4, dtype=np.int8)[:, :, None, None]
    inputs = int8.Inputs(data, Grid(0.5, 3), (), (Grid(1.0, 7),), ones, np.ones(4), np.full(4, 0.25))
    config = template.configs(layer, NARROW)[0][0]
    arguments = int8.arguments(template, layer, NARROW, config, inputs)
    actual = run(template.kernel(layer, NARROW, config), arguments, np.zeros(layer.out.shape, np.uint8))
    expected = np.floor((np.arange(256) - 3.0) / 2 + 0.5) + 7
    assert (actual.ravel() == np.clip(expected, 0, 255)).all()


def test_cores_share_a_large_layer():
    layer = conv((2, 64, 20, 18), 64, (3, 3), 16, padding=(1,) * 4)
    assert "TVMBackendParallelLaunch" in assembly(template.kernel(layer, WIDE, Config(2, 6, 2)), NATIVE)
    check(template, layer, WIDE, Config(2, 6, 2))
    small = conv((1, 16, 3, 3), 16, (3, 3), 16, padding=(1,) * 4)
    assert "TVMBackendParallelLaunch" not in assembly(template.kernel(small, WIDE, Config(1, 3, 1)), NATIVE)


def test_greatest_sums_do_not_overflow():
    layer = conv((1, 4096, 1, 1), 16, (1, 1), 16)
    inputs = int8.inputs_of(layer)
    full = replace(inputs, data=np.full_like(inputs.data, 255), weights=np.full_like(inputs.weights, -128))
    expected = 255 * -128 * 4096.0
    grid = Grid(1.0, 0)
    exact = replace(
        full, data_grid=grid, grids=(Grid(-expected / 100, 200),), weight_scales=np.ones(16), bias=np.zeros(16)
    )
    config = template.configs(layer, WIDE)[0][0]
    arguments = int8.arguments(template, layer, WIDE, config, exact)
    assert (run(template.kernel(layer, WIDE, config), arguments, np.zeros(layer.out.shape, np.uint8)) == 100).all()


def test_bias_beyond_the_sums_of_products_is_limited():
    layer = conv((1, 16, 1, 1), 16, (1, 1), 16)
    inputs = replace(int8.inputs_of(layer), bias=np.full(16, 1e12))
    _, _, sums, *_ = int8.arguments(template, layer, WIDE, Config(1, 1, 1), inputs)
    assert (sums == np.iinfo(np.int32).max).all()


def test_what_is_not_covered():
    layer = conv((1, 32, 5, 5), 32, (3, 3), 16)
    assert template.covers(layer)
    assert not template.covers(replace(layer, groups=2))
    assert not template.covers(replace(layer, data=replace(layer.data, dtype="float32")))
    assert not template.covers(replace(layer, data=replace(layer.data, lanes=1)))
    assert not template.covers(conv((1, 70000, 1, 1), 16, (1, 1), 16))


def test_no_candidates_without_dot_products():
    assert template.configs(conv((1, 32, 5, 5), 32, (3, 3), 16), Machine(16, 32)) == []


def test_cost_counts_cores_and_products():
    layer = conv((1, 64, 14, 14), 64, (3, 3), 16, padding=(1,) * 4)
    (_, item), (_, two) = (template.configs(layer, replace(WIDE, cores=cores))[0] for cores in (1, 2))
    products = layer.flops / 2 / (4 * 16)
    assert products <= item <= 1.4 * products
    assert 0.5 * item <= two <= 0.6 * item
