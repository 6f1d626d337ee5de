"""Small graphs around convolutions, and what is made of each."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, qdq_nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.quantize.graph import Graph
from toolchain.quantize.plan import plan

STEM = node("Conv", ["x", "w"], ["s"], "stem")
HELD = {
    "w": qdq_nets.weights(4, 4, 1, 1),
    "w3": qdq_nets.weights(4, 4, 3, 3),
    "wd": qdq_nets.weights(4, 1, 1, 1),
    "b": np.zeros(4, np.float32),
    "channels": np.ones((1, 4, 1, 1), np.float32),
    "whole": np.ones((1, 4, 6, 6), np.float32),
    "0": np.float32(0),
    "1": np.float32(1),
    "6": np.float32(6),
}


def planned(*nodes, outputs=("y",), exclude=(), inputs=("x",), stem=False):
    """Plan a net that begins with the stem, which stays on floats unless told otherwise; all its tensors are alike."""
    values = [value(name, (1, 4, 6, 6)) for name in inputs]
    proto = nets.model([STEM, *nodes], values, [value(name, None) for name in outputs], HELD)
    return plan(Graph(proto), exclude if stem else ("stem", *exclude), "net")


def conv(source, output, weight="w", **options):
    return node("Conv", [source, weight], [output], output, **options)


def around(source, output):
    return conv(source, output, "w3", pads=[1, 1, 1, 1])


def ends(result):
    return {layer.name: (layer.residual, layer.output) for layer in result.layers}


def test_each_convolution_is_quantized_from_the_image_on():
    result = planned(conv("s", "y"), stem=True)
    assert (ends(result), result.left) == ({"stem": ("", "s"), "y": ("", "y")}, ())
    assert result.tensors == ("x", "s", "y")


def test_what_is_excluded_stays_on_floats():
    result = planned(conv("s", "y"))
    assert (ends(result), result.left) == ({"y": ("", "y")}, ("stem",))
    assert result.tensors == ("s", "y")


def test_computed_weights_stay_on_floats_and_grouped_ones_do_not():
    nodes = [node("Mul", ["w", "1"], ["v"]), conv("s", "c", "v"), conv("c", "y", "wd", group=4)]
    result = planned(*nodes)
    assert (list(ends(result)), result.left) == (["y"], ("stem", "c"))


def test_a_weight_of_another_type_stays():
    with pytest.raises(InputError, match="no convolution to quantize"):
        planned(node("Cast", ["s"], ["h"], to=10), node("Conv", ["h", "w16"], ["y"]))


@pytest.mark.parametrize(
    ("activation", "fused"),
    [
        (node("Relu", ["c"], ["y"]), True),
        (node("Clip", ["c", "0", "6"], ["y"]), True),
        (node("Clip", ["c", "1", "6"], ["y"]), False),
        (node("Clip", ["c", "0"], ["y"]), False),
        (node("Clip", ["c", "", "6"], ["y"]), False),
        (node("Sigmoid", ["c"], ["y"]), False),
    ],
)
def test_activations_at_the_end(activation, fused):
    (layer,) = planned(conv("s", "c"), activation).layers
    assert layer.output == ("y" if fused else "c")
    assert layer.clipped == (fused and activation.op_type == "Clip")


def test_what_others_read_too_is_rounded_there():
    result = planned(conv("s", "c"), node("Relu", ["c"], ["r"]), node("Mul", ["c", "r"], ["y"]))
    assert ends(result) == {"c": ("", "c")}


def test_a_result_is_rounded_there():
    result = planned(conv("s", "c"), node("Relu", ["c"], ["y"]), outputs=("y", "c"))
    assert ends(result) == {"c": ("", "c")}


@pytest.mark.parametrize("inputs", [["c", "s"], ["s", "c"]])
def test_an_addition_is_taken_along(inputs):
    result = planned(conv("s", "c"), node("Add", inputs, ["a"]), node("Relu", ["a"], ["y"]))
    assert ends(result) == {"c": ("s", "y")}
    assert result.tensors == ("s", "y")


@pytest.mark.parametrize("other", ["channels", "whole", "mean", "c"])
def test_other_additions_are_not(other):
    """Constants, a number for each channel, a tensor added to itself."""
    result = planned(conv("s", "c"), node("GlobalAveragePool", ["s"], ["mean"]), node("Add", ["c", other], ["y"]))
    assert ends(result) == {"c": ("", "c")}


@pytest.mark.parametrize("order", [["deep", "c"], ["c", "deep"]])
def test_of_two_branches_the_deeper_one_adds(order):
    result = planned(around("s", "c"), conv("s", "d"), conv("d", "deep"), node("Add", order, ["y"]))
    assert ends(result) == {"c": ("", "c"), "d": ("", "d"), "deep": ("c", "y")}


@pytest.mark.parametrize("order", [["wide", "c"], ["c", "wide"]])
def test_of_two_as_deep_the_larger_window_adds(order):
    assert ends(planned(conv("s", "c"), around("s", "wide"), node("Add", order, ["y"])))["wide"] == ("c", "y")


def test_of_two_alike_the_first_adds():
    result = planned(conv("s", "c"), conv("s", "d"), node("Add", ["d", "c"], ["y"]))
    assert ends(result) == {"c": ("", "c"), "d": ("c", "y")}


def test_a_branch_that_others_read_cannot_add():
    shared = [conv("s", "d"), conv("d", "deep"), node("Add", ["c", "deep"], ["a"]), node("Mul", ["a", "deep"], ["y"])]
    assert ends(planned(conv("s", "c"), *shared))["c"] == ("deep", "a")


def test_a_sum_of_three_adds_twice():
    nodes = [conv("s", "c"), conv("s", "d"), node("Add", ["c", "s"], ["a"]), node("Add", ["a", "d"], ["y"])]
    assert ends(planned(*nodes)) == {"c": ("s", "a"), "d": ("a", "y")}


def test_an_excluded_branch_is_added():
    result = planned(conv("s", "c"), conv("s", "d"), node("Add", ["d", "c"], ["y"]), exclude=("d",))
    assert (ends(result), result.left) == ({"c": ("d", "y")}, ("stem", "d"))
