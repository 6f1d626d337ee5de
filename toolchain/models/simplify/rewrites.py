"""Small rewrites of nodes that TVM computes wrongly, slowly or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from toolchain.models import protos

_AXES = 1  # input of Squeeze, Unsqueeze and the reductions, from opset 13 or 18 on
_TAKE_AXES = frozenset(
    {
        *("Squeeze", "Unsqueeze", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
        *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
    }
)
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})


# ONNX Runtime takes axes that are a single number, too.
def axes_as_lists(proto: onnx.ModelProto) -> onnx.ModelProto:
    scalars = {tensor.name: tensor for tensor in proto.graph.initializer if not tensor.dims}
    for node in proto.graph.node:
        if node.op_type in _TAKE_AXES and len(node.input) > _AXES and node.input[_AXES] in scalars:
            axes = protos.clone(scalars[node.input[_AXES]], f"{node.output[0]}.axes")
            axes.dims.append(1)
            proto.graph.initializer.append(axes)
            node.input[_AXES] = axes.name
    return proto


def remove_identities(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Remove Identity nodes in place, but for those that make an output of the model.

    Some exporters write one after each layer. TVM's canonical form takes a very long time with many of them.
    """
    graph = proto.graph
    ends = {value.name for value in graph.output}
    names: dict[str, str] = {}
    others: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Identity" and not node.domain and node.output[0] not in ends:
            names[node.output[0]] = names.get(node.input[0], node.input[0])
        else:
            others.append(node)
    if names:
        for node in others:
            _rename_inputs(node, names)
        protos.set_repeated(graph.node, others)
    return proto


def _rename_inputs(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(name, name) for name in node.input]
    for body in protos.bodies(node):
        for inner in body.node:
            _rename_inputs(inner, names)
        for value in body.output:
            value.name = names.get(value.name, value.name)


def write_out_zero_products(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite products and quotients with a constant zero in place, such that infinities and NaN survive.

    TVM computes x * 0 as 0, and 0 / x too, and refuses x / 0. By IEEE 754, which the standard and ONNX Runtime follow,
    infinity * 0, NaN * 0 and 0 / 0 are NaN, and x / 0 is infinite. TVM keeps zeros that are tensors of several numbers.
    """
    graph = proto.graph
    scalars = [tensor for tensor in graph.initializer if tensor.data_type in _FLOATS and math.prod(tensor.dims) == 1]
    zeros = {tensor.name: tensor for tensor in scalars if not numpy_helper.to_array(tensor).any()}
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
        nodes += _zero_product(node, other, zeros[zero], graph)
    protos.set_repeated(graph.node, nodes)
    return proto


def _zero_product(
    node: onnx.NodeProto, other: str, zero: onnx.TensorProto, graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """Return equal nodes: x / 0 is x times infinity; x * 0 and 0 / x are 0 except for what makes NaN."""
    (output,) = node.output
    numbers = numpy_helper.to_array(zero)

    def constant(role: str, value: float) -> str:
        graph.initializer.append(numpy_helper.from_array(np.full_like(numbers, value), f"{output}.{role}"))
        return f"{output}.{role}"

    if node.op_type == "Div" and node.input[1] == zero.name:
        infinity = constant("infinity", math.copysign(math.inf, float(numbers.reshape(()))))
        return [helper.make_node("Mul", [other, infinity], [output], node.name)]
    is_nan, is_other, is_either = (f"{output}.{role}" for role in ("nan", "special", "invalid"))
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
