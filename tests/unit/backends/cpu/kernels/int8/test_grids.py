"""What kernels are told of scales, and how that follows from the grids of a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cpu_bytes import conv
from toolchain.backends.cpu.kernels.int8 import grids
from toolchain.backends.cpu.layers import Activation, Conv, Map, Pool, PostOp
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph.quantization import Grid

PLACE = Activation(1, 20, 7, 7, 16, dtype="uint8")
STEPS = (PostOp("relu"), PostOp("quantize"), PostOp("add", other=PLACE), PostOp("hard_swish"))


def with_steps(*epilogue):
    return conv((1, 20, 7, 7), 20, (3, 3), 16, epilogue=epilogue)


def test_bytes_of_machines():
    assert grids.byte_of(Machine(16, 32, "vpdpbusd")) == "uint8"
    assert {grids.byte_of(Machine(4, 32, dot)) for dot in ("sdot", "smull", "vmull")} == {"int8"}


def test_bytes_and_other_types():
    assert PLACE.is_bytes
    assert replace(PLACE, dtype="int8").is_bytes
    assert not replace(PLACE, dtype="float32").is_bytes


@pytest.mark.parametrize(
    ("epilogue", "expected"),
    [
        ((), [True]),
        ((PostOp("relu"), PostOp("add", other=PLACE)), [True]),
        ((PostOp("sigmoid"),), [False]),
        ((PostOp("relu"), PostOp("quantize"), PostOp("hard_swish")), [True, False]),
        ((PostOp("hard_swish"), PostOp("quantize"), PostOp("add", other=PLACE)), [False, True]),
        ((PostOp("clip", (0.0, 6.0)),), [False]),
    ],
)
def test_rounding_needs_no_factor_after_linear_steps(epilogue, expected):
    layer = with_steps(*epilogue)
    assert grids.quantizer_units(layer) == expected
    assert grids.quantizer_units(replace(layer, out=replace(layer.out, dtype="float32"))) == expected[:-1]


def test_sums_start_with_the_bias_and_without_what_zero_adds():
    layer = with_steps()
    weights = np.random.default_rng(0).integers(-128, 128, layer.weights_shape).astype(np.int8)
    bias = np.arange(20) * 1000.4
    start = grids.sums(layer, Grid(0.5, 100), weights, bias)
    assert (start.dtype, start.shape) == (np.int32, (2, 16))
    expected = np.rint(bias) - 100 * weights.reshape(20, -1).sum(axis=1, dtype=np.int64)
    assert (start.ravel()[:20] == expected).all()
    assert (start.ravel()[20:] == 0).all()


def test_depthwise_sums_start_with_the_bias():
    layer = replace(with_steps(), groups=20)
    weights = np.ones((20, 1, 3, 3), np.int8)
    assert (grids.sums(layer, Grid(0.5, 100), weights, np.full(20, 3.0)).ravel()[:20] == 3).all()


def test_scales_lead_to_the_unit_of_the_next_grid():
    scales = np.linspace(0.001, 0.002, 20)
    result, middle = Grid(0.25, 3), Grid(0.125, 5)

    def of(*epilogue, grids_):
        return grids.scales(with_steps(*epilogue), Grid(0.5, 0), scales, grids_).ravel()[:20]

    np.testing.assert_allclose(of(grids_=[result]), scales * 0.5 / 0.25, rtol=1e-6)
    np.testing.assert_allclose(of(PostOp("sigmoid"), grids_=[result]), scales * 0.5, rtol=1e-6)
    np.testing.assert_allclose(of(PostOp("quantize"), grids_=[middle, result]), scales * 0.5 / 0.125, rtol=1e-6)
    add = PostOp("add", other=PLACE)
    np.testing.assert_allclose(of(add, grids_=[Grid(9.0, 9), result]), scales * 0.5 / 0.25, rtol=1e-6)


def test_parameters_of_a_convolution():
    layer = with_steps(*STEPS)
    middle, other, result = Grid(0.5, 10), Grid(0.25, 20), Grid(0.125, 30)
    actual = grids.parameters(layer, Grid(2.0, 7), [middle, other, result])
    data, quantize, add, out = [7, 0], [1, -10, 245, 0.5], [0.25, -5], [8, -30, 225, 30]
    assert actual.dtype == np.float32
    assert actual.tolist() == [*data, *quantize, *add, *out]
    assert grids.parameter_count(layer) == actual.size


@pytest.mark.parametrize(
    ("bias", "expected"), [([3.25, -7.75, 0.25], 0.25), ([3.0, -8.0], 0.0), ([3.25, 4.5], 0.0), ([], 0.0)]
)
def test_what_all_biases_lie_above_whole_numbers_is_kept(bias, expected):
    assert grids.fraction(np.array(bias)) == expected
    activation = replace(PLACE, dtype="int8")
    assert grids.parameters(Conv(activation, activation, (1, 1)), Grid(2.0, 7), [Grid(0.5, 0)], 0.25)[1] == 0.25


def test_parameters_of_signed_bytes():
    activation = replace(PLACE, dtype="int8")
    layer = Conv(activation, activation, (1, 1))
    assert grids.parameters(layer, Grid(2.0, 7), [Grid(0.5, -10)]).tolist() == [7, 0, 1, -118, 137, -10]


def test_parameters_of_maps_and_means_tell_how_bytes_become_numbers():
    numbers = replace(PLACE, dtype="float32")
    to_numbers, to_bytes = Map(PLACE, numbers), Map(numbers, PLACE)
    assert grids.parameters(to_numbers, Grid(0.5, 10), []).tolist() == [0.5, -5]
    assert grids.parameters(to_bytes, Grid(1.0, 0), [Grid(0.5, 10)]).tolist() == [2, 0, 1, -10, 245, 10]
    mean = Pool(PLACE, replace(PLACE, height=1, width=1), "mean", (2, 4))
    assert grids.parameters(mean, Grid(0.5, 10), [Grid(0.25, 4)]).tolist() == [2, 10, 1, -4, 251, 4]
    assert grids.parameter_count(mean) == 6


def test_a_maximum_has_no_parameters():
    assert grids.parameter_count(Pool(PLACE, PLACE, "max", (1, 1))) == 0
