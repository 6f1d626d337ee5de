"""Weights of 4 bits, compiled, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.operator_cases import Case, computed
from toolchain.errors import InputError
from toolchain.models.ort import onnxruntime
from toolchain.models.simplify import rewrites

_OPSET = 21  # since which there are blocks and 4 bits


def _network(kind: int, names: list[str], axis: int, block: int, scales: tuple[int, ...]) -> onnx.ModelProto:
    """Return a product of `x` with a 4-bit matrix [32, 6]."""
    rng, low = np.random.default_rng(2), -8 if kind == TensorProto.INT4 else 0
    initializers = [
        helper.make_tensor("w", kind, (32, 6), rng.integers(low, low + 16, 32 * 6)),
        numpy_helper.from_array(rng.random(scales).astype(np.float32), "s"),
    ]
    if "z" in names:
        initializers.append(helper.make_tensor("z", kind, scales, rng.integers(low, low + 16, int(np.prod(scales)))))
    nodes = [
        helper.make_node("DequantizeLinear", names, ["n"], "numbers", axis=axis, block_size=block),
        helper.make_node("MatMul", ["x", "n"], ["y"], "product"),
    ]
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, (3, 32))], [value("y", TensorProto.FLOAT, (3, 6))]
    graph = helper.make_graph(nodes, "narrow", *ends, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


@pytest.mark.parametrize("grid", [(0, 16, (2, 6)), (1, 0, (6,)), (1, 0, ())], ids=["blocks", "each column", "one"])
@pytest.mark.parametrize("names", [["w", "s"], ["w", "s", "z"]], ids=["middle", "zeros"])
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
def test_weights_of_4_bits(kind, names, grid):
    proto = _network(kind, names, *grid)
    data = np.random.default_rng(4).standard_normal((3, 32)).astype(np.float32)
    options = onnxruntime.SessionOptions()  # optimized, it would round the data to 8 bits
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": data})
    (output,) = computed(Case("narrow", proto, (data,), (), 0, 0))
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_what_something_else_reads_is_refused_by_name():
    proto = _network(TensorProto.INT4, ["w", "s", "z"], 1, 0, (6,))
    proto.graph.node.append(helper.make_node("Identity", ["w"], ["v"]))
    with pytest.raises(InputError, match="constant w has the element type int4"):
        rewrites.widen_constants(proto)


@pytest.mark.parametrize("kind", ["INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1", "FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_narrow_constants_that_are_cast(kind):
    element = TensorProto.DataType.Value(kind)
    numbers = [0, 1, 0, 1] if "2" in kind else [0, 1, 2, 4]
    weights = [helper.make_tensor("w", element, (2, 2), numbers)]
    nodes = [helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), helper.make_node("Add", ["x", "f"], ["y"])]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 2))] for name in "xy"]
    proto = helper.make_model(helper.make_graph(nodes, "cast", *ends, weights), ir_version=11)
    proto.opset_import[0].version = 25
    data = np.full((2, 2), 0.5, np.float32)
    (output,) = computed(Case("cast", proto, (data,), (), 0, 0))
    np.testing.assert_array_equal(output, data + numpy_helper.to_array(weights[0]).astype(np.float32))
