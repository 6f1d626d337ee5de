"""Attribute values that the standard does not define."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.support import nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.models import canonical, source


def pad(mode):
    pads = {"p": np.array([0, 1, 0, 1])}
    return nets.model(
        [node("Pad", ["x", "p"], ["y"], name="pad", mode=mode)], [value("x", (2, 3))], [value("y", (2, 5))], pads
    )


def test_an_unknown_value_is_refused_by_node(tmp_path):
    with pytest.raises(InputError, match="Pad node 'pad' has mode='reflekt'") as caught:
        source.load(nets.save(pad("reflekt"), tmp_path))
    assert caught.value.details == "the standard defines: constant, reflect, edge, wrap"
    assert "reflect" in caught.value.hint


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_values_of_the_standard_are_taken(mode):
    canonical.check(pad(mode))


def test_operators_of_other_domains_have_values_of_their_own():
    proto = pad("whatever")
    proto.graph.node[0].domain = "com.example"
    canonical.check(proto)


def test_branches_are_checked_too():
    graph = nets.graph([node("BitShift", ["a", "b"], ["r"], direction="UP")], [], [value("r", None, "uint8")])
    proto = nets.relu()
    proto.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=graph, else_branch=graph))
    with pytest.raises(InputError, match="BitShift node 'r' has direction='UP'"):
        canonical.check(proto)
