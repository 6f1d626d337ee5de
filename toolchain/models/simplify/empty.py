"""Tensors without elements are folded away: TVM compiles no kernel over them, and devices store no such file.

Exporters write them for a cache that is empty at the first step, for an unused part of a Split, and for slices that
select nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from toolchain.errors import InputError
from toolchain.models import protos
from toolchain.models.simplify import folding

_ROUNDS = 100  # each folds away what the one before made constant


def fold_empty(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which no node reads or writes a tensor without elements; the same model if it has none."""
    for _ in range(_ROUNDS):
        types = _types(proto)
        empty = {
            name
            for name, tensor in types.items()
            if any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in tensor.shape.dim)
        }
        if not empty:
            return proto
        changed = protos.clone(proto)
        if not _fold(changed.graph, empty - {value.name for value in proto.graph.output}, types):
            break
        proto = folding.fold_constants(changed)
    for index, node in enumerate(proto.graph.node):
        # Lists of axes, sizes or scales may be empty, as is the shape of a scalar.
        data_inputs = node.input[:1] if node.op_type in _TAKES_PARAMETERS else node.input
        if node.op_type.startswith("Reduce"):
            data_inputs = node.input[:1]
        elif node.op_type == "ConstantOfShape":
            data_inputs = []
        if names := empty & {*data_inputs, *node.output} - {""}:
            raise InputError(
                f"{node.op_type} at node {index} {node.name or node.output[0]!r} has a tensor without elements",
                details=f"tensor {min(names)!r} has a size of 0",
                hint="export the model for sizes of at least 1, or without this node",
            )
    return proto


def _types(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto.Tensor]:
    undeclared = protos.without_weights(proto)
    for value in undeclared.graph.output:  # a file may claim elements for a result that has none
        value.type.tensor_type.ClearField("shape")
    graph = shape_inference.infer_shapes(undeclared, data_prop=True).graph
    types = {value.name: value.type.tensor_type for value in (*graph.input, *graph.value_info, *graph.output)}
    types |= {
        value.name: value.type.tensor_type for value in proto.graph.output if not types[value.name].HasField("shape")
    }
    for tensor in graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
    return types


def _fold(graph: onnx.GraphProto, empty: set[str], types: Mapping[str, onnx.TypeProto.Tensor]) -> bool:
    """Replace nodes that write or read tensors without elements; return whether there was one."""
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        outputs = [name for name in node.output if name]
        if outputs and all(name in empty for name in outputs):
            graph.initializer.extend(_empty_constant(name, types[name]) for name in outputs)
            changed = True
            continue
        rewrite = _REWRITES.get(node.op_type) if empty & {*node.input, *node.output} and not node.domain else None
        replacement = rewrite(node, empty, types, graph) if rewrite else None
        changed |= replacement is not None
        nodes += [node] if replacement is None else replacement
    protos.set_repeated(graph.node, nodes)
    return changed


def _empty_constant(name: str, tensor: onnx.TypeProto.Tensor) -> onnx.TensorProto:
    """Return a constant without elements; unknown sizes beside the 0 become 1."""
    sizes = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim]
    return helper.make_tensor(name, tensor.elem_type, sizes, b"", raw=True)


Types = Mapping[str, onnx.TypeProto.Tensor]
Rewrite = Callable[[onnx.NodeProto, Collection[str], Types, onnx.GraphProto], list[onnx.NodeProto] | None]


def _concat(
    node: onnx.NodeProto, empty: Collection[str], _types: Types, _graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    inputs = [name for name in node.input if name not in empty]
    if len(inputs) == 1:
        return [helper.make_node("Identity", inputs, node.output, node.name)]
    protos.set_repeated(node.input, inputs)
    return [node]


def _split(
    node: onnx.NodeProto, empty: Collection[str], types: Types, graph: onnx.GraphProto
) -> list[onnx.NodeProto] | None:
    outputs = [name for name in node.output if name not in empty]
    if any(name not in types for name in outputs):
        return None
    graph.initializer.extend(_empty_constant(name, types[name]) for name in node.output if name in empty)
    # All elements go to the only output that has any.
    if len(outputs) == 1:
        return [helper.make_node("Identity", [node.input[0]], outputs, node.name)]
    axis = protos.get_attribute(node, "axis", 0)
    sizes = [types[name].shape.dim[axis].dim_value for name in outputs]
    graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), f"{outputs[0]}.sizes"))
    return [helper.make_node("Split", [node.input[0], f"{outputs[0]}.sizes"], outputs, node.name, axis=axis)]


# A sum over an axis without elements is 0; Gemm adds its third input, times beta.
def _zero_product(
    node: onnx.NodeProto, _empty: Collection[str], types: Types, graph: onnx.GraphProto
) -> list[onnx.NodeProto] | None:
    (output,) = node.output
    if output not in types:
        return None
    sizes = [dim.dim_value for dim in types[output].shape.dim]
    kind = helper.tensor_dtype_to_np_dtype(types[output].elem_type)
    if not sizes or math.prod(sizes) == 0:
        return None
    if node.op_type == "MatMul" or len(node.input) < 3 or not node.input[2]:  # noqa: PLR2004 - Gemm's third input
        graph.initializer.append(numpy_helper.from_array(np.zeros(sizes, kind), output))
        return []
    beta = protos.get_attribute(node, "beta", 1.0)
    shape, factor, scaled = (f"{output}.{role}" for role in ("shape", "beta", "scaled"))
    graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), shape))
    graph.initializer.append(numpy_helper.from_array(np.array(beta, kind), factor))
    return [
        helper.make_node("Mul", [node.input[2], factor], [scaled], scaled),
        helper.make_node("Expand", [scaled, shape], [output], node.name),
    ]


def _scatter(
    node: onnx.NodeProto, empty: Collection[str], _types: Types, _graph: onnx.GraphProto
) -> list[onnx.NodeProto] | None:
    if node.input[1] not in empty:
        return None
    return [helper.make_node("Identity", [node.input[0]], node.output, node.name)]


_REWRITES: dict[str, Rewrite] = {
    "Concat": _concat,
    "Split": _split,
    "MatMul": _zero_product,
    "Gemm": _zero_product,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
}


_TAKES_PARAMETERS = frozenset(
    {
        *("CenterCropPad", "Expand", "Pad", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "Unsqueeze"),
        "Upsample",
    }
)
