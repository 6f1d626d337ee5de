"""Maxima, images put together and means of bytes in blocks: the same as of the numbers that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax.frontend.onnx import from_onnx

from tests.support.vta_nets import Net, calls, layers, reference, run
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.network.partition import partitioned


def check(net, *outputs, exact=True, config=DEFAULT):
    """Compare a network with ONNX Runtime; returns the split module."""
    module = partitioned(from_onnx(net.proto(*outputs)), config).module
    for mine, wanted in zip(run(module, net.data()), reference(net.proto(*outputs), net.data()), strict=True):
        assert np.unique(wanted).size > 8
        if exact:
            np.testing.assert_array_equal(mine, wanted)
        else:
            np.testing.assert_allclose(mine, wanted, rtol=1e-6, atol=1e-7)
    return module


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
    pooled = net.add("MaxPool", [net.layer(net.rounded("x", 4), 16, channels)], **window)
    module = check(net, net.layer(net.rounded(pooled, 4), channels, 16))
    assert (calls(module, "quantize"), calls(module, "dequantize"), calls(module, "permute_dims")) == (1, 1, 2)


def test_maxima_of_negative_numbers_and_padding():
    net = Net(16, 5)
    made = net.rounded(net.conv(net.rounded("x", 4), 16, 16), 4)
    pooled = net.add("MaxPool", [made], kernel_shape=[3, 3], pads=[1] * 4)
    check(net, net.rounded(net.conv(net.rounded(pooled, 4), 16, 16), 4))


def test_what_is_put_together_and_then_pooled():
    net = Net(16, 9)
    data = net.layer(net.rounded("x", 4), 16, 32)
    joined = net.add("Concat", [net.layer(data, 32, 16), net.layer(data, 32, 48, 3)], axis=1)
    pooled = net.add("MaxPool", [joined], kernel_shape=[3, 3], strides=[2, 2])
    module = check(net, net.layer(net.rounded(pooled, 4), 64, 16), net.layer(net.rounded(joined, 4), 64, 16))
    assert calls(module, "quantize") == 1
    assert len(layers(module)) == 5


def test_what_has_another_scale_or_lies_within_a_block_is_the_same_on_floats():
    net = Net(16, 6)
    data = net.rounded("x", 4)
    other = net.add("MaxPool", [net.layer(data, 16, 16)], kernel_shape=[2, 2])
    joined = net.add("Concat", [net.layer(data, 16, 8), net.layer(data, 16, 24)], axis=1)
    rows = net.add("Concat", [net.layer(data, 16, 16), net.layer(data, 16, 16)], axis=2)
    ends = [net.layer(net.rounded(other, 3), 16, 16), net.layer(net.rounded(joined, 4), 32, 16)]
    module = check(net, *ends, net.layer(net.rounded(rows, 4), 16, 16))
    assert calls(module, "quantize") == 4


@pytest.mark.parametrize("channels", [32, 20])
def test_means(channels):
    net = Net(16, (7, 5))
    pooled = net.add("GlobalAveragePool", [net.layer(net.rounded("x", 4), 16, channels)])
    module = check(net, net.add("Sigmoid", [pooled]), exact=False)
    assert (calls(module, "dequantize"), calls(module, "permute_dims")) == (0, 1)


@pytest.mark.parametrize("batch", [1, 3, 4, 5])
@pytest.mark.parametrize("shape", [(2, 4), (0, 5), (1, 3)])
def test_on_arrays_of_other_shapes(shape, batch):
    config = VtaConfig(log_batch=shape[0], log_block=shape[1])
    net = Net(16, (7, 6), batch)
    data = net.layer(net.rounded("x", 4), 16, 32)
    joined = net.add("Concat", [net.layer(data, 32, 32), net.layer(data, 32, 32, 3)], axis=1)
    pooled = net.rounded(net.add("MaxPool", [joined], kernel_shape=[3, 3], strides=[2, 2]), 4)
    found = net.layer(pooled, 64, 20)
    module = check(net, found, net.add("GlobalAveragePool", [found]), exact=False, config=config)
    assert (calls(module, "quantize"), len(layers(module))) == (1, 4)
    assert {layer.batch for layer in layers(module)} == {batch}


def test_means_of_what_no_layer_reads_are_the_cpus():
    net = Net(16, 6)
    other = net.rounded(net.add("Sigmoid", ["x"]), 6)
    module = check(net, net.add("GlobalAveragePool", [other]), net.layer(net.rounded("x", 4), 16, 16), exact=False)
    assert calls(module, "dequantize") == 2
