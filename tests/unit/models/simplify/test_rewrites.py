"""Rewrites of nodes: single axes become lists, Identity nodes go, products with zero keep infinities and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import agree_model
from toolchain.models.simplify import rewrites

ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -7.0]


def test_one_axis():
    nodes = [node("Unsqueeze", ["x", "axis"], ["y"])]
    proto = nets.model(nodes, [value("x", (3, 4))], [value("y", (1, 3, 4))], {"axis": np.array(0)}, 13)
    agree_model(proto, [np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)])


def _value(name: str) -> Any:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2])


def _nodes(*nodes: Any, outputs: tuple[str, ...] = ("y",)) -> list[tuple[str, list[str], list[str]]]:
    """Return the nodes that remain of a model."""
    graph = helper.make_graph(list(nodes), "g", [_value("x")], [_value(name) for name in outputs])
    remaining = rewrites.remove_identities(helper.make_model(graph)).graph.node
    return [(node.op_type, list(node.input), list(node.output)) for node in remaining]


def test_a_chain_goes() -> None:
    chain = [helper.make_node("Identity", [source], [other]) for source, other in (("x", "a"), ("a", "b"), ("b", "c"))]
    assert _nodes(*chain, helper.make_node("Add", ["c", "a"], ["y"])) == [("Add", ["x", "x"], ["y"])]


def test_what_makes_an_output_stays() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    expected = [("Identity", ["x"], ["y"]), ("Relu", ["y"], ["z"])]
    assert _nodes(*nodes, outputs=("y", "z")) == expected


def test_a_branch_reads_what_the_identity_read() -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["a"], ["n"])], "branch", [], [_value("n")])
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("If", ["a"], ["y"], then_branch=branch, else_branch=branch),
    ]
    graph = helper.make_graph(nodes, "g", [_value("x")], [_value("y")])
    [node] = rewrites.remove_identities(helper.make_model(graph)).graph.node
    assert [attribute.g.node[0].input[0] for attribute in node.attribute] == ["x", "x"]


def test_one_of_another_domain_is_not_known() -> None:
    assert _nodes(helper.make_node("Identity", ["x"], ["y"], domain="other"), outputs=("z",))[0][0] == "Identity"


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("names", [("x", "zero"), ("zero", "x")])
@pytest.mark.parametrize("operator", ["Mul", "Div"])
def test_infinities_and_nan_survive(operator, names, zero, kind):
    ends = [value("x", (7,), kind)], [value("y", (7,), kind)]
    agree_model(
        nets.model([node(operator, names, ["y"])], *ends, {"zero": np.array(zero, kind)}), [np.array(ODD, kind)]
    )


def test_a_zero_of_more_axes_than_the_other_factor():
    proto = nets.model(
        [node("Mul", ["x", "z"], ["y"])],
        [value("x", (3,))],
        [value("y", (1, 1, 3))],
        {"z": np.zeros((1, 1, 1), np.float32)},
    )
    agree_model(proto, [np.array([1, np.inf, 2], np.float32)])


def test_whole_numbers_are_left_alone():
    proto = nets.model(
        [node("Mul", ["x", "z"], ["y"])],
        [value("x", (3,), "int32")],
        [value("y", (3,), "int32")],
        {"z": np.array(0, np.int32)},
    )
    agree_model(proto, [np.array([1, 5, 2], np.int32)])
