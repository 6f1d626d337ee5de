"""What the CPU computes on bytes in blocks: maxima, concatenations, means and averages, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.vta_nets import Net, calls, layers, same
from toolchain.backends.graph.values import Operation
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.network.cpu_ops import average, mean


@pytest.mark.parametrize("channels", [32, 20])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 1, 0]},
        {"kernel_shape": [2, 2], "dilations": [2, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    ],
)
def test_maxima(channels, window):
    net = Net(16, (8, 7))
    data = net.layer(net.rounded("x", 4), 16, channels)
    pooled = net.add("MaxPool", [data], **window)
    # Both are read, so that the layer cannot make maxima alone.
    ends = [net.layer(tensor, channels, 16) for tensor in (data, net.rounded(pooled, 4))]
    module = same(net, *ends)
    assert (calls(module, "quantize"), calls(module, "dequantize"), calls(module, "permute_dims")) == (1, 2, 3)


@pytest.mark.parametrize("zero", [0, -128, 100])
def test_maxima_of_negative_numbers_and_padding(zero):
    net = Net(16, 5, zero=zero)
    data = net.rounded(net.conv(net.rounded("x", 4), 16, 16), 4)
    pooled = net.add("MaxPool", [data], kernel_shape=[3, 3], pads=[1] * 4)
    same(net, net.rounded(net.conv(net.rounded(pooled, 4), 16, 16), 4))


@pytest.mark.parametrize("zero", [0, -100])
def test_what_is_put_together_and_then_pooled(zero):
    net = Net(16, 9, zero=zero)
    data = net.layer(net.rounded("x", 4), 16, 32)
    joined = net.add("Concat", [net.layer(data, 32, 16), net.layer(data, 32, 48, 3)], axis=1)
    pooled = net.add("MaxPool", [joined], kernel_shape=[3, 3], strides=[2, 2])
    module = same(net, net.layer(net.rounded(pooled, 4), 64, 16), net.layer(net.rounded(joined, 4), 64, 16))
    assert calls(module, "quantize") == 1
    assert len(layers(module)) == 5


def test_what_has_another_scale_or_lies_within_a_block_is_the_same_on_floats():
    net = Net(16, 6)
    data = net.rounded("x", 4)
    other = net.add("MaxPool", [net.layer(data, 16, 16)], kernel_shape=[2, 2])
    joined = net.add("Concat", [net.layer(data, 16, 8), net.layer(data, 16, 24)], axis=1)
    rows = net.add("Concat", [net.layer(data, 16, 16), net.layer(data, 16, 16)], axis=2)
    ends = [net.layer(net.rounded(other, 3), 16, 16), net.layer(net.rounded(joined, 4), 32, 16)]
    module = same(net, *ends, net.layer(net.rounded(rows, 4), 16, 16))
    assert calls(module, "quantize") == 4


@pytest.mark.parametrize("batch", [1, 3, 4, 5])
@pytest.mark.parametrize("shape", [(2, 4), (0, 5), (1, 3)])
def test_on_arrays_of_other_shapes(shape, batch):
    config = VtaConfig(log_batch=shape[0], log_block=shape[1])
    net = Net(16, (7, 6), batch)
    data = net.layer(net.rounded("x", 4), 16, 32)
    joined = net.add("Concat", [net.layer(data, 32, 32), net.layer(data, 32, 32, 3)], axis=1)
    pooled = net.rounded(net.add("MaxPool", [joined], kernel_shape=[3, 3], strides=[2, 2]), 4)
    layer = net.layer(pooled, 64, 20)
    module = same(net, layer, net.add("GlobalAveragePool", [layer]), config=config)
    assert (calls(module, "quantize"), len(layers(module))) == (1, 4)
    assert {layer.batch for layer in layers(module)} == {batch}


def test_what_has_another_zero_point_is_the_same_on_floats():
    net = Net(16, 6)
    pooled = net.add("MaxPool", [net.layer(net.rounded("x", 4), 16, 16)], kernel_shape=[2, 2])
    module = same(net, net.layer(net.rounded(pooled, 4, zero=net.hold(np.int8(-50))), 16, 16))
    assert calls(module, "quantize") == 2


@pytest.mark.parametrize("zero", [0, -128, 3])
@pytest.mark.parametrize(("channels", "batch"), [(32, 2), (20, 1), (11, 2)])
def test_means(channels, batch, zero):
    net = Net(16, (7, 5), batch, zero=zero)
    pooled = net.add("GlobalAveragePool", [net.layer(net.rounded("x", 4), 16, channels)])
    module = same(net, net.add("Relu", [pooled]))
    assert (calls(module, "dequantize"), calls(module, "permute_dims"), calls(module, "mean")) == (0, 1, 0)


def test_means_of_what_no_layer_reads_are_the_cpus():
    net = Net(16, 6)
    other = net.rounded(net.add("Sigmoid", ["x"]), 6)
    module = same(net, net.add("GlobalAveragePool", [other]), net.layer(net.rounded("x", 4), 16, 16), exact=False)
    assert (calls(module, "dequantize"), calls(module, "mean")) == (2, 1)


def test_what_is_no_mean():
    assert mean(Operation("abs", (), ()), DEFAULT) is None


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
