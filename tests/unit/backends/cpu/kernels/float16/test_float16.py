"""Kernels in float16, computed by this machine, against ONNX Runtime's float32."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cpu_kernels import applied, blocked, by_channel, one_node, random, run, unblocked
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels.float16 import bounds
from toolchain.backends.cpu.layers import Activation, Conv, Dense, Map, Pool, PostOp, in_float16
from toolchain.backends.cpu.machine import Machine, with_float16
from toolchain.errors import BuildError

MACHINE = with_float16(Machine(4, 32, "sdot", cores=2, loads_apart=True, limits_nan=True))
LANES = MACHINE.lanes
RELU = (PostOp("relu"),)


def image(channels, height=9, width=7, lanes=LANES, **more):
    return Activation(1, channels, height, width, lanes, **more)


def conv(inputs, outputs, kernel=(1, 1), lanes=LANES, size=(5, 7), **more):
    """Return a convolution that keeps the size of its image, as far as the strides do."""
    padding = tuple(extent // 2 for extent in kernel) * 2
    strides = more.get("strides", (1, 1))
    out = [(extent - 1) // stride + 1 for extent, stride in zip(size, strides, strict=True)]
    return in_float16(Conv(image(inputs, *size, lanes), image(outputs, *out), kernel, padding=padding, **more))


def computed(layer, choice, data=None, scale=1.0):
    """Return what a kernel of a convolution computes, and what is right."""
    if data is None:
        data = random((1, layer.data.channels, layer.data.height, layer.data.width))
    weights = random(layer.weights_shape, 1) * np.float32(scale * np.prod(layer.weights_shape[1:]) ** -0.5)
    bias, others = random(layer.out.channels, 2), []
    arrays = [blocked(data, layer.data).astype(layer.data.dtype), kernels.pack(layer, MACHINE, choice, weights)]
    if layer.bias:
        arrays.append(by_channel(bias, layer.out))
    for number, op in enumerate(op for op in layer.epilogue if op.takes_argument):
        shape = (1, layer.out.channels, layer.out.height, layer.out.width) if op.other else (layer.out.channels,)
        others.append(random(shape, 3 + number))
        other = blocked(others[-1], op.other).astype("float16") if op.other else by_channel(others[-1], layer.out)
        arrays.append(other)
    function = kernels.kernel(layer, MACHINE, choice)
    result = run(function, arrays, np.full(layer.out.shape, np.nan, np.float16))
    shape = {"pads": layer.padding, "strides": layer.strides, "dilations": layer.dilation, "group": layer.groups}
    right = one_node("Conv", {"x": data, "w": weights, **({"b": bias} if layer.bias else {})}, **shape)
    return unblocked(result, layer.out).astype(np.float32), applied(right, layer.epilogue, others)


def difference(actual, right):
    """Return the largest difference, in terms of the largest number."""
    return float(np.abs(actual - right).max() / np.abs(right).max())


LAYERS = {
    "pointwise": conv(24, 40, bias=True, epilogue=RELU),
    "several-chains": conv(200, 16, bias=True),
    "several-sums": conv(1040, 8, size=(3, 3), epilogue=RELU),
    "3x3": conv(20, 16, (3, 3), strides=(2, 2), bias=True, epilogue=RELU),
    "5x5": conv(16, 24, (5, 5), size=(5, 4), bias=True, epilogue=(PostOp("silu"),)),
    "first": conv(3, 16, (3, 3), lanes=1, strides=(2, 2), bias=True, epilogue=(PostOp("clip", (0.0, 6.0)),)),
    "grouped": conv(32, 32, (3, 3), groups=4, bias=True),
    "residual": conv(16, 16, bias=True, epilogue=(PostOp("add", other=image(16, 5, 7, dtype="float16")), *RELU)),
    "per-channel": conv(16, 16, size=(3, 4), epilogue=(PostOp("leaky_relu", (0.1,)), PostOp("scale"), PostOp("shift"))),
    "depthwise": conv(24, 24, (3, 3), groups=24, bias=True, epilogue=RELU),
    "depthwise-large": conv(8, 8, (13, 13), size=(9, 3), groups=8, bias=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_convolution(name):
    layer = LAYERS[name]
    actual, right = computed(layer, kernels.default(layer, MACHINE, without=frozenset({"winograd"})))
    assert 1e-5 < difference(actual, right) < 4e-3


def winograd(layer, tile, fused):
    return next(
        candidate.choice
        for candidate in kernels.variants(layer, MACHINE) + kernels.candidates(layer, MACHINE)
        if candidate.choice.template == "float16_winograd"
        and (candidate.choice.config.tile, candidate.choice.config.fused) == (tile, fused)
    )


@pytest.mark.parametrize(("inputs", "tile", "fused"), [(24, 4, 1), (136, 2, 0)])
def test_winograd(inputs, tile, fused):
    layer = conv(inputs, 16, (3, 3), size=(9, 7), bias=True, epilogue=RELU)
    actual, right = computed(layer, winograd(layer, tile, fused))
    assert 1e-5 < difference(actual, right) < 2e-2


@pytest.mark.parametrize(("inputs", "tile", "fused"), [(24, 4, 1), (24, 2, 1), (136, 4, 0), (136, 2, 0)])
def test_winograd_stays_finite_wherever_the_result_does(inputs, tile, fused):
    layer = conv(inputs, 16, (3, 3), size=(9, 7))
    signs = np.sign(random((1, inputs, 9, 7), 4))
    actual, right = computed(layer, winograd(layer, tile, fused), 6e4 * signs, scale=0.15)
    assert 1e4 < np.abs(right).max() < 6e4
    assert difference(actual, right) < 2e-2


def test_winograd_is_as_exact_with_small_numbers():
    layer = conv(64, 16, (3, 3), size=(9, 7))
    choice, data = winograd(layer, 4, 1), random((1, 64, 9, 7), 4)
    small, usual = (difference(*computed(layer, choice, data * np.float32(factor))) for factor in (0.05, 1.0))
    assert small < 2 * usual


def test_sums_stay_finite_wherever_the_result_does():
    # Weights of both signs: half of the sum is three times the greatest number of float16.
    layer = conv(64, 8, size=(1, 3))
    choice = kernels.default(layer, MACHINE)
    weights = np.repeat(np.float32([6.0, -6.0]), 32).reshape(1, 64, 1, 1).repeat(8, 0)
    data = np.full(layer.data.shape, 1000.0, np.float16)
    arrays = [data, kernels.pack(layer, MACHINE, choice, weights)]
    result = run(kernels.kernel(layer, MACHINE, choice), arrays, np.zeros(layer.out.shape, np.float16))
    assert np.abs(result).max() < 1e-3 * 32 * 6000


def test_weights_that_no_power_fits_are_refused():
    with pytest.raises(BuildError, match="add up to 1e\\+06: too much for half precision"):
        bounds.powers(np.float32([1.0, 1e6]))


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 300, 21), (5, 130, 40)])
def test_dense(rows, inputs, outputs):
    layer = in_float16(Dense(rows, inputs, outputs, bias=True, epilogue=RELU))
    choice = kernels.default(layer, MACHINE)
    data, weights, bias = random((rows, inputs)), random((outputs, inputs), 1) / 9, random(outputs, 2)
    arrays = [data, kernels.pack(layer, MACHINE, choice, weights), bias]
    actual = run(kernels.kernel(layer, MACHINE, choice), arrays, np.full((rows, outputs), np.nan, np.float32))
    right = np.maximum(data @ weights.T + bias, 0)
    assert 1e-5 < np.abs(actual - right).max() / right.max() < 3e-3


@pytest.mark.parametrize("reduce", ["max", "mean"])
@pytest.mark.parametrize("kernel", [(3, 3), (9, 7)])
def test_a_pool(reduce, kernel):
    out = image(20) if kernel == (3, 3) else image(20, 1, 1)
    padding = (1, 1, 1, 1) if kernel == (3, 3) else (0, 0, 0, 0)
    layer = in_float16(Pool(image(20), out, reduce, kernel, padding=padding))
    data = random((1, 20, 9, 7)).astype(np.float16)
    choice = kernels.default(layer, MACHINE)
    result = run(
        kernels.kernel(layer, MACHINE, choice), [blocked(data, layer.data)], np.zeros(layer.out.shape, np.float16)
    )
    name = {"max": "MaxPool", "mean": "AveragePool"}[reduce]
    right = one_node(name, {"x": data.astype(np.float32)}, kernel_shape=kernel, pads=padding)
    np.testing.assert_allclose(unblocked(result, layer.out), right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [(9, 7), (1, 3), (1, 1)])
def test_layouts_change_together_with_the_type(size):
    plain, blocks = image(20, *size, lanes=1), image(20, *size)
    data = random((1, 20, *size))
    there, back = (in_float16(Map(*ends)) for ends in ((plain, blocks), (blocks, plain)))
    first = run(
        kernels.kernel(there, MACHINE, kernels.default(there, MACHINE)), [data], np.zeros(there.out.shape, np.float16)
    )
    np.testing.assert_array_equal(first, blocked(data.astype(np.float16), blocks))
    second = run(kernels.kernel(back, MACHINE, kernels.default(back, MACHINE)), [first], np.zeros_like(data))
    np.testing.assert_array_equal(second, data.astype(np.float16).astype(np.float32))


def test_records_tell_precisions_apart():
    layer = Conv(image(24), image(40), (1, 1))
    assert kernels.default(in_float16(layer), MACHINE).template == "float16"
    assert not kernels.fits(layer, kernels.default(in_float16(layer), MACHINE))
    assert not kernels.fits(in_float16(layer), kernels.default(layer, MACHINE))
