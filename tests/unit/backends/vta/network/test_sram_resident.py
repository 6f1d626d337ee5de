"""Which tensors may stay in the array's memory: those that its kernels alone write and read."""

from __future__ import annotations

from tests.support.vta_nets import Net, kernel_calls, same
from toolchain.backends.vta.network.partition import RESIDENT, resident_bits

X, RESIDUAL = 1, 8
"""Bits of what a layer with a bias reads."""
Y, SUM = 8, 32
"""Bits of its result, without and with a residual."""


def bits(module) -> list[int]:
    return [resident_bits(module[call.args[0]].attrs) for call in kernel_calls(module)]


def test_layers_behind_each_other():
    net = Net(16, 8)
    first = net.layer(net.rounded("x", 4), 16, 16)
    second = net.layer(first, 16, 32)
    total = net.rounded(net.add("Add", [net.conv(net.layer(second, 32, 16), 16, 16), first]), 4)
    module = same(net, net.layer(total, 16, 16))
    assert bits(module) == [Y, X | Y, X | Y, X | RESIDUAL | SUM, X]


def test_results_of_the_network_and_what_the_cpu_reads_leave_it():
    net = Net(16, 8)
    output = net.layer(net.rounded("x", 4), 16, 16)
    pooled = net.rounded(net.add("MaxPool", [output], kernel_shape=[3, 3], pads=[1] * 4), 4)
    module = same(net, output, net.layer(net.layer(pooled, 16, 16), 16, 16))
    assert bits(module) == [0, Y, X]


def test_a_network_of_one_layer_says_nothing():
    net = Net(16, 8)
    module = same(net, net.layer(net.rounded("x", 4), 16, 16))
    assert bits(module) == [0]
    assert not [function for function in module.functions.values() if RESIDENT in (function.attrs or {})]
