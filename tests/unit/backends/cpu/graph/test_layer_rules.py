"""Which operations on floats are which layers; `test_rounding` has those on bytes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.support import naive_template, nets, relax_nets
from tests.support.relax_nets import CONV, W, counts, epilogue_kinds, layers, moved, net, normal
from toolchain.backends.cpu.layers import Conv

pytestmark = pytest.mark.usefixtures("naive")


def test_few_channels_are_read_as_they_are_and_more_go_into_blocks():
    few, many = (moved(net([("Conv", "x w", "y")], (1, n, 4, 5), {"w": normal(16, n, 1, 1)})) for n in (4, 5))
    assert isinstance(layers(few)[0], Conv)
    assert layers(few)[0].data.lanes == 1
    assert [layer.data.lanes for layer in layers(many)] == [1, 8, 8]


def test_groups_are_multiplied_out_if_no_template_knows_them(monkeypatch):
    monkeypatch.setattr(naive_template, "covers", lambda layer: not isinstance(layer, Conv) or layer.groups == 1)

    def proto(groups):
        return net([("Conv", "x w", "y", {"group": groups})], (1, 48, 4, 5), {"w": normal(48, 48 // groups, 1, 1)})

    conv = layers(moved(proto(4)))[1]
    assert (conv.groups, conv.weights_shape) == (1, (48, 48, 1, 1))
    assert layers(moved(proto(16))) == []  # that would be too many zeros


def test_padding_of_its_own():
    nodes = [("Pad", "x pads", "p"), ("Conv", "p w", "y", {"pads": [1, 0, 0, 1]})]
    weights = {"pads": np.array([0, 0, 1, 2, 0, 0, 3, 4]), "w": normal(8, 3, 3, 3)}
    assert layers(moved(net(nodes, (1, 3, 6, 7), weights)))[0].padding == (2, 2, 3, 5)


def test_depthwise_and_grouped_convolutions():
    nodes = [
        ("Conv", "x w", "c", {"group": 16}),
        ("Conv", "c v", "y", {"group": 2, "dilations": [2, 1], "pads": [2, 0, 1, 0]}),
    ]
    weights = {"w": normal(16, 1, 1, 1), "v": normal(16, 8, 3, 1)}
    _, first, second, _ = layers(moved(net(nodes, (1, 16, 4, 5), weights)))
    assert first.is_depthwise
    assert (second.groups, second.dilation, second.padding) == (2, (2, 1), (2, 0, 1, 0))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            ("MaxPool", "c", "y", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
            ("max", (3, 2), False),
        ),
        (("AveragePool", "c", "y", {"kernel_shape": [2, 2]}), ("mean", (2, 2), False)),
        (
            ("AveragePool", "c", "y", {"kernel_shape": [2, 2], "pads": [1] * 4, "count_include_pad": 1}),
            ("mean", (2, 2), True),
        ),
        (("GlobalAveragePool", "c", "y"), ("mean", (4, 5), False)),
        (("GlobalMaxPool", "c", "y"), ("max", (4, 5), False)),
        (("ReduceMean", "c", "y", {"axes": [-1, 2]}), ("mean", (4, 5), False)),
    ],
)
def test_pooling(node, expected):
    pool = layers(moved(net([CONV, node], (1, 3, 4, 5), W)))[1]
    assert (pool.reduce, pool.kernel, pool.counts_padding) == expected


@pytest.mark.parametrize("channels", [16, 12])
def test_a_mean_without_the_pixel_is_a_reshape_at_most(channels):
    nodes = [CONV, ("ReduceMean", "c", "y", {"axes": [2, 3], "keepdims": 0})]
    module = moved(net(nodes, (1, 3, 4, 5), {"w": normal(channels, 3, 1, 1)}))
    assert counts(module) == {"Conv": 1, "Pool": 1, "reshape": 1} | ({} if channels == 16 else {"Map": 1})


def test_a_mean_over_other_axes_stays():
    module = moved(net([CONV, ("ReduceMean", "c", "y", {"axes": [1, 2]})], (1, 3, 4, 5), W))
    assert counts(module) == {"Conv": 1, "Map": 1, "mean": 1}


@pytest.mark.parametrize("transposed", [False, True])
def test_dense_layers(transposed):
    nodes = [("Gemm", "x w b", "d", {"transB": int(transposed)}), ("Relu", "d", "e"), ("Mul", "e e", "y")]
    shape = (4, 6) if transposed else (6, 4)
    module = moved(net(nodes, (3, 6), {"w": normal(*shape), "b": normal(4)}))
    [dense] = layers(module)
    assert (dense.rows, dense.inputs, dense.outputs, dense.bias, epilogue_kinds(dense)) == (3, 6, 4, True, ["relu"])
    assert [kind for kind, _ in relax_nets.calls(module)][-1] == "relax.multiply"


def test_leading_axes_of_a_dense_layer_are_rows():
    nodes = [("MatMul", "x w", "d"), ("Add", "d x", "y")]
    module = moved(net(nodes, (2, 3, 6), {"w": normal(6, 6)}))
    [dense] = layers(module)
    assert (dense.rows, epilogue_kinds(dense)) == (6, ["add"])
    assert counts(module)["reshape"] == 3  # the data, what is added, and the result


def test_the_product_of_two_inputs_stays():
    module = moved(net([("Relu", "x", "a"), ("MatMul", "x a", "y")], (2, 6, 6)))
    assert counts(module) == {"nn.relu": 1, "matmul": 1}


def test_channel_shuffle():
    weights = W | {"apart": np.array([1, 4, 4, 4, 5]), "together": np.array([1, 16, 4, 5])}
    nodes = [
        CONV,
        ("Reshape", "c apart", "a"),
        ("Transpose", "a", "b", {"perm": [0, 2, 1, 3, 4]}),
        ("Reshape", "b together", "d"),
        ("Relu", "d", "y"),
    ]
    shuffle = layers(moved(net(nodes, (1, 3, 4, 5), weights)))[1]
    assert (shuffle.shuffle, epilogue_kinds(shuffle)) == (4, ["relu"])


def test_what_has_open_shapes_stays():
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    proto = nets.model([node], [nets.value("x", ("n", 3, 4, 4))], [nets.value("y", ("n", 16, 4, 4))], W)
    assert layers(moved(proto)) == []


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types_stay(dtype):
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    value, out = nets.value("x", (1, 3, 4, 4), dtype), nets.value("y", (1, 16, 4, 4), dtype)
    assert layers(moved(nets.model([node], [value], [out], {"w": W["w"].astype(dtype)}))) == []


def test_weights_that_are_inputs_stay():
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    inputs = [nets.value("x", (1, 3, 4, 4)), nets.value("w", (16, 3, 1, 1))]
    assert layers(moved(nets.model([node], inputs, [nets.value("y", (1, 16, 4, 4))]))) == []


def test_convolutions_with_one_or_three_axes_stay():
    item = net([("Conv", "x w", "y")], (1, 3, 4), {"w": normal(16, 3, 1)})
    three = net([("Conv", "x w", "y")], (1, 3, 4, 4, 4), {"w": normal(16, 3, 1, 1, 1)})
    assert layers(moved(item)) == layers(moved(three)) == []
