"""Domains and versions of operators: old versions are converted, unknown ones refused, and functions expanded."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import helper, inliner, numpy_helper, shape_inference, version_converter

from toolchain.errors import InputError
from toolchain.models import protos
from toolchain.models.protos import STANDARD

# From here on axes are inputs, and Softmax works on one axis: what is older is converted to this.
_OLDEST_UNCONVERTED = 13

_COORDINATES = 11  # the opset since which Resize has attributes for its coordinates
_SCALES = 2  # input of Resize

# Their definitions draw random numbers, which have no converter: an error should name the operator of the file.
_RANDOM = frozenset({"Bernoulli"})


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
        converted = version_converter.convert_version(protos.without_weights(proto), _OLDEST_UNCONVERTED)
    except (RuntimeError, ValueError, shape_inference.InferenceError):
        return proto
    protos.restore_weights(converted, proto)
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


def inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    return inliner.inline_local_functions(proto) if proto.functions else proto


def expand_functions(proto: onnx.ModelProto, convertible: Collection[str]) -> tuple[onnx.ModelProto, bool]:
    """Expand operators of the standard that are not convertible into their definition; also return whether any were."""
    operators = {node.op_type for node in proto.graph.node if _is_function(node) and name_of(node) not in convertible}
    if not operators:
        return proto, False
    # The inliner needs the types of all values, those of weights included.
    typed = onnx.shape_inference.infer_shapes(proto)
    declared = {value.name for value in (*typed.graph.input, *typed.graph.value_info)}
    typed.graph.value_info.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in typed.graph.initializer
        if tensor.name not in declared
    )
    for node in typed.graph.node:
        if node.op_type in operators and _is_function(node):
            # The inliner drops references to absent attributes, also to those that have a default.
            present = {attribute.name for attribute in node.attribute}
            for name, attribute in onnx.defs.get_schema(node.op_type).attributes.items():
                if name not in present and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
                    node.attribute.append(attribute.default_value)
    names = [(domain, name) for domain in sorted(STANDARD) for name in sorted(operators)]
    try:
        result = inliner.inline_selected_functions(typed, names, exclude=False, inline_schema_functions=True)
    except RuntimeError:  # inference lacks a type: an error then names the operator as one without a converter
        return proto, False
    return result, any(node.op_type not in operators for node in result.graph.node) and result.graph != typed.graph


def _is_function(node: onnx.NodeProto) -> bool:
    if node.domain not in STANDARD or node.op_type in _RANDOM or not onnx.defs.has(node.op_type):
        return False
    schema = onnx.defs.get_schema(node.op_type)
    return bool(schema.has_function or schema.has_context_dependent_function)
