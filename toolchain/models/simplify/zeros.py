"""Products and quotients with a constant zero, written so that infinities and NaNs survive.

TVM computes x * 0 as 0, and 0 / x too, and refuses x / 0. The standard and ONNX Runtime compute them as IEEE 754 does:
infinity * 0, NaN * 0 and 0 / 0 are NaN, and x / 0 is infinite.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})


def written_out(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace them, in place, where the zero is a single number: TVM keeps tensors of several numbers as they are."""
    graph = proto.graph
    zeros = {tensor.name: tensor for tensor in graph.initializer if _is_zero(tensor)}
    if not any(node.op_type in {"Mul", "Div"} and set(node.input) & set(zeros) for node in graph.node):
        return proto
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        is_candidate = node.op_type in {"Mul", "Div"} and not node.domain and len(node.input) == len(set(node.input))
        zero = next((name for name in node.input if name in zeros), None) if is_candidate else None
        if zero is None:
            nodes.append(node)
            continue
        (other,) = (name for name in node.input if name != zero)
        nodes += _replacement(node, other, zeros[zero], graph)
    del graph.node[:]
    graph.node.extend(nodes)
    return proto


def _replacement(
    node: onnx.NodeProto, other: str, zero: onnx.TensorProto, graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """Return nodes that compute the same: x * 0 is x - x, 0 / x is 1/x - 1/x, and x / 0 is x times infinity."""
    (output,) = node.output
    # Both operands spread to the rank of the zero, which may be the larger one.
    widened, value = f"{output}.widened", f"{output}.factor"
    shape = f"{output}.shape"
    graph.initializer.append(numpy_helper.from_array(np.ones(len(zero.dims), np.int64), shape))
    nodes = [helper.make_node("Expand", [other, shape], [widened], widened)]
    if node.op_type == "Div" and node.input[1] == zero.name:
        numbers = numpy_helper.to_array(zero)
        infinity = np.full_like(numbers, math.copysign(math.inf, float(numbers.reshape(()))))
        graph.initializer.append(numpy_helper.from_array(infinity, f"{output}.infinity"))
        return [*nodes, helper.make_node("Mul", [widened, f"{output}.infinity"], [output], node.name)]
    operation = "Identity" if node.op_type == "Mul" else "Reciprocal"
    nodes.append(helper.make_node(operation, [widened], [value], value))
    return [*nodes, helper.make_node("Sub", [value, value], [output], node.name)]


def _is_zero(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _FLOATS and math.prod(tensor.dims) == 1 and not numpy_helper.to_array(tensor).any()
