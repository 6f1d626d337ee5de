"""What the builder adds; test_zoo.py looks at the networks made with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.support import nets
from toolchain.models.zoo import Layer
from toolchain.models.zoo_graph import GraphBuilder, Tensor

SHAPE = (1, 4, 8, 8)


@pytest.fixture
def builder():
    return GraphBuilder("net", SHAPE, seed=3)


def finished(builder, last, features):
    """Close a network behind its last tensor."""
    logits = builder.flatten("flat", builder.global_average_pool("pool", last), features)
    proto = builder.finish(logits)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def added(proto, name):
    [node] = [entry for entry in proto.graph.node if entry.name == name]
    return node, {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def weights(proto):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def computed(proto, name, data):
    """Return what a network has in its middle."""
    proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return nets.run(proto, {"data": data})[-1]


def data(seed=0):
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def test_a_node_carries_the_name_of_what_it_makes(builder):
    tensor = builder.conv("stem", builder.input, Layer(6, 3))
    assert (builder.input, tensor) == (Tensor("data", 4), Tensor("stem", 6))
    node, _ = added(finished(builder, tensor, 6), "stem")
    assert (list(node.input), list(node.output)) == (["data", "stem.weight"], ["stem"])


@pytest.mark.parametrize(
    ("kernel", "pad", "pads"), [(3, {}, [1, 1, 1, 1]), ((1, 5), {}, [0, 2, 0, 2]), (3, {"pad": 0}, [0, 0, 0, 0])]
)
def test_padding_is_half_the_kernel_unless_it_is_given(builder, kernel, pad, pads):
    proto = finished(builder, builder.conv("c", builder.input, Layer(6, kernel, 2, **pad)), 6)
    _, attributes = added(proto, "c")
    assert (attributes["pads"], attributes["strides"]) == (pads, [2, 2])


def test_axes_are_as_many_as_the_input_has():
    builder = GraphBuilder("video", (1, 3, 4, 8, 8), seed=0)
    proto = finished(builder, builder.conv("c", builder.input, Layer(2, 3)), 2)
    assert weights(proto)["c.weight"].shape == (2, 3, 3, 3, 3)
    assert added(proto, "c")[1]["kernel_shape"] == [3, 3, 3]


def test_groups_divide_the_channels_that_a_filter_reads(builder):
    proto = finished(builder, builder.conv("c", builder.input, Layer(4, 3, groups=4), bias=True), 4)
    tensors = weights(proto)
    assert (tensors["c.weight"].shape, tensors["c.bias"].shape) == ((4, 1, 3, 3), (4,))


def test_a_layer_more_leaves_the_weights_of_all_others_as_they_are():
    first, second = GraphBuilder("net", SHAPE, seed=3), GraphBuilder("net", SHAPE, seed=3)
    plain = finished(first, first.conv("c", first.input, Layer(4, 3)), 4)
    longer = finished(
        second, second.conv("c", second.relu("r", second.conv("new", second.input, Layer(4, 1))), Layer(4, 3)), 4
    )
    np.testing.assert_array_equal(weights(plain)["c.weight"], weights(longer)["c.weight"])


def test_weights_follow_the_seed_and_the_name():
    def drawn(name, seed):
        builder = GraphBuilder("net", SHAPE, seed)
        return weights(finished(builder, builder.conv(name, builder.input, Layer(4, 3)), 4))[f"{name}.weight"]

    np.testing.assert_array_equal(drawn("c", 0), drawn("c", 0))
    assert np.abs(drawn("c", 0) - drawn("c", 1)).max() > 0.1
    assert np.abs(drawn("c", 0) - drawn("d", 0)).max() > 0.1


@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_rectified_layers_keep_the_size_of_what_goes_through(gain):
    """He's weights, centred in part: the second moment of what comes out of ten layers is that of what went in."""
    builder = GraphBuilder("deep", (1, 256, 4, 4), seed=0)
    last = builder.input
    for number in range(10):
        last = builder.conv(
            f"c{number}", builder.relu(f"r{number}", last), Layer(256, 1, gain=gain if number == 9 else 1.0)
        )
    values = np.random.default_rng(1).standard_normal((1, 256, 4, 4)).astype(np.float32)
    outputs = computed(finished(builder, last, 256), last.name, values)
    assert np.sqrt(np.mean(outputs**2)) == pytest.approx(gain, rel=0.25)


def test_a_norm_has_statistics_of_a_standardised_input(builder):
    tensors = weights(finished(builder, builder.norm("n", builder.input, gain=0.5), 4))
    assert ((tensors["n.var"] >= 0.8) & (tensors["n.var"] < 1.2)).all()
    assert ((tensors["n.scale"] >= 0.4) & (tensors["n.scale"] < 0.6)).all()
    assert np.abs(tensors["n.mean"]).max() < 1


def test_operators_compute_what_they_are_named_for(builder):
    values = 4 * data()
    six = builder.relu6("six", builder.input)
    pooled = builder.max_pool("max", six, 2, stride=2)
    mean = builder.average_pool("mean", pooled, 3, stride=1, pad=1)
    joined = builder.concat("joined", [builder.add("sum", mean, pooled), mean])
    assert joined == Tensor("joined", 8)
    outputs = computed(finished(builder, joined, 8), "joined", values)
    window = np.clip(values, 0, 6).reshape(1, 4, 4, 2, 4, 2).max((3, 5))
    np.testing.assert_allclose(
        outputs[0, 4:, 0, 0], window[0, :, :2, :2].mean((1, 2)), rtol=1e-5
    )  # padding is not counted
    np.testing.assert_allclose(outputs[:, :4], outputs[:, 4:] + window, rtol=1e-5)


def test_the_end_is_a_softmax_over_the_classes(builder):
    flat = builder.flatten("flat", builder.global_average_pool("pool", builder.input), 4)
    proto = builder.finish(builder.dense("logits", flat, 10))
    onnx.checker.check_model(proto, full_check=True)
    [output] = nets.run(proto, {"data": data()})
    assert output.shape == (1, 10)
    assert output.sum() == pytest.approx(1)
    tensors = weights(proto)
    assert (tensors["logits.weight"].shape, tensors["logits.bias"].shape) == ((10, 4), (10,))
