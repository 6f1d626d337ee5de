"""Which layers VTA computes, and what is said of the others."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax.frontend.onnx import from_onnx

from tests.support.vta_nets import Net, layers
from toolchain.backends.vta.network.partition import partition


def refused(net, *outputs):
    """Return why each of the layers stays on the CPU."""
    return partition(from_onnx(net.proto(*outputs))).refused


def only(net, output):
    """Return the only refusal of a network of one layer."""
    refusals = refused(net, output)
    assert not layers(partition(from_onnx(net.proto(output))).module)
    (refusal,) = refusals
    assert refusal.hint
    return refusal.cause


def test_a_refusal_names_the_layer_as_a_user_can_find_it():
    net = Net(20, (6, 8))
    first = net.layer(net.rounded("x", 4), 20, 32, 3)
    output = net.rounded(net.conv(first, 32, 16, 3, dilations=[2, 2]), 4)
    (refusal,) = refused(net, output)
    assert refusal.layer == "convolution 2: 1x32x6x8, 16x32x3x3 -> 1x16x2x4"


@pytest.mark.parametrize(
    ("attributes", "cause"),
    [
        ({"dilations": [2, 1]}, "dilated"),
        ({"pads": [0, 16, 0, 0]}, "padding is 16"),
    ],
)
def test_windows_that_are_refused(attributes, cause):
    net = Net()
    output = net.conv(net.rounded("x", 4), 16, 16, 3, **attributes)
    assert cause in only(net, net.rounded(output, 4))


def test_groups_that_lie_in_no_block_and_are_many():
    net = Net(96)
    output = net.conv(net.rounded("x", 4), 3, 96, 3, group=32)
    assert "32 groups of 3 channels" in only(net, net.rounded(output, 4))


def test_window_larger_than_the_memory():
    net = Net(16, 40)
    output = net.conv(net.rounded("x", 4), 16, 16, 33)
    assert "33x33" in only(net, net.rounded(output, 4))


def test_floats_are_not_quantized_in_the_file():
    net = Net()
    output = net.add("Conv", ["x", net.hold(np.ones((16, 16, 1, 1), np.float32))])
    refusal = refused(net, output)[0]
    assert "not quantized in the file" in refusal.cause
    assert "toolchain quantize" in refusal.hint


def test_float_weights():
    net = Net()
    output = net.add("Conv", [net.rounded("x", 4), net.hold(np.ones((16, 16, 1, 1), np.float32))])
    assert only(net, net.rounded(output, 4)) == "its weights are floats: they are not quantized in the file"


def test_weights_that_are_computed():
    net = Net(16, 1, batch=16)
    data = net.rounded("x", 4)
    assert "not constant" in only(net, net.rounded(net.add("Conv", [data, data]), 4))


def test_float_result():
    net = Net()
    output = net.conv(net.rounded("x", 4), 16, 16)
    assert "result is read as floats" in only(net, output)


def test_result_that_is_read_twice():
    net = Net()
    output = net.conv(net.rounded("x", 4), 16, 16)
    refusals = refused(net, net.rounded(output, 4), output)
    assert "result is read as floats" in refusals[0].cause


@pytest.mark.parametrize("tensor", ["input", "weights", "result"])
def test_scale_that_is_no_power_of_two(tensor):
    net = Net()
    scales = {name: net.hold(np.float32(0.1 if name == tensor else 0.0625)) for name in ("input", "weights", "result")}
    data = net.rounded("x", 0, scale=scales["input"])
    output = net.add("Conv", [data, net.weights(16, 16, 1, 1, scale=scales["weights"])])
    assert f"the scale of its {tensor}, 0.1, is not a power of two" in only(
        net, net.rounded(output, 0, scale=scales["result"])
    )


def channelwise(scales, axis=0, *, added=False):
    """Return a network of one convolution whose weights have a scale for each channel, and its output."""
    net = Net()
    grid = net.hold(np.asarray(scales, np.float32)), net.hold(np.zeros(16, np.int8))
    numbers = net.hold(np.ones((16, 16, 1, 1), np.int8))
    weights = net.add("DequantizeLinear", [numbers, *grid], axis=axis)
    data = net.rounded("x", 4)
    output = net.add("Conv", [data, weights])
    return net, net.rounded(net.add("Add", [output, data]) if added else output, 4)


def test_a_scale_for_each_channel_of_the_weights_is_a_shift_of_its_own():
    net, output = channelwise(2.0 ** -np.arange(16))
    (layer,) = layers(partition(from_onnx(net.proto(output))).module)
    assert (layer.shift, layer.channel_shifts) == (0, True)


@pytest.mark.parametrize(
    ("net", "cause"),
    [
        (channelwise(2.0 ** -np.arange(16), added=True), "its scales differ between channels, and something is"),
        (channelwise([1, *[2.0**-17] * 15]), "the scales of its channels are 17 bits apart"),
        (channelwise(2.0 ** -np.arange(16), axis=1), "the scales of its weights differ between channels"),
        (channelwise([1, 0.3, *[1] * 14]), "the scale of its weights, 0.3, is not a power of two"),
    ],
)
def test_scales_of_channels_that_no_shift_can_follow(net, cause):
    assert only(*net).startswith(cause)


def test_unsigned_bytes():
    net = Net()
    output = net.conv(net.rounded("x", 4, zero=net.hold(np.uint8(0))), 16, 16)
    assert "input is uint8" in only(net, net.rounded(output, 4))


def test_padding_is_the_zero_point():
    net = Net(zero=-128)
    data = net.rounded("x", 4)
    output = net.layer(data, 16, 16, 3), net.layer(data, 16, 16)
    assert [layer.pad for layer in layers(partition(from_onnx(net.proto(*output))).module)] == [-128, 0]


def test_activation_that_vta_lacks():
    net = Net()
    output = net.add("Sigmoid", [net.conv(net.rounded("x", 4), 16, 16)])
    assert only(net, net.rounded(output, 4)) == "sigmoid follows it before its result is int8"


def test_sum_behind_the_activation():
    net = Net()
    data = net.rounded("x", 4)
    output = net.add("Add", [net.add("Relu", [net.conv(data, 16, 16)]), data])
    assert only(net, net.rounded(output, 4)) == "add follows it before its result is int8"


def test_sum_with_floats():
    net = Net()
    output = net.add("Add", [net.conv(net.rounded("x", 4), 16, 16), "x"])
    assert "what is added to it is not int8" in only(net, net.rounded(output, 4))


def test_sum_with_two_tensors():
    net = Net()
    data = net.rounded("x", 4)
    output = net.add("Add", [net.add("Add", [net.conv(data, 16, 16), data]), net.rounded(net.add("Relu", [data]), 4)])
    assert only(net, net.rounded(output, 4)) == "more than one tensor is added to it"


def test_sum_with_a_tensor_of_another_shape():
    net = Net(16, 8)
    data = net.rounded("x", 4)
    row = net.rounded(net.add("MaxPool", [data], kernel_shape=[8, 8]), 4)
    output = net.add("Add", [net.conv(data, 16, 16), row])
    assert "another shape" in only(net, net.rounded(output, 4))


def test_constant_that_changes_within_a_channel():
    net = Net(16, 8)
    numbers = net.hold(np.arange(64, dtype=np.float32).reshape(8, 8))
    output = net.add("Add", [net.conv(net.rounded("x", 4), 16, 16), numbers])
    assert "differs within a channel" in only(net, net.rounded(output, 4))


def test_dense_layer_on_floats_is_no_business_of_vta():
    net = Net(16, 1)
    flat = net.add("Flatten", ["x"])
    assert refused(net, net.add("Gemm", [flat, net.hold(np.ones((16, 10), np.float32))])) == ()


def test_dense_layer_with_a_float_result_is_named():
    net = Net(16, 1)
    flat = net.rounded(net.add("Flatten", ["x"]), 4)
    (refusal,) = refused(net, net.add("Gemm", [flat, net.weights(10, 16)], transB=1))
    assert refusal.layer == "dense layer 1: 1x16, 16x10 -> 1x10"
