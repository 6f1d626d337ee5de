"""Maxima that follow a layer are the layer's, where nobody else reads it and they make it smaller."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.vta_nets import Net, calls, layers, same

WINDOWS = [
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 1, 0]},
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
]


def with_maxima(channels: int = 32, exponent: int = 4, **window):
    """Return a network of two layers, with maxima between, and its result."""
    net = Net(16, (8, 7))
    pooled = net.add("MaxPool", [net.layer(net.rounded("x", 4), 16, channels)], **window)
    return net, net.layer(net.rounded(pooled, exponent), channels, 16)


@pytest.mark.parametrize("channels", [32, 20])
@pytest.mark.parametrize("window", WINDOWS)
def test_maxima_are_the_layers(channels, window):
    module = same(*with_maxima(channels, **window))
    assert [layer.pool is not None for layer in layers(module)] == [True, False]
    assert (calls(module, "nn.max_pool2d"), calls(module, "quantize"), calls(module, "permute_dims")) == (0, 1, 2)


@pytest.mark.parametrize("zero", [0, -128, 90])
def test_negative_numbers_and_padding(zero):
    net = Net(16, 5, zero=zero)
    data = net.rounded(net.conv(net.rounded("x", 4), 16, 16, 3, strides=[2, 2], pads=[1] * 4), 4)
    pooled = net.add("MaxPool", [data], kernel_shape=[3, 3], pads=[2, 1, 0, 1], strides=[1, 2])
    (layer,) = layers(same(net, net.rounded(pooled, 4)))
    assert layer.pool.outside == (2, 1, 0, 1)
    assert layer.padding == (5, 3, 1, 3)


@pytest.mark.parametrize("zero", [0, -5])
def test_an_image_whose_pixels_become_channels(zero):
    net = Net(3, 20, zero=zero)
    sums = net.conv(net.rounded("x", 4), 3, 16, 7, strides=[2, 2], pads=[3] * 4)
    relu = net.rounded(net.add("Relu", [sums]), 4)
    pooled = net.add("MaxPool", [relu], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    (layer,) = layers(same(net, net.rounded(pooled, 4)))
    assert (layer.kernel, layer.stride, layer.padding[:2], layer.pool.outside[:2]) == ((4, 4), (1, 1), (1, 1), (1, 1))


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [2, 2], "strides": [2, 2], "dilations": [2, 1]},
        {"kernel_shape": [3, 3], "strides": [1, 2], "pads": [2, 1, 2, 1]},
    ],
    ids=["as many as before", "dilated", "beyond the end"],
)
def test_other_maxima_are_the_cpus(window):
    module = same(*with_maxima(**window))
    assert all(layer.pool is None for layer in layers(module))
    assert calls(module, "nn.max_pool2d") == 1


def test_maxima_of_another_scale_are_the_cpus():
    module = same(*with_maxima(exponent=3, **WINDOWS[0]))
    assert (calls(module, "nn.max_pool2d"), calls(module, "quantize")) == (1, 2)


def test_maxima_of_another_zero_point_are_the_cpus():
    net = Net(16, (8, 7))
    pooled = net.add("MaxPool", [net.layer(net.rounded("x", 4), 16, 32)], **WINDOWS[0])
    module = same(net, net.layer(net.rounded(pooled, 4, zero=net.hold(np.int8(-50))), 32, 16))
    assert calls(module, "nn.max_pool2d") == 1


def test_maxima_with_other_readers_are_the_cpus():
    net = Net(16, 8)
    data = net.layer(net.rounded("x", 4), 16, 16)
    pooled = net.rounded(net.add("MaxPool", [data], **WINDOWS[0]), 4)
    module = same(net, net.layer(data, 16, 16), net.layer(pooled, 16, 16))
    assert all(layer.pool is None for layer in layers(module))


def test_sums_with_a_residual_are_not_made_fewer():
    net = Net(16, 8)
    data = net.layer(net.rounded("x", 4), 16, 16)
    total = net.rounded(net.add("Add", [net.conv(data, 16, 16), data]), 4)
    pooled = net.add("MaxPool", [total], **WINDOWS[0])
    module = same(net, net.layer(net.rounded(pooled, 4), 16, 16))
    assert all(layer.pool is None for layer in layers(module))
