from __future__ import annotations

import itertools

import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import memory, nets
from toolchain.errors import InputError
from toolchain.models import model_size, source

LITTLE_KIB = 100 << 10
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def function(number: int, body: list[onnx.NodeProto]) -> onnx.FunctionProto:
    return helper.make_function("own", f"f{number}", ["x"], ["y"], body, OPSETS)


def call(number: int, x: str = "x", y: str = "y") -> onnx.NodeProto:
    return helper.make_node(f"f{number}", [x], [y], domain="own")


def chain(count: int, calls: int = 2) -> onnx.ModelProto:
    """Return a model of functions that each call the next one several times."""
    names = ["x", *(f"v{number}" for number in range(1, calls)), "y"]
    pairs = list(itertools.pairwise(names))
    bodies = [[call(number + 1, x, y) for x, y in pairs] for number in range(count - 1)]
    last = [helper.make_node("Relu", ["x"], ["y"])]
    functions = [function(number, body) for number, body in enumerate([*bodies, last])]
    graph = helper.make_graph([call(0)], "net", [X], [Y])
    return helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=8)


def refused(proto: onnx.ModelProto, match: str) -> None:
    with memory.at_most(LITTLE_KIB), pytest.raises(InputError, match=match):
        model_size.check_inlined(proto)


def test_functions_that_double_are_refused_before_anything_expands_them(tmp_path):
    path = nets.save(chain(28), tmp_path, "doubling.onnx")
    with memory.at_most(LITTLE_KIB), pytest.raises(InputError, match=r"function own\.f9 would have 262144 operators"):
        source.load(str(path))


def test_a_number_that_nobody_can_print_is_refused():
    refused(chain(99, calls=1000), "functions are inlined")


def test_a_few_functions_are_a_model(tmp_path):
    model_size.check_inlined(chain(10))
    source.load(str(nets.save(chain(10), tmp_path, "few.onnx")))


def test_functions_that_nest_too_deep_are_refused():
    refused(chain(200, calls=1), r"more than 100 deep, at own\.f100")


def test_a_function_that_calls_itself_is_refused():
    proto = chain(3)
    proto.functions[2].node.append(call(0, "y", "z"))
    refused(proto, r"function own\.f0 of the model calls itself")


def test_calls_in_branches_count():
    proto = chain(17)
    branch = helper.make_graph([call(0, "x", "b")], "branch", [], [helper.make_tensor_value_info("b", 1, [2])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model_size.check_inlined(proto)
    proto.graph.node.extend([node, node])
    refused(proto, "its graph would have 327682 operators")


def test_weights_of_a_function_count_each_time(monkeypatch):
    monkeypatch.setattr(model_size, "_MAX_BYTES", 1 << 20)
    proto = chain(8)
    weights = helper.make_node("Constant", [], ["w"], value=helper.make_tensor("w", 1, [4096], bytes(16384), raw=True))
    proto.functions[7].node.extend([weights])
    refused(proto, r"function own\.f1 would have 128 operators in")
