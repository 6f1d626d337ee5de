from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.relax_nets import net, normal, prepared
from toolchain.backends.graph import patterns, values

SHAPE = (1, 4, 3, 5)


def found(proto):
    module = prepared(proto)
    [block] = module["main"].body.blocks
    block_values = values.read(block, module)
    patterns.replace(block_values)
    return block_values.operations


def only(nodes, weights=None, shape=SHAPE):
    [operation] = found(net(nodes, shape, weights))
    return operation


def scalars(**numbers):
    return {name: np.float32(number) for name, number in numbers.items()}


def test_silu():
    operation = only([("Sigmoid", "x", "a"), ("Mul", "a x", "y")])
    assert operation.name == "nn.silu"
    assert operation.inputs[0].variable.name == "x"
    assert operation.out.maker is operation


def test_no_silu_if_the_sigmoid_is_of_something_else_or_read_elsewhere():
    nodes = [("Relu", "x", "r"), ("Sigmoid", "r", "a"), ("Mul", "a x", "y")]
    assert [operation.name for operation in found(net(nodes, SHAPE))] == ["nn.relu", "sigmoid", "multiply"]
    nodes = [("Sigmoid", "x", "a"), ("Mul", "a x", "y"), ("Relu", "a", "z")]
    assert [operation.name for operation in found(net(nodes, SHAPE, outputs=("y", "z")))][:3] == [
        "sigmoid",
        "multiply",
        "nn.relu",
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        [("Mul", "x s", "m"), ("Mul", "m half", "y")],
        [("Mul", "x half", "m"), ("Mul", "m s", "y")],
        [("Mul", "half s", "m"), ("Mul", "m x", "y")],
    ],
)
def test_gelu_however_it_is_multiplied(nodes):
    error = [("Div", "x root", "d"), ("Erf", "d", "e"), ("Add", "e one", "s")]
    numbers = scalars(root=math.sqrt(2), one=1, half=0.5)
    operation = only([*error, *nodes], numbers)
    assert operation.name == "nn.gelu"
    assert operation.inputs[0].variable.name == "x"
    for name in numbers:
        assert "nn.gelu" not in [
            other.name for other in found(net([*error, *nodes], SHAPE, numbers | scalars(**{name: 0.7})))
        ]


def test_hard_sigmoid_of_the_importer():
    operation = only([("HardSigmoid", "x", "y", {"alpha": 0.3, "beta": 0.4})])
    assert operation.name == "hard_sigmoid"
    assert operation.values == pytest.approx((0.3, 0.4))


def test_hard_sigmoid_with_the_factor_behind_the_limits():
    nodes = [("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Div", "b six", "y")]
    operation = only(nodes, scalars(three=3, zero=0, six=6))
    assert operation.name == "hard_sigmoid"
    assert operation.values == pytest.approx((1 / 6, 0.5))


def test_limits_alone_are_no_hard_sigmoid():
    operations = found(net([("Clip", "x zero one", "y")], SHAPE, scalars(zero=0, one=1)))
    assert [operation.name for operation in operations] == ["maximum", "minimum"]


@pytest.mark.parametrize(
    ("nodes", "factor"),
    [
        ([("HardSwish", "x", "y")], 1.0),
        ([("HardSigmoid", "x", "a", {"alpha": 1 / 6}), ("Mul", "x a", "y")], 1.0),
        ([("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Mul", "b x", "y")], 6.0),
    ],
)
def test_hard_swish(nodes, factor):
    operation = only(nodes, scalars(three=3, zero=0, six=6))
    assert operation.name == "hard_swish"
    assert operation.values == pytest.approx((factor,))
    assert operation.inputs[0].variable.name == "x"


def test_another_slope_is_no_hard_swish():
    operations = found(net([("HardSigmoid", "x", "a", {"alpha": 0.2}), ("Mul", "x a", "y")], SHAPE))
    assert [operation.name for operation in operations] == ["hard_sigmoid", "multiply"]


def test_the_sum_of_several_tensors():
    nodes = [("Relu", "x", "a"), ("Sigmoid", "x", "b"), ("Sum", "a b x", "y")]
    *_, total = found(net(nodes, SHAPE))
    assert total.name == "add"
    assert [value.maker.name if value.maker else "x" for value in total.inputs] == ["nn.relu", "sigmoid", "x"]


def test_a_sum_over_an_axis_is_none_of_several_tensors():
    operations = found(net([("ReduceSum", "x axes", "y", {"keepdims": 0})], SHAPE, {"axes": np.array([0], np.int64)}))
    assert [operation.name for operation in operations] == ["sum"]


def shuffle(split, perm, joined):
    weights = {"split": np.array(split, np.int64), "joined": np.array(joined, np.int64)}
    nodes = [("Reshape", "x split", "a"), ("Transpose", "a", "b", {"perm": perm}), ("Reshape", "b joined", "y")]
    return found(net(nodes, SHAPE, weights))


def test_channel_shuffle():
    [operation] = shuffle((1, 2, 2, 3, 5), [0, 2, 1, 3, 4], SHAPE)
    assert (operation.name, operation.values) == ("shuffle", (2,))


@pytest.mark.parametrize(
    ("split", "perm", "joined"),
    [
        ((1, 2, 2, 3, 5), [0, 2, 1, 4, 3], SHAPE),
        ((1, 2, 2, 3, 5), [0, 2, 1, 3, 4], (1, 2, 6, 5)),
        ((1, 2, 6, 1, 5), [0, 2, 1, 3, 4], SHAPE),
    ],
)
def test_what_only_looks_like_a_channel_shuffle(split, perm, joined):
    assert [operation.name for operation in shuffle(split, perm, joined)] == ["reshape", "permute_dims", "reshape"]


def test_a_matrix_that_is_stored_by_outputs():
    operation = only([("Gemm", "x w", "y", {"transB": 1})], {"w": normal(4, 6)}, (2, 6))
    assert (operation.name, operation.inputs[1].shape) == ("linear", (4, 6))


def test_a_matrix_that_is_not_known_stays():
    nodes = [("Transpose", "x", "t"), ("MatMul", "x t", "y")]
    assert [operation.name for operation in found(net(nodes, (2, 6)))][:2] == ["permute_dims", "matmul"]


def padded(pads, **attributes):
    weights = {"pads": np.array(pads), "w": normal(4, 4, 1, 1)}
    nodes = [("Pad", "x pads", "p", attributes), ("Conv", "p w", "y", {"pads": [1] * 4})]
    return found(net(nodes, SHAPE, weights))


def test_a_convolution_pads_its_data_itself():
    [conv] = padded([0, 0, 1, 2, 0, 0, 3, 4])
    assert (conv.name, conv.values, conv.inputs[0].image) == ("nn.conv2d", (1, 2, 3, 4), SHAPE)


@pytest.mark.parametrize("pads", [[0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]])
def test_a_convolution_pads_no_channels_and_no_images(pads):
    weights = {"pads": np.array(pads), "w": normal(4, 4 + pads[1], 1, 1)}
    nodes = [("Pad", "x pads", "p"), ("Conv", "p w", "y")]
    assert [operation.name for operation in found(net(nodes, SHAPE, weights))] == ["pad", "nn.conv2d"]


def test_local_response_normalization():
    operation = only([("LRN", "x", "y", {"size": 3})])
    assert operation.name == "lrn"
    assert operation.inputs[0].variable.name == "x"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([("Relu", "x", "y")], (0.0, math.inf)),
        ([("Clip", "x one", "y")], (1.0, math.inf)),
        ([("Clip", "x  one", "y")], (-math.inf, 1.0)),
    ],
)
def test_limits(nodes, expected):
    operation = only(nodes, scalars(one=1))
    greatest = float(np.finfo(np.float32).max)
    assert patterns.limits(operation) == tuple(np.clip(expected, -greatest, greatest))


def test_limits_that_differ_between_channels_are_none():
    numbers = values.Value(shape=(4, 1, 1), dtype="float32", constant=object())
    operation = values.Operation("maximum", (values.Value(shape=SHAPE), numbers), ())
    assert patterns.limits(operation) is None
