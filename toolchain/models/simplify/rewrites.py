"""Small rewrites of nodes that TVM computes wrongly, slowly or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from toolchain.errors import InputError
from toolchain.models import protos
from toolchain.models.protos import STANDARD

_AXES = 1  # input of Squeeze, Unsqueeze and the reductions, from opset 13 or 18 on
_TAKE_AXES = frozenset(
    {
        *("Squeeze", "Unsqueeze", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
        *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
    }
)
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})

# Element types that no kernel supports, and wider ones that hold the same numbers exactly.
_INTEGERS = {
    TensorProto.INT2: np.int8,
    TensorProto.INT4: np.int8,
    TensorProto.UINT2: np.uint8,
    TensorProto.UINT4: np.uint8,
}
_NARROW_FLOATS = {
    TensorProto.FLOAT4E2M1,
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
    TensorProto.FLOAT8E8M0,
}
_BELOW_A_BYTE = {*_INTEGERS, TensorProto.FLOAT4E2M1}  # TVM has no tensors of these types
# ONNX Runtime's quantized LSTM has weights of 8 bits, and rounds data and state to 8 bits as well, at each step. Those
# errors feed back: its results may be far from those of the same weights in single precision, which we compute. So the
# reference for such a file is the standard's LSTM with these weights.
QUANTIZED_LSTM = "DynamicQuantizeLSTM"
_WEIGHTS = ((1, 8, 9), (2, 10, 11))  # positions of weights, scale and zero point among the inputs
_OF_LSTM = 8


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


def widen_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose narrow constants are wider, if only DequantizeLinear or Cast reads them.

    Raises:
        InputError: Something else reads a constant that is narrower than a byte.
    """
    if not any(tensor.data_type in {*_INTEGERS, *_NARROW_FLOATS} for tensor in proto.graph.initializer):
        return proto
    changed = protos.clone(proto)
    scaled, others = _readers(proto.graph)
    for tensor in changed.graph.initializer:
        kind: type | None = _INTEGERS.get(tensor.data_type)
        # Scales that are 8-bit floats are refused by name later.
        if tensor.data_type in _NARROW_FLOATS and tensor.name not in scaled:
            kind = np.float32
        if kind and tensor.name not in others:
            values = numpy_helper.to_array(tensor).astype(kind)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        elif tensor.data_type in _BELOW_A_BYTE and tensor.name in others:
            name = TensorProto.DataType.Name(tensor.data_type).lower()
            raise InputError(
                f"constant {tensor.name} has the element type {name}",
                details=f"{others[tensor.name]}; numbers of less than 8 bits are supported as weights of "
                "DequantizeLinear and of Cast",
                hint="export the model with this constant as int8, uint8 or float32",
            )
    return changed


# Cast may read them, too.
def _readers(graph: onnx.GraphProto) -> tuple[set[str], dict[str, str]]:
    """Return the inputs of DequantizeLinear, and the other readers by tensor."""
    scaled: set[str] = set()
    others = {value.name: "the model returns it" for value in graph.output}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.domain in STANDARD:
            scaled.update(node.input)
        elif node.op_type != "Cast" or node.domain not in STANDARD:
            others |= dict.fromkeys(node.input, f"{node.op_type} node {node.name or node.output[0]!r} reads it")
    return scaled, others


def quantized_lstm_in_floats(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with LSTM in place of DynamicQuantizeLSTM; the same model if none has constant weights."""
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    indices = [
        index
        for index, node in enumerate(proto.graph.node)
        if node.op_type == QUANTIZED_LSTM
        and all(node.input[i] in tensors for weights, scale, _zero in _WEIGHTS for i in (weights, scale))
    ]
    if not indices:
        return proto
    changed = protos.clone(proto)
    for index in indices:
        node = changed.graph.node[index]
        inputs = list(node.input[:_OF_LSTM])
        for weights, scale, zero in _WEIGHTS:
            positions = (weights, scale, zero)
            arrays = [
                numpy_helper.to_array(tensors[node.input[i]]).astype(np.float32)
                for i in positions
                if i < len(node.input) and node.input[i] in tensors
            ]
            # Bytes [directions, inputs, gates]; scale and zero are for each direction, or for each of its gates.
            integers, unit = arrays[:2]
            middle = arrays[-1] if len(arrays) == len(positions) else np.zeros_like(unit)
            shape = (len(integers), 1, -1)
            numbers = (integers - middle.reshape(shape)) * unit.reshape(shape)
            inputs[weights] = f"{node.output[0] or node.output[-1]}.weights{weights}"
            # The standard's LSTM has [directions, gates, inputs].
            transposed = np.ascontiguousarray(numbers.transpose(0, 2, 1))
            changed.graph.initializer.append(numpy_helper.from_array(transposed, inputs[weights]))
        plain = helper.make_node("LSTM", inputs, list(node.output), node.name)
        plain.attribute.extend(node.attribute)
        node.CopyFrom(plain)
    return changed
