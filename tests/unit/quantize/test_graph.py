from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import int8_nets, nets, qdq_nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.models import source as model
from toolchain.quantize import graph as graphs
from toolchain.quantize.graph import Graph

ONES = np.ones((1, 3), np.float32)


def net(*nodes, constants=None, outputs=("y",), opset=17):
    return nets.model(nodes, [value("x", (1, 3))], [value(name, (1, 3)) for name in outputs], constants or {}, opset)


def test_constants_become_initializers():
    constant = node("Constant", [], ["c"], value=numpy_helper.from_array(ONES, "other"))
    proto = net(constant, node("Identity", ["c"], ["d"]), node("Add", ["x", "d"], ["y"]))
    result = graphs.constants_as_initializers(proto)
    assert [node.op_type for node in result.graph.node] == ["Add"]
    assert {tensor.name for tensor in result.graph.initializer} == {"c", "d"}
    assert nets.run(result, {"x": ONES})[0].tolist() == [[2, 2, 2]]
    assert len(proto.graph.node) == 3


def test_constant_results_stay():
    constant = node("Constant", [], ["y"], value=numpy_helper.from_array(ONES, "y"))
    proto = net(constant, node("Identity", ["y"], ["z"]), node("Neg", ["x"], ["n"]), outputs=("y", "z", "n"))
    result = graphs.constants_as_initializers(proto)
    assert [node.op_type for node in result.graph.node] == ["Constant", "Identity", "Neg"]


def test_what_only_one_node_reads():
    branch = nets.graph([node("Neg", ["b"], ["n"])], [], [value("n", (1, 3))])
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("Neg", ["x"], ["b"]),
        node("Add", ["a", "b"], ["s"]),
        node("If", ["on"], ["y"], then_branch=branch, else_branch=branch),
    ]
    graph = Graph(net(*nodes, constants={"on": np.bool_(1)}, outputs=("y", "s")))
    assert graph.only_reader("a").op_type == "Add"
    assert graph.only_reader("b") is None  # the branches read it too
    assert graph.only_reader("s") is None  # a result
    assert graph.only_reader("y") is None


def test_batch_norm_is_folded(tmp_path):
    source = model.load(nets.save(int8_nets.residual(), tmp_path))
    result = graphs.floating(source)
    proto = result.proto
    assert result.ranges is None
    assert "BatchNormalization" not in {node.op_type for node in proto.graph.node}
    assert Graph(proto).shapes["n1"] == (1, 12, 3, 3)


def test_a_convolution_in_a_function_is_found(tmp_path):
    """As in files of PyTorch's newer exporter: what a build inlines can be quantized."""
    opset = onnx.helper.make_opsetid("", 17)
    inside = [node("Conv", ["a", "k"], ["c"], "inner"), node("Relu", ["c"], ["b"])]
    function = onnx.helper.make_function("mine", "Block", ["a", "k"], ["b"], inside, [opset])
    nodes = [node("Block", ["x", "w"], ["h"], domain="mine"), node("Conv", ["h", "w"], ["y"], "outer")]
    ends = [value("x", (1, 4, 5, 5))], [value("y", (1, 4, 5, 5))]
    proto = nets.model(nodes, *ends, {"w": qdq_nets.weights(4, 4, 1, 1)})
    proto.functions.append(function)
    proto.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    result = graphs.floating(model.load(nets.save(proto, tmp_path))).proto
    assert [node.op_type for node in result.graph.node] == ["Conv", "Relu", "Conv"]


def test_an_old_opset_is_raised(tmp_path):
    proto = net(node("Clip", ["x"], ["y"], min=0.0, max=6.0), opset=9)
    proto.ir_version = 4
    source = model.load(nets.save(proto, tmp_path))
    raised = graphs.floating(source).proto
    onnx.checker.check_model(raised, full_check=True)
    assert raised.opset_import[0].version == 13
    assert nets.run(raised, {"x": 9 * ONES})[0].tolist() == [[6, 6, 6]]


def test_an_opset_that_cannot_be_raised_is_told(tmp_path):
    source = model.load(nets.save(net(node("Relu", ["x"], ["y"]), opset=9), tmp_path))
    source.proto.graph.node[0].op_type = "Upsample"
    with pytest.raises(InputError, match="opset 9"):
        graphs.floating(source)


def test_titles_name_nodes_without_names():
    assert graphs.title(node("Neg", ["x"], ["y"], "minus")) == "minus"
    assert graphs.title(node("Neg", ["x"], ["y"])) == "y"


def test_floats_are_told_from_other_constants():
    graph = Graph(net(node("Add", ["x", "w"], ["y"]), constants={"w": qdq_nets.random((1, 3)), "i": np.int64(1)}))
    assert [graph.is_float(name) for name in ("w", "i", "x")] == [True, False, False]
