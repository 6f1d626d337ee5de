from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from tvm import relax

from tests.support import nets
from tests.support.relax_nets import bindings, net, prepared
from toolchain.backends.graph.imported import meaning


def meanings(proto):
    module = prepared(proto)
    called = [
        one.value
        for one in bindings(module)
        if isinstance(one.value, relax.Call) and one.value.op.name == "relax.call_tir"
    ]
    return [meaning(call, module[call.args[0]]) for call in called]


def number(expression):
    return float(expression.value.numpy().reshape(()))


def test_clip_with_limits_that_are_constants():
    lower, upper = meanings(net([("Clip", "x a b", "y")], (2, 3), {"a": np.float32(-1), "b": np.float32(2)}))
    assert [(one.name, number(one.arguments[1])) for one in (lower, upper)] == [("maximum", -1), ("minimum", 2)]


def test_clip_with_limits_in_the_kernel():
    node = helper.make_node("Clip", ["x"], ["y"], min=-1.0, max=2.0)
    proto = nets.model([node], [nets.value("x", (2, 3))], [nets.value("y", (2, 3))], opset=6)
    assert [(one.name, number(one.arguments[1])) for one in meanings(proto)] == [("maximum", -1), ("minimum", 2)]


def test_padding_with_zeros():
    [pad] = meanings(net([("Pad", "x pads", "y")], (2, 3, 4), {"pads": np.array([1, 0, 2, 0, 3, 4])}))
    assert (pad.name, pad.values) == ("pad", (1, 0, 2, 0, 3, 4))


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        (("Pad", "x pads", "y", {"mode": "reflect"}), {"pads": np.array([0, 1, 0, 1])}),
        (("Pad", "x pads", "y", {"mode": "edge"}), {"pads": np.array([0, 1, 0, 1])}),
        (("Pad", "x pads one", "y"), {"pads": np.array([0, 1, 0, 1]), "one": np.float32(1)}),
        (("Pad", "x pads", "y"), {"pads": np.array([0, -1, 0, 1])}),  # cuts off
    ],
)
def test_kernels_that_do_something_else(node, weights):
    assert meanings(net([node], (2, 3), weights)) == [None]


def test_a_function_that_is_not_there():
    module = prepared(net([("Pad", "x pads", "y")], (2, 3), {"pads": np.array([0, 1, 0, 1])}))
    [call] = [binding.value for binding in bindings(module)]
    assert meaning(call, None) is None
