from __future__ import annotations

import collections

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support import nets
from tests.support.nets import node, value
from toolchain.models import batchnorm, zoo

STREAM = np.random.default_rng(0)
NORM = ["gamma", "beta", "mean", "variance"]


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return STREAM.standard_normal(shape).astype(dtype)


def statistics(channels: int = 4, prefix: str = "", dtype: str = "float32") -> dict[str, np.ndarray]:
    values = [normal(channels), normal(channels), normal(channels), np.exp(normal(channels))]
    return {prefix + name: array.astype(dtype) for name, array in zip(NORM, values, strict=True)}


def norm(source: str, output: str, prefix: str = "", **attributes) -> onnx.NodeProto:
    return node("BatchNormalization", [source, *(prefix + name for name in NORM)], [output], **attributes)


def conv(source: str = "x", output: str = "c", weights: str = "w", bias: str = "", **attributes) -> onnx.NodeProto:
    return node("Conv", [source, weights, *([bias] if bias else [])], [output], **attributes)


def net(nodes, weights, shape=(1, 3, 6, 6), outputs=("y",), dtype="float32") -> onnx.ModelProto:
    """Put a net together and let ONNX find out the shapes of its outputs."""
    dims = [f"d{axis}" for axis in range(len(shape))]
    proto = nets.model(nodes, [value("x", shape, dtype)], [value(name, dims, dtype) for name in outputs], weights)
    return onnx.shape_inference.infer_shapes(proto)


def operators(proto: onnx.ModelProto) -> dict[str, int]:
    return dict(collections.Counter(item.op_type for item in proto.graph.node))


def weights_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def check_same_outputs(before: onnx.ModelProto, after: onnx.ModelProto, tolerance: float = 1e-5, **feeds) -> None:
    onnx.checker.check_model(after, full_check=True)
    if not feeds:
        spec = before.graph.input[0]
        shape = [dim.dim_value for dim in spec.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(spec.type.tensor_type.elem_type)
        feeds = {spec.name: normal(*shape, dtype=str(dtype))}
    for expected, got in zip(nets.run(before, feeds), nets.run(after, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max()))


FOLDED = {
    "without bias": net([conv(), norm("c", "y")], {"w": normal(4, 3, 3, 3), **statistics()}),
    "with bias": net([conv(bias="b"), norm("c", "y")], {"w": normal(4, 3, 3, 3), "b": normal(4), **statistics()}),
    "grouped": net([conv(group=3), norm("c", "y")], {"w": normal(6, 1, 3, 3), **statistics(6)}),
    "depthwise": net([conv(group=3), norm("c", "y")], {"w": normal(3, 1, 3, 3), **statistics(3)}),
    "1-D": net([conv(), norm("c", "y")], {"w": normal(4, 3, 3), **statistics()}, (2, 3, 9)),
    "3-D": net([conv(), norm("c", "y")], {"w": normal(4, 3, 2, 2, 2), **statistics()}, (1, 3, 4, 4, 4)),
    "epsilon": net([conv(), norm("c", "y", epsilon=0.5)], {"w": normal(4, 3, 1, 1), **statistics()}),
    "two in a row": net(
        [conv(), norm("c", "n"), conv("n", "d", "v"), norm("d", "y", "2.")],
        {"w": normal(4, 3, 3, 3), "v": normal(5, 4, 1, 1), **statistics(), **statistics(5, "2.")},
    ),
}


@pytest.mark.parametrize("proto", FOLDED.values(), ids=FOLDED)
def test_normalization_disappears_into_the_convolution(proto):
    folded = batchnorm.fold(proto)
    assert set(operators(folded)) == {"Conv"}
    check_same_outputs(proto, folded)


@pytest.mark.parametrize("proto", FOLDED.values(), ids=FOLDED)
def test_the_signature_stays(proto):
    folded = batchnorm.fold(proto).graph
    assert [spec.name for spec in folded.output] == ["y"]
    assert folded.input == proto.graph.input


@pytest.mark.parametrize("proto", FOLDED.values(), ids=FOLDED)
def test_the_given_model_is_not_changed(proto):
    before = proto.SerializeToString(deterministic=True)
    batchnorm.fold(proto)
    assert proto.SerializeToString(deterministic=True) == before


def test_weights_that_nothing_reads_any_more_are_dropped():
    folded = batchnorm.fold(FOLDED["with bias"])
    assert sorted(weights_of(folded)) == ["b", "w"]


def test_epsilon_matters():
    # Guards the case above: with the default epsilon its outputs would differ by far.
    proto = FOLDED["epsilon"]
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    del other.graph.node[1].attribute[:]
    image = {"x": normal(1, 3, 6, 6)}
    assert not np.allclose(nets.run(proto, image)[0], nets.run(other, image)[0], rtol=1e-2)


CONV = {"w": normal(4, 3, 1, 1), **statistics()}
KEPT = {
    "output of the convolution is read elsewhere": net([conv(), norm("c", "n"), node("Add", ["n", "c"], ["y"])], CONV),
    "output of the convolution is a result": net([conv(), norm("c", "y")], CONV, outputs=("y", "c")),
    "weights of the convolution are shared": net(
        [conv(), conv(output="d"), norm("c", "n"), node("Sub", ["n", "d"], ["y"])], CONV
    ),
    "bias of the convolution is shared": net(
        [conv(bias="beta"), norm("c", "y")],
        CONV,
    ),
    "weights of the convolution are computed": net(
        [node("Neg", ["w"], ["v"]), conv(weights="v"), norm("c", "y")],
        CONV,
    ),
    "no convolution": net([node("Relu", ["x"], ["r"]), norm("r", "y")], statistics(3)),
    "first of all": net([norm("x", "y")], statistics(3)),
    "rank 2": net([norm("x", "y")], statistics(3), (5, 3)),
    "rank 3": net([norm("x", "y")], statistics(3), (2, 3, 4)),
    "twice": net([norm("x", "n"), norm("n", "y")], statistics(3)),
}


@pytest.mark.parametrize("proto", KEPT.values(), ids=KEPT)
def test_normalization_becomes_a_scale_and_a_shift(proto):
    folded = batchnorm.fold(proto)
    assert "BatchNormalization" not in operators(folded)
    assert operators(folded)["Mul"] == operators(proto)["BatchNormalization"]
    check_same_outputs(proto, folded)


@pytest.mark.parametrize("name", [name for name in KEPT if " of the convolution " in name])
def test_a_convolution_that_is_not_alone_keeps_its_weights(name):
    np.testing.assert_array_equal(weights_of(batchnorm.fold(KEPT[name]))["w"], CONV["w"])


@pytest.mark.parametrize("name", ["y.scale", "y.shift", "y.scaled", "y.folded_bias"])
@pytest.mark.parametrize("folds", [True, False])
def test_new_names_do_not_take_those_of_the_model(name, folds):
    first = conv() if folds else node("Relu", ["x"], ["c"])
    nodes = [first, norm("c", "y"), node("Mul", ["y", name], ["z"])]
    channels = 4 if folds else 3
    weights = {"w": normal(4, 3, 1, 1), **statistics(channels), name: normal(channels, 1, 1)}
    proto = net(nodes, weights, outputs=("z",))
    check_same_outputs(proto, batchnorm.fold(proto))


def test_shared_statistics():
    nodes = [conv(), norm("c", "n"), conv("n", "d", "v"), norm("d", "y")]
    proto = net(nodes, {"w": normal(4, 3, 1, 1), "v": normal(4, 4, 1, 1), **statistics()})
    folded = batchnorm.fold(proto)
    assert operators(folded) == {"Conv": 2}
    check_same_outputs(proto, folded)


def test_statistics_that_are_computed_are_left_alone():
    weights = {**CONV, "half": np.full(4, 0.5, "float32")}
    nodes = [conv(), node("Mul", ["variance", "half"], ["v"])]
    nodes.append(node("BatchNormalization", ["c", "gamma", "beta", "mean", "v"], ["y"]))
    proto = net(nodes, weights)
    folded = batchnorm.fold(proto)
    assert folded.graph.node == proto.graph.node
    check_same_outputs(proto, folded)


def test_statistics_that_are_inputs_are_left_alone():
    proto = net([conv(), norm("c", "y")], {name: array for name, array in CONV.items() if name != "mean"})
    proto.graph.input.append(value("mean", (4,)))
    assert batchnorm.fold(proto).graph.node == proto.graph.node


def test_training_mode_is_left_alone():
    inputs, attributes = ["c", *NORM], {"training_mode": 1}
    training = node("BatchNormalization", inputs, ["y", "running_mean", "running_variance"], **attributes)
    proto = net([conv(), training], CONV)
    assert batchnorm.fold(proto).graph.node == proto.graph.node


def test_float16_keeps_its_type():
    weights = {"w": normal(4, 3, 3, 3, dtype="float16"), **statistics(dtype="float16")}
    folded = batchnorm.fold(net([conv(), norm("c", "y")], weights, dtype="float16"))
    assert {str(array.dtype) for array in weights_of(folded).values()} == {"float16"}


@pytest.mark.parametrize("first", [conv(), node("Relu", ["x"], ["c"])], ids=["convolution", "other"])
def test_float16_keeps_its_outputs(first):
    channels = 4 if first.op_type == "Conv" else 3
    weights = {"w": normal(4, 3, 3, 3, dtype="float16"), **statistics(channels, dtype="float16")}
    proto = net([first, norm("c", "y")], weights, dtype="float16")
    folded = batchnorm.fold(proto)
    assert "BatchNormalization" not in operators(folded)
    check_same_outputs(proto, folded, tolerance=1e-2)


def branches(then: list[onnx.NodeProto], other: list[onnx.NodeProto], weights: dict[str, np.ndarray]):
    """Build y = BatchNormalization(Conv(x)) + (then if p else other); the branches end in t and o."""
    bodies = {
        "then_branch": nets.graph(then, [], [value("t", (1, 4, 6, 6))]),
        "else_branch": nets.graph(other, [], [value("o", (1, 4, 6, 6))]),
    }
    nodes = [conv(), norm("c", "n"), node("If", ["p"], ["i"], **bodies), node("Add", ["n", "i"], ["y"])]
    proto = net(nodes, weights)
    proto.graph.input.append(value("p", (), "bool"))
    return proto


BRANCHES = {
    "read the weights of the convolution": ([conv(output="t")], [conv(output="o")]),
    "read the output of the convolution": ([node("Neg", ["c"], ["t"])], [node("Abs", ["c"], ["o"])]),
    "read the statistics": ([norm("c", "t")], [norm("n", "o")]),
    "read weights that nothing else reads": ([conv(output="t", weights="v")], [conv(output="o", weights="v")]),
}


@pytest.mark.parametrize("bodies", BRANCHES.values(), ids=BRANCHES)
@pytest.mark.parametrize("chosen", [True, False])
def test_branches_see_what_they_saw(bodies, chosen):
    proto = branches(*bodies, {**CONV, "v": normal(4, 3, 1, 1)})
    feeds = {"x": normal(1, 3, 6, 6), "p": np.array(chosen)}
    check_same_outputs(proto, batchnorm.fold(proto), **feeds)


def test_weights_that_a_branch_reads_are_not_touched():
    proto = branches(*BRANCHES["read the weights of the convolution"], CONV)
    np.testing.assert_array_equal(weights_of(batchnorm.fold(proto))["w"], CONV["w"])


def test_a_model_without_normalization_stays_as_it_is():
    proto = nets.relu()
    assert batchnorm.fold(proto) == proto


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet-18-v2"])
def test_a_network_of_the_zoo(name):
    proto = zoo.build(name)
    folded = batchnorm.fold(proto)
    assert "BatchNormalization" not in operators(folded)
    check_same_outputs(proto, folded)
