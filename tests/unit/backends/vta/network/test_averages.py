"""Averages of windows of bytes in blocks: the bytes that ONNX Runtime makes, to the bit."""

from __future__ import annotations

import pytest

from tests.support.vta_nets import Net, calls, same
from toolchain.backends.graph.values import Operation
from toolchain.backends.vta.isa.config import DEFAULT
from toolchain.backends.vta.network.averages import average


def averaged(channels: int = 32, batch: int = 1, zero: int = 0, exponent: int = 5, **window):
    """Return a network with averages between two layers, and its result."""
    net = Net(16, (9, 8), batch, zero=zero)
    pooled = net.add("AveragePool", [net.layer(net.rounded("x", 4), 16, channels)], **window)
    return net, net.layer(net.rounded(pooled, exponent), channels, 16)


@pytest.mark.parametrize("zero", [0, -128, 7])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [5, 2], "strides": [3, 1], "pads": [2, 0, 1, 1]},
    ],
    ids=["halves", "without padding", "with padding", "uneven"],
)
def test_averages(window, zero):
    module = same(*averaged(zero=zero, **window))
    assert [calls(module, name) for name in ("nn.avg_pool2d", "quantize", "dequantize", "permute_dims")] == [0, 1, 1, 2]


@pytest.mark.parametrize("exponent", [3, 4, 9])
def test_other_scales_and_several_images(exponent):
    module = same(*averaged(20, 2, exponent=exponent, kernel_shape=[3, 3], strides=[2, 2]))
    assert calls(module, "nn.avg_pool2d") == 0


def test_windows_beyond_the_end_are_averaged_on_floats():
    module = same(*averaged(kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1))
    assert calls(module, "quantize") == 2


def test_what_no_layer_makes_is_computed_on_floats():
    net = Net(16, 8)
    pooled = net.add("AveragePool", [net.rounded(net.add("Sigmoid", ["x"]), 6)], kernel_shape=[2, 2])
    module = same(net, net.layer(net.rounded(pooled, 5), 16, 16))
    assert calls(module, "quantize") == 2


def test_what_is_no_average():
    assert average(Operation("abs", (), ()), DEFAULT) is None
