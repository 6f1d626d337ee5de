"""Domains and versions of operators: old versions are converted, unknown ones refused."""

from __future__ import annotations

import onnx
from onnx import helper, numpy_helper, shape_inference, version_converter

from toolchain.errors import InputError
from toolchain.models import subgraphs

STANDARD = frozenset({"", "ai.onnx"})

_OLDEST_AS_IT_IS = 13
"""From here on axes are inputs, and Softmax works on one axis: what is older is converted to this."""

_COORDINATES = 11  # since here Resize can be told which places of its input it takes
_SCALES = 2  # input of Resize


def version(proto: onnx.ModelProto) -> int:
    """Return the version of the standard's operators that a model was written for."""
    return max((entry.version for entry in proto.opset_import if entry.domain in STANDARD), default=1)


def is_old(proto: onnx.ModelProto) -> bool:
    """Whether a model is to be converted."""
    return version(proto) < _OLDEST_AS_IT_IS


def check(proto: onnx.ModelProto) -> None:
    """Refuse a model that was written for operators which nobody here knows.

    Raises:
        InputError: It was.
    """
    newest = onnx.defs.onnx_opset_version()
    if version(proto) > newest:
        raise InputError(
            f"the opset of the model is {version(proto)}, but the newest supported opset is {newest}",
            hint=f"export it with opset_version={newest} or less",
        )


def raised(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with newer forms of its operators; the same if one of them has no such form.

    The importer then meets each operator in the form that it knows best; it knows older ones as well.
    """
    if not is_old(proto):
        return proto
    proto.ir_version = max(proto.ir_version, 8)  # before 4, weights had to be among the inputs
    _flatten_hardmax(proto.graph)
    try:
        made = version_converter.convert_version(proto, _OLDEST_AS_IT_IS)
    except (RuntimeError, ValueError, shape_inference.InferenceError):
        return proto
    return made if version(proto) >= _COORDINATES or _kept_coordinates(made.graph) else proto


def _flatten_hardmax(graph: onnx.GraphProto) -> None:
    """Have each Hardmax work on flattened rows, as it did before opset 13: onnx's converter forgets that."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Hardmax":
            nodes.append(node)
            continue
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        shape, rows, ones = (f"{node.output[0]}.{word}" for word in ("shape", "rows", "ones"))
        nodes += [
            helper.make_node("Shape", [node.input[0]], [shape], shape),
            helper.make_node("Flatten", [node.input[0]], [rows], rows, axis=axis),
            helper.make_node("Hardmax", [rows], [ones], node.name, axis=1),
            helper.make_node("Reshape", [ones, shape], node.output, f"{ones}.reshaped"),
        ]
    del graph.node[:]
    graph.node.extend(nodes)


def _kept_coordinates(graph: onnx.GraphProto) -> bool:
    """Tell each Resize how it took its places before it could be told, which onnx's own converter forgets.

    Returns:
        Whether all could be told: not those that enlarge one axis and shrink another.
    """
    known = {one.name: one for one in graph.initializer}
    known |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    for node in graph.node:
        if node.op_type != "Resize":
            continue
        scales = known.get(node.input[2]) if len(node.input) > _SCALES else None
        if scales is None:
            return False
        factors = numpy_helper.to_array(scales)
        if factors.min() < 1 < factors.max():
            return False
        rounding = "ceil" if factors.min() < 1 else "floor"
        told = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
        node.attribute.extend(helper.make_attribute(name, value) for name, value in told.items())
    return True


def name_of(node: onnx.NodeProto) -> str:
    """Return a node's operator; `DOMAIN.NAME` for another domain than the standard's."""
    return node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"


def with_qualified_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model whose operators' names include their domains, which TVM's importer ignores."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    _qualify(copy.graph)
    return copy


def _qualify(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.domain:
            node.op_type = name_of(node)
            node.ClearField("domain")
        for body in subgraphs.bodies(node):
            _qualify(body)
