"""What moves before a resize or a view computes the same as in ONNX Runtime, and what would not gain stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, relax_nets
from tests.support.relax_nets import bindings, net, normal, prepared
from toolchain.backends.cpu.graph.linear_order import reorder
from toolchain.backends.graph.values import name_of, shape_of

SCALES = {"none": np.zeros(0, np.float32), "scales": np.array([1, 1, 3, 2], np.float32)}
LINEAR = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
ENLARGED = ("Resize", "a none scales", "b")


def pixels_of_convolutions(module):
    """Return the height of the result of each convolution, in order."""
    return [shape_of(binding.var.ty)[2] for binding in bindings(module) if name_of(binding.value) == "nn.conv2d"]


def check(proto):
    """Compare with ONNX Runtime, and return the module."""
    module, feeds = reorder(prepared(proto)), relax_nets.feeds(proto)
    [mine], [other] = relax_nets.computed(module, feeds), nets.run(proto, feeds)
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
    return module


@pytest.mark.parametrize(
    "how",
    [
        LINEAR,
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"},
    ],
    ids=lambda how: how["mode"],
)
def test_a_convolution_moves_before_an_enlargement(how):
    nodes = [("Abs", "x", "a"), (*ENLARGED, how), ("Conv", "b w bias", "y")]
    weights = SCALES | {"w": normal(20, 16, 1, 1), "bias": normal(20)}
    assert pixels_of_convolutions(check(net(nodes, (1, 16, 4, 6), weights))) == [4]


def test_the_parts_of_a_concatenation_are_summed():
    """What is not enlarged stays together; the other parts are convolved before."""
    nodes = [
        ("Abs", "x", "a"),
        ("Sin", "x", "a2"),
        ("Cos", "x", "a3"),
        (*ENLARGED, LINEAR),
        ("Resize", "a2 none scales", "b2", LINEAR),
        ("Resize", "a3 none scales", "b3", LINEAR),
        ("Conv", "b3 v", "c", {"pads": [1, 1, 1, 1]}),
        ("Sin", "c", "d"),
        ("Concat", "b c b2 d", "e", {"axis": 1}),
        ("Conv", "e w bias", "f"),
        ("Relu", "f", "y"),
    ]
    weights = SCALES | {"v": normal(8, 16, 3, 3), "w": normal(20, 48, 1, 1), "bias": normal(20)}
    module = check(net(nodes, (1, 16, 4, 6), weights))
    assert pixels_of_convolutions(module) == [12, 12, 4, 4]


@pytest.mark.parametrize(
    ("nodes", "shape", "outputs"),
    [
        ([("Resize", "a none less", "b"), ("Conv", "b w", "y")], (1, 16, 24, 32), ("y",)),  # made smaller
        ([ENLARGED, ("Conv", "b w", "y")], (1, 16, 4, 6), ("y", "b")),  # the enlarged tensor is a result, too
        ([ENLARGED, ("Conv", "b w3", "y")], (1, 16, 4, 6), ("y",)),  # windows
        ([ENLARGED, ("Conv", "b w", "y", {"strides": [2, 2]})], (1, 16, 4, 6), ("y",)),
        ([ENLARGED, ("Conv", "b w", "y", {"pads": [1, 1, 1, 1]})], (1, 16, 4, 6), ("y",)),
        ([ENLARGED, ("Conv", "b many", "y")], (1, 16, 11, 15), ("y",)),  # more results to interpolate than inputs
    ],
    ids=["smaller", "read-twice", "windows", "strides", "padding", "wide"],
)
def test_others_stay(nodes, shape, outputs):
    less = np.array([1, 1, 0.5, 0.5], np.float32)
    weights = SCALES | {
        "less": less,
        "w": normal(20, 16, 1, 1),
        "w3": normal(20, 16, 3, 3),
        "many": normal(400, 16, 1, 1),
    }
    nodes = [("Abs", "x", "a"), (*nodes[0], LINEAR), *nodes[1:]]
    module = reorder(prepared(net(nodes, shape, weights, outputs)))
    names = [name_of(binding.value) for binding in bindings(module)]
    assert names.index("image.resize2d") < names.index("nn.conv2d")


TOKENS = [("Reshape", "c tokens", "r"), ("Transpose", "r", "t", {"perm": [0, 2, 1]})]


@pytest.mark.parametrize("function", ["Relu", "Sigmoid", "Tanh", "Erf"])
def test_a_function_moves_before_the_views_of_a_convolution(function):
    nodes = [("Conv", "x w bias", "c"), *TOKENS, (function, "t", "y")]
    weights = {"w": normal(8, 3, 1, 1), "bias": normal(8), "tokens": np.array([1, 8, 20])}
    module = check(net(nodes, (1, 3, 4, 5), weights))
    names = [name_of(binding.value) for binding in bindings(module)]
    assert names.index("permute_dims") > names.index({"Relu": "nn.relu"}.get(function, function.lower()))


def test_a_function_of_other_views_stays():
    nodes = [("Exp", "x", "c"), *TOKENS, ("Tanh", "t", "y")]
    module = check(net(nodes, (1, 8, 4, 5), {"tokens": np.array([1, 8, 20])}))
    names = [name_of(binding.value) for binding in bindings(module)]
    assert names.index("permute_dims") < names.index("tanh")
