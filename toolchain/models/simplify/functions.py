"""Functions of the file are inlined, and those of the standard without a converter become their operators."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import helper, inliner

from toolchain.models.protos import STANDARD
from toolchain.models.simplify.opsets import name_of

# Their definitions draw random numbers, which have no converter: an error should name the operator of the file.
_RANDOM = frozenset({"Bernoulli"})


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
