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
    """Return nodes that compute the same: x / 0 is x times infinity; x * 0 and 0 / x are 0 but for what makes NaN."""
    (output,) = node.output
    numbers = numpy_helper.to_array(zero)

    def constant(word: str, value: float) -> str:
        graph.initializer.append(numpy_helper.from_array(np.full_like(numbers, value), f"{output}.{word}"))
        return f"{output}.{word}"

    if node.op_type == "Div" and node.input[1] == zero.name:
        infinity = constant("infinity", math.copysign(math.inf, float(numbers.reshape(()))))
        return [helper.make_node("Mul", [other, infinity], [output], node.name)]
    is_nan, is_other, is_either = (f"{output}.{word}" for word in ("nan", "special", "invalid"))
    special = (
        helper.make_node("IsInf", [other], [is_other], is_other)
        if node.op_type == "Mul"
        else helper.make_node("Equal", [other, zero.name], [is_other], is_other)
    )
    return [
        helper.make_node("IsNaN", [other], [is_nan], is_nan),
        special,
        helper.make_node("Or", [is_nan, is_other], [is_either], is_either),
        helper.make_node("Where", [is_either, constant("not_a_number", math.nan), zero.name], [output], node.name),
    ]


def _is_zero(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _FLOATS and math.prod(tensor.dims) == 1 and not numpy_helper.to_array(tensor).any()
