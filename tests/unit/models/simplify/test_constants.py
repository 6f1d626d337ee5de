"""Every way in which the standard writes a constant gives the same model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import agree_model
from toolchain.models.simplify import folding

NUMBERS = np.array([2.0, 0.0, -1.5], np.float32)


def sparse(array, name=""):
    """Return a tensor with a row of coordinates for each number that is not 0."""
    coordinates = np.argwhere(array)
    values = numpy_helper.from_array(array[tuple(coordinates.T)], name)
    return helper.make_sparse_tensor(
        values, numpy_helper.from_array(coordinates.astype(np.int64), f"{name}_at"), array.shape
    )


FORMS = {
    "value": ({"value": numpy_helper.from_array(NUMBERS)}, NUMBERS),
    "value_float": ({"value_float": 0.5}, np.float32(0.5)),
    "value_floats": ({"value_floats": [0.5, 0.25, 2.0]}, np.array([0.5, 0.25, 2.0], np.float32)),
    "value_int": ({"value_int": 3}, np.int64(3)),
    "value_ints": ({"value_ints": [1, 2, 3]}, np.array([1, 2, 3])),
    "sparse_value": ({"sparse_value": sparse(NUMBERS)}, NUMBERS),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_constant_becomes_an_initializer(form):
    attributes, array = FORMS[form]
    dtype = str(array.dtype)
    nodes = [node("Constant", [], ["c"], **attributes), node("Mul", ["x", "c"], ["y"])]
    proto = nets.model(nodes, [value("x", (3,), dtype)], [value("y", (3,), dtype)])
    converted = folding.as_initializers(proto)
    assert [item.op_type for item in converted.graph.node] == ["Mul"]
    np.testing.assert_array_equal(numpy_helper.to_array(converted.graph.initializer[0]), array)
    assert proto.graph.node[0].op_type == "Constant", "the user's model stays"
    if form != "sparse_value":  # which ONNX Runtime takes as an initializer alone
        agree_model(proto, [np.array([1, 2, 3], dtype)])


def test_sparse_weights():
    dense = np.array([[2, 0, 0], [0, 3, 0], [0, 0, 0]], np.float32)
    proto = nets.model([node("MatMul", ["x", "w"], ["y"])], [value("x", (1, 3))], [value("y", (1, 3))])
    proto.graph.sparse_initializer.append(sparse(dense, "w"))
    agree_model(proto, [np.array([[1, 2, 3]], np.float32)])


def test_indices_that_count_elements():
    values, indices = (
        numpy_helper.from_array(np.array([7], np.float32), "w"),
        numpy_helper.from_array(np.array([4]), "i"),
    )
    tensor = folding.dense(helper.make_sparse_tensor(values, indices, [2, 3]), "w")
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), [[0, 0, 0], [0, 7, 0]])


def test_a_constant_that_is_an_output_stays_a_node():
    nodes = [node("Constant", [], ["c"], value_float=0.5), node("Mul", ["x", "c"], ["y"])]
    proto = nets.model(nodes, [value("x", (3,))], [value("y", (3,)), value("c", ())])
    converted = folding.as_initializers(proto)
    assert [item.op_type for item in converted.graph.node] == ["Constant", "Mul"]
    assert converted.graph.node[0].attribute[0].name == "value"
    onnx.checker.check_model(converted)


def test_constants_of_branches():
    def branch(number):
        nodes = [node("Constant", [], ["c"], value_float=number), node("Mul", ["x", "c"], ["r"])]
        return nets.graph(nodes, [], [value("r", None)])

    choice = node("If", ["condition"], ["y"], then_branch=branch(2.0), else_branch=branch(3.0))
    proto = nets.model([choice], [value("x", (3,))], [value("y", (3,))], {"condition": np.zeros((), bool)})
    agree_model(proto, [np.array([1, 2, 3], np.float32)])


def test_a_default_of_a_function_of_the_standard():
    """Swish's body has a Constant whose value is the attribute alpha, which the file leaves at its default."""
    graph = nets.graph([node("Swish", ["x"], ["y"])], [value("x", (2, 3))], [value("y", (2, 3))])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    agree_model(proto, [np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)])


def test_text_is_kept():
    proto = nets.model([node("Constant", [], ["c"], value_strings=["a", "b"])], [value("x", (1,))], [value("x", (1,))])
    (tensor,) = folding.as_initializers(proto).graph.initializer
    assert tensor.data_type == TensorProto.STRING
    assert list(tensor.string_data) == [b"a", b"b"]
