"""Means over all pixels of bytes in blocks: those of ONNX Runtime, to the bit."""

from __future__ import annotations

import pytest

from tests.support.vta_nets import Net, calls, same
from toolchain.backends.graph.values import Operation
from toolchain.backends.vta.isa.config import DEFAULT
from toolchain.backends.vta.network.means import mean


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
