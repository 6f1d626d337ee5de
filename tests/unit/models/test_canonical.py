"""Files that the standard, or ONNX Runtime, takes in several forms."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import agree_model
from toolchain.errors import InputError
from toolchain.models import source
from toolchain.models.canonical import make_canonical

ROW = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def test_the_long_name_of_the_standards_domain(tmp_path):
    graph = nets.graph(
        [helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")], [value("x", (2, 3))], [value("y", (2, 3))]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx", 17)], ir_version=8)
    loaded = source.load(nets.save(proto, tmp_path))
    assert [(entry.domain, entry.version) for entry in loaded.proto.opset_import] == [("", 17)]
    agree_model(loaded.proto, [ROW])


def test_two_versions_of_the_standard_are_refused(tmp_path):
    proto = nets.relu()
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 11))
    with pytest.raises(InputError, match="in several versions: 11, 17"):
        source.load(nets.save(proto, tmp_path))


def test_nodes_in_any_order(tmp_path):
    nodes = [
        node("Relu", ["c"], ["y"]),
        node("Add", ["a", "b"], ["c"]),
        node("Neg", ["x"], ["b"]),
        node("Abs", ["x"], ["a"]),
    ]
    proto = nets.model(nodes, [value("x", (2, 3))], [value("y", (2, 3))])
    loaded = source.load(nets.save(proto, tmp_path))
    assert [item.op_type for item in loaded.proto.graph.node] == ["Neg", "Abs", "Add", "Relu"]
    agree_model(loaded.proto, [ROW])


def test_a_branch_that_reads_a_later_node():
    branch = nets.graph([node("Neg", ["a"], ["r"])], [], [value("r", None)])
    nodes = [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch), node("Abs", ["x"], ["a"])]
    proto = nets.model(nodes, [value("x", (2, 3)), value("c", (), "bool")], [value("y", None)])
    make_canonical(proto)
    assert [item.op_type for item in proto.graph.node] == ["Abs", "If"]


def test_nodes_in_order_stay_as_they_are():
    proto = nets.model(
        [node("Abs", ["x"], ["a"]), node("Neg", ["x"], ["b"]), node("Add", ["a", "b"], ["y"])],
        [value("x", (2, 3))],
        [value("y", (2, 3))],
    )
    before = proto.SerializeToString(deterministic=True)
    make_canonical(proto)
    assert proto.SerializeToString(deterministic=True) == before


def test_a_circle_is_left_to_the_checker(tmp_path):
    proto = nets.model(
        [node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"])], [value("x", (2, 3))], [value("b", (2, 3))]
    )
    with pytest.raises(InputError, match="not a valid ONNX model"):
        source.load(nets.save(proto, tmp_path))


def test_an_empty_list_of_axes_is_as_none():
    proto = nets.model([node("ReduceMax", ["x"], ["y"], keepdims=0)], [value("x", (2, 3))], [value("y", ())], opset=16)
    proto.graph.node[0].attribute.add(name="axes", type=onnx.AttributeProto.INTS)
    make_canonical(proto)
    agree_model(proto, [ROW])


def test_a_thousand_nodes_backwards():
    names = [f"t{number}" for number in range(1001)]
    nodes = [node("Neg", [names[number]], [names[number + 1]]) for number in range(1000)]
    proto = nets.model(nodes[::-1], [value("t0", (1,))], [value("t1000", (1,))])
    make_canonical(proto)
    assert [item.output[0] for item in proto.graph.node] == names[1:]
