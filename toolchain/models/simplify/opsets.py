"""Domains and versions of operators: old versions are converted, unknown ones refused."""

from __future__ import annotations

import onnx
from onnx import helper, numpy_helper, shape_inference, version_converter

from toolchain.errors import InputError
from toolchain.models import protos

# From here on axes are inputs, and Softmax works on one axis: what is older is converted to this.
_OLDEST_UNCONVERTED = 13

_COORDINATES = 11  # the opset since which Resize has attributes for its coordinates
_SCALES = 2  # input of Resize


def is_old(proto: onnx.ModelProto) -> bool:
    return protos.opset(proto) < _OLDEST_UNCONVERTED


def check(proto: onnx.ModelProto) -> None:
    newest = onnx.defs.onnx_opset_version()
    if protos.opset(proto) > newest:
        raise InputError(
            f"the opset of the model is {protos.opset(proto)}, but the newest supported opset is {newest}",
            hint=f"export it with opset_version={newest} or less",
        )


def raise_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with newer forms of its operators; the same if one of them has no newer form.

    The importer supports the newer forms best; it knows older ones as well.
    """
    if not is_old(proto):
        return proto
    proto.ir_version = max(proto.ir_version, 8)  # before 4, weights had to be among the inputs
    _flatten_hardmax(proto.graph)
    try:
        converted = version_converter.convert_version(proto, _OLDEST_UNCONVERTED)
    except (RuntimeError, ValueError, shape_inference.InferenceError):
        return proto
    return converted if protos.opset(proto) >= _COORDINATES or _set_resize_coordinates(converted.graph) else proto


# Before opset 13, Hardmax worked on flattened rows, which onnx's converter ignores.
def _flatten_hardmax(graph: onnx.GraphProto) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Hardmax":
            nodes.append(node)
            continue
        axis = protos.get_attribute(node, "axis", 1)
        shape, rows, ones = (f"{node.output[0]}.{role}" for role in ("shape", "rows", "ones"))
        nodes += [
            helper.make_node("Shape", [node.input[0]], [shape], shape),
            helper.make_node("Flatten", [node.input[0]], [rows], rows, axis=axis),
            helper.make_node("Hardmax", [rows], [ones], node.name, axis=1),
            helper.make_node("Reshape", [ones, shape], node.output, f"{ones}.reshaped"),
        ]
    protos.set_repeated(graph.node, nodes)


def _set_resize_coordinates(graph: onnx.GraphProto) -> bool:
    """Write out how each Resize chose its coordinates before opset 11, which onnx's converter ignores.

    Returns whether that is possible: an attribute counts for all axes, so not if one is enlarged and another shrunk.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    for node in graph.node:
        if node.op_type != "Resize":
            continue
        scales = tensors.get(node.input[2]) if len(node.input) > _SCALES else None
        if scales is None:
            return False
        factors = numpy_helper.to_array(scales)
        if factors.min() < 1 < factors.max():
            return False
        rounding = "ceil" if factors.min() < 1 else "floor"
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
        node.attribute.extend(helper.make_attribute(name, value) for name, value in modes.items())
    return True


def name_of(node: onnx.NodeProto) -> str:
    """Return a node's operator; `DOMAIN.NAME` for another domain than the standard's."""
    return node.op_type if node.domain in protos.STANDARD else f"{node.domain}.{node.op_type}"


def with_qualified_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model whose operators' names include their domains, which TVM's importer ignores."""
    copy = protos.clone(proto)
    _qualify(copy.graph)
    return copy


def _qualify(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.domain:
            node.op_type = name_of(node)
            node.ClearField("domain")
        for body in protos.bodies(node):
            _qualify(body)
