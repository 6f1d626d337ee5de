"""Variables of an imported module that say which node of the file they come from."""

from __future__ import annotations

import numpy as np
import onnx

from tests.support import nets
from tests.support.nets import node, value
from toolchain.models import importer, origins, source

_SHAPE = (2, 3)
_ENDS = [value("x", _SHAPE)], [value("y", _SHAPE)]


def imported(tmp_path, nodes: list[onnx.NodeProto], weights=None):
    proto = nets.model(nodes, *_ENDS, weights)
    return importer.import_model(source.load(nets.save(proto, tmp_path))).module


def test_each_variable_comes_from_a_node(tmp_path):
    module = imported(
        tmp_path, [node("Relu", ["x"], ["a"], name="first"), node("Sigmoid", ["a"], ["y"], name="second")]
    )
    nodes = [origins.of(binding.var) for binding in origins.bindings(module)]
    assert [(origin.operator, origin.name, origin.index) for origin in nodes] == [
        ("Relu", "first", 0),
        ("Sigmoid", "second", 1),
    ]


def test_a_node_without_a_name_is_called_after_its_result(tmp_path):
    module = imported(tmp_path, [node("Relu", ["x"], ["a"]), node("Sigmoid", ["a"], ["y"])])
    assert [origins.of(binding.var).name for binding in origins.bindings(module)] == ["a", "y"]


def test_steps_on_the_way_to_a_result_belong_to_its_node(tmp_path):
    """A Gemm is imported as several operations; only the last one of them returns the node's result."""
    weights = {"w": np.ones((3, 3), np.float32), "b": np.ones(3, np.float32)}
    nodes = [node("Relu", ["x"], ["a"], name="relu"), node("Gemm", ["a", "w", "b"], ["y"], name="gemm", alpha=0.5)]
    module = imported(tmp_path, nodes, weights)
    variables = [binding.var for binding in origins.bindings(module)]
    names = [origins.of(variable).name for variable in variables]
    assert names.count("relu") == 1
    assert names.count("gemm") > 1
    returned = [origins.returns(variable).name for variable in variables if origins.returns(variable)]
    assert returned == ["relu", "gemm"]


def test_spans_are_replaced_and_removed(tmp_path):
    module = imported(tmp_path, [node("Relu", ["x"], ["a"]), node("Sigmoid", ["a"], ["y"])])
    bare = origins.with_spans(module, {binding.var: None for binding in origins.bindings(module)})
    assert [origins.of(binding.var) for binding in origins.bindings(bare)] == [None, None]
    assert bare.script() == module.script()
    assert origins.step(None) is None
