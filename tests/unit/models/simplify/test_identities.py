"""Identity nodes go, and nothing else changes."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from toolchain.models.simplify import identities


def _value(name: str) -> Any:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2])


def _nodes(*nodes: Any, outputs: tuple[str, ...] = ("y",)) -> list[tuple[str, list[str], list[str]]]:
    """Return the nodes that are left of a model."""
    graph = helper.make_graph(list(nodes), "g", [_value("x")], [_value(name) for name in outputs])
    left = identities.removed(helper.make_model(graph)).graph.node
    return [(node.op_type, list(node.input), list(node.output)) for node in left]


def test_a_chain_goes() -> None:
    chain = [helper.make_node("Identity", [one], [other]) for one, other in (("x", "a"), ("a", "b"), ("b", "c"))]
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
    [node] = identities.removed(helper.make_model(graph)).graph.node
    assert [attribute.g.node[0].input[0] for attribute in node.attribute] == ["x", "x"]


def test_one_of_another_domain_is_not_known() -> None:
    assert _nodes(helper.make_node("Identity", ["x"], ["y"], domain="other"), outputs=("z",))[0][0] == "Identity"
