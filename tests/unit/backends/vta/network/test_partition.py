"""Networks that are split between VTA and the CPU: their results are ONNX Runtime's, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tests.support.vta_nets import Net, calls, kernel_calls, layers, reference, run
from toolchain import board
from toolchain.backends.base import EXACT
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.vta.codegen.layers import Conv2d, is_layer
from toolchain.backends.vta.network.partition import partition


def split(net, *outputs, refusals=0):
    result = partition(from_onnx(net.proto(*outputs)))
    assert len(result.refused) == refusals
    return result.module


def check(net, *outputs, module=None, data=None):
    """Compare a network whose results are int8 with ONNX Runtime; returns the split module."""
    module = module or split(net, *outputs)
    data = net.data() if data is None else data
    expected, actual = reference(net.proto(*outputs), data), run(module, data)
    assert len(expected) == len(actual)
    for mine, its in zip(actual, expected, strict=True):
        assert np.unique(its).size > 8
        assert np.array_equal(mine, its)
    return module


def sizes(module):
    return [(layer.in_channels, layer.out_channels, layer.kernel, layer.stride) for layer in layers(module)]


def basic_block(net, data, channels):
    middle = net.layer(data, channels, channels, 3)
    last = net.conv(middle, channels, channels, 3, pads=[1, 1, 1, 1])
    return net.rounded(net.add("Relu", [net.add("Add", [last, data])]), 4)


def bottleneck(net, data, inputs, channels, stride):
    """Add a bottleneck block whose other branch is a convolution."""
    first = net.layer(data, inputs, channels)
    middle = net.layer(first, channels, channels, 3, stride=stride)
    other = net.rounded(net.conv(data, inputs, 4 * channels, strides=[stride] * 2), 3)
    total = net.add("Add", [other, net.conv(middle, channels, 4 * channels)])
    return net.rounded(net.add("Relu", [total]), 4)


@pytest.mark.parametrize("zero", [0, -128, 17])
@pytest.mark.parametrize("channels", [3, 40])
def test_basic_block(channels, zero):
    net = Net(channels, 6, zero=zero)
    module = check(net, basic_block(net, net.rounded("x", 4), channels))
    assert [layer.residual_shift for layer in layers(module)] == [None, 9]
    assert calls(module, "permute_dims") == 2


@pytest.mark.parametrize("zero", [0, -30])
def test_bottleneck_with_a_convolution_beside_it(zero):
    net = Net(24, 9, zero=zero)
    module = check(net, bottleneck(net, net.rounded("x", 4), 24, 10, 2))
    assert sizes(module) == [
        (32, 16, (1, 1), (1, 1)),
        (16, 16, (3, 3), (2, 2)),
        (32, 48, (1, 1), (2, 2)),
        (16, 48, (1, 1), (1, 1)),
    ]
    assert layers(module)[3].residual_shift == 10


def test_region_changes_layout_at_its_edges_alone():
    net = Net(16, 6)
    data = bottleneck(net, basic_block(net, net.rounded("x", 4), 16), 16, 8, 2)
    module = split(net, basic_block(net, data, 32))
    assert len(layers(module)) == 8
    assert [calls(module, name) for name in ("permute_dims", "quantize", "dequantize")] == [2, 1, 1]
    variables = {
        argument for call in kernel_calls(module) for argument in call.args[1].fields if isinstance(argument, relax.Var)
    }
    assert {str(variable.ty.dtype) for variable in variables} == {"int8"}
    assert len(variables) == 8  # what enters, and the results but for the last


def test_tensor_that_vta_and_the_cpu_read():
    net = Net(24, 8)
    shared = net.layer(net.rounded("x", 4), 24, 24, 3)
    pooled = net.rounded(net.add("MaxPool", [shared], kernel_shape=[2, 2], strides=[2, 2]), 4)
    module = check(net, net.layer(shared, 24, 16), net.layer(pooled, 24, 16), shared)
    assert len(layers(module)) == 3
    assert calls(module, "permute_dims") == 4  # one input, three results: what is pooled stays in blocks


def test_int8_tensors_as_input_of_two_layers_are_turned_once():
    net = Net(16, 4)
    data = net.rounded("x", 4)
    module = check(net, net.layer(data, 16, 16), net.layer(data, 16, 32))
    assert calls(module, "permute_dims") == 3


@pytest.mark.parametrize("zero", [0, -20])
@pytest.mark.parametrize("activation", ["none", "relu", "clip", "both"])
def test_activations(activation, zero):
    net = Net(16, 5, zero=zero)
    output = net.conv(net.rounded("x", 4), 16, 16)
    if activation in {"relu", "both"}:
        output = net.add("Relu", [output])
    if activation in {"clip", "both"}:
        output = net.add("Clip", [output, net.hold(np.float32(-0.4)), net.hold(np.float32(1.97))])
    (layer,) = layers(check(net, net.rounded(output, 4)))
    bounds = {"none": (-999, 999), "relu": (0, 999), "clip": (-6, 32), "both": (0, 32)}
    assert (layer.low, layer.high) == tuple(max(-128, min(127, bound + zero)) for bound in bounds[activation])


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((3, 3), {"pads": [0, 1, 2, 0], "strides": [2, 1]}),
        ((1, 5), {"pads": [0, 2, 0, 2], "strides": [1, 3]}),
        ((3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2], "kernel_shape": [3, 3]}),
    ],
)
@pytest.mark.parametrize("zero", [0, 90])
def test_windows(kernel, attributes, zero):
    net = Net(20, (8, 10), batch=2, zero=zero)
    output = net.add("Conv", [net.rounded("x", 4), net.weights(16, 20, *kernel), net.bias(16)], **attributes)
    (layer,) = layers(check(net, net.rounded(output, 3)))
    assert (layer.batch, layer.kernel) == (2, kernel)
    assert layer.padding == tuple(attributes.get("pads", (0, 0, 1, 1)))


def test_without_bias_and_shift():
    net = Net(16, 4)
    weights = net.add("DequantizeLinear", [net.hold(np.eye(16, dtype=np.int8)[:, :, None, None]), net.scale(0), "zero"])
    (layer,) = layers(check(net, net.rounded(net.add("Conv", [net.rounded("x", 4), weights]), 4)))
    assert (layer.shift, layer.bias) == (0, False)


def test_bias_in_int32():
    net = Net(16, 4)
    numbers = net.hold(net.random.integers(-1000, 1000, 16).astype(np.int32))
    bias = net.add("DequantizeLinear", [numbers, net.scale(12), net.hold(np.int32(0))])
    output = net.add("Conv", [net.rounded("x", 4), net.weights(16, 16, 1, 1, exponent=9), bias])
    module = split(net, net.rounded(output, 4))
    assert layers(module)[0].bias
    apart = np.abs(run(module, net.data())[0] - reference(net.proto(net.nodes[-1].output[0]), net.data())[0])
    assert apart.max() <= 2**-4  # halves: VTA rounds them up, ONNX to even
    assert np.mean(apart > 0) < 0.01


def test_halves_at_the_entry_are_rounded_to_even():
    net = Net(16, 8)
    data = (net.random.integers(-300, 300, net.shape) / 32).astype(np.float32)
    check(net, net.layer(net.rounded("x", 4), 16, 16), data=data)


@pytest.mark.parametrize("zero", [0, -128])
def test_dense_layers(zero):
    net = Net(20, 1, batch=3, zero=zero)
    flat = net.rounded(net.add("Flatten", ["x"]), 4)
    first = net.add("Gemm", [flat, net.weights(24, 20), net.bias(24)], transB=1)
    second = net.add("MatMul", [net.rounded(net.add("Relu", [first]), 4), net.weights(24, 40)])
    second = net.add("Add", [second, net.bias(40)])
    assert sizes(check(net, net.rounded(second, 4))) == [(32, 32, (1, 1), (1, 1)), (32, 48, (1, 1), (1, 1))]


def test_int8_result_of_a_network():
    net = Net(20, 4)
    net.layer(net.rounded("x", 4), 20, 20)
    check(net, net.nodes[-2].output[0])


def test_layers_that_are_the_same_share_a_kernel():
    net = Net(16, 4)
    data = net.rounded("x", 4)
    for _ in range(5):
        data = net.layer(data, 16, 16, 3)
    module = split(net, data)
    # The first one reads from the CPU's memory, the last one writes there, and the others do neither.
    assert len({call.args[0] for call in kernel_calls(module)}) == 3


def test_kernels_have_the_shapes_of_their_layer():
    net = Net(24, 6)
    module = split(net, basic_block(net, net.rounded("x", 4), 24))
    for call in kernel_calls(module):
        layer = Conv2d.from_json(str(module[call.args[0]].attrs[EXACT]))
        kinds = [*(argument.ty for argument in call.args[1].fields), call.ty_args[0]]
        shapes = [(tuple(map(int, kind.shape)), str(kind.dtype)) for kind in kinds]
        assert tuple(shapes) == layer.arguments()
        assert len(module[call.args[0]].params) == len(shapes)


def residual_network():
    """Return a network with a first convolution on floats and a last layer on floats."""
    net = Net(3, 12)
    weights, bias = net.hold(net.random.standard_normal((20, 3, 3, 3)).astype(np.float32) / 4), net.bias(20)
    stem = net.add("Relu", [net.add("Conv", ["x", weights, bias], strides=[2, 2], pads=[1, 1, 1, 1])])
    pooled = net.add("MaxPool", [stem], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    data = basic_block(net, net.rounded(pooled, 4), 20)
    flat = net.add("Flatten", [net.add("GlobalAveragePool", [data])])
    head = net.hold(net.random.standard_normal((10, 20)).astype(np.float32))
    return net, net.add("Gemm", [flat, head], transB=1)


def test_residual_network():
    net, output = residual_network()
    module = split(net, output, refusals=1)
    assert len(layers(module)) == 2
    data = net.data()
    assert np.allclose(run(module, data)[0], reference(net.proto(output), data)[0], rtol=1e-5, atol=1e-5)


def test_passes_of_the_cpu_leave_kernels_alone():
    net, output = residual_network()
    module = split(net, output, refusals=1)
    lowered = Cpu(board.load("rpi4").resolved()).lowered_floats(module)
    layers_before = [str(module[call.args[0]].attrs[EXACT]) for call in kernel_calls(module)]
    layers_after = [str(lowered[call.args[0]].attrs[EXACT]) for call in kernel_calls(lowered)]
    assert [layer for layer in layers_after if is_layer(layer)] == layers_before
    assert len(layers_after) > len(layers_before)  # the first convolution is a layer of the CPU's now
    edges = [str(variable.name_hint) for variable in lowered.get_global_vars() if "quantize" in str(variable)]
    assert len(edges) == 1  # in one step with the change of layout; what is at the end is a mean of bytes in blocks
    assert not any(calls(lowered, name) for name in ("quantize", "dequantize", "permute_dims"))


def test_layers_that_are_refused_compute_as_before():
    net = Net(16, 6)
    data = net.layer(net.rounded("x", 4), 16, 16)
    spread = net.rounded(net.conv(data, 16, 16, 3, dilations=[2, 2], pads=[2] * 4), 4)
    module = split(net, net.layer(spread, 16, 16), refusals=1)
    assert len(layers(module)) == 2
    check(net, net.nodes[-1].output[0], module=module)


@pytest.mark.parametrize(
    ("channels", "groups", "outputs", "depthwise"),
    [(40, 40, 40, True), (32, 8, 32, True), (16, 8, 32, False), (6, 2, 10, False), (96, 3, 48, False)],
)
@pytest.mark.parametrize("zero", [0, -128])
def test_groups(channels, groups, outputs, depthwise, zero):
    """Each channel by itself, groups within blocks, and others as one layer with zeros."""
    net = Net(channels, (7, 6), zero=zero)
    output = net.layer(net.rounded("x", 4), channels // groups, outputs, 3, stride=2, group=groups)
    (layer,) = layers(check(net, output))
    assert layer.alone is depthwise


@pytest.mark.parametrize("zero", [0, -128])
@pytest.mark.parametrize("channels", [1, 3, 4, 5])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads"),
    [
        ((14, 14), 7, 2, (3, 3, 3, 3)),
        ((9, 12), 3, 2, (0, 0, 1, 1)),
        ((13, 11), 3, 2, (1, 1, 1, 1)),
        ((11, 9), 4, 2, (1, 2, 0, 0)),
    ],
)
def test_pixels_of_few_channels_become_channels(channels, size, kernel, stride, pads, zero):
    net = Net(channels, size, zero=zero)
    output = net.conv(net.rounded("x", 4), channels, 20, kernel, strides=[stride] * 2, pads=pads)
    (layer,) = layers(check(net, net.rounded(net.add("Relu", [output]), 4)))
    assert (layer.stride == (1, 1)) is (channels <= 4)
    assert layer.in_channels == 16


def test_network_of_floats_stays_as_it_is():
    net = Net(16, 4)
    module = split(net, net.add("Relu", ["x"]))
    assert not layers(module)
    assert calls(module, "nn.relu") == 1
