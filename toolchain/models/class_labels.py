"""Class labels of classical machine learning: tables of probabilities instead of lists of maps, and no text.

Converters end a classifier with ZipMap, whose result is a list of maps from labels to probabilities, and write text
labels as text. A board computes neither. The maps become the tensor of probabilities that they are made from; text
labels are left out if the model has another output. The labels, in the order of the columns, are reported to the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper, numpy_helper

from toolchain.errors import InputError
from toolchain.models import protos

_DOMAIN, _STANDARD = "ai.onnx.ml", frozenset({"", "ai.onnx"})
_PRODUCES_TEXT = frozenset({"ArrayFeatureExtractor", "LabelEncoder"})
_OPSET = 13  # for a model without operators of the standard, and so without a version of them: any would do
_PASSED_ON = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"})


def make_tensor_outputs(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Change a model in place so that its outputs are tensors of numbers; return what was changed, a line each.

    Raises:
        InputError: Text labels are the only output of the model.
    """
    if not any(node.domain == _DOMAIN for node in proto.graph.node):
        return ()
    if not any(entry.domain in _STANDARD for entry in proto.opset_import):
        proto.opset_import.add(domain="", version=_OPSET)
    return (*_replace_maps(proto.graph), *_remove_text_outputs(proto.graph))


def _replace_maps(graph: onnx.GraphProto) -> Iterator[str]:
    outputs = {value.name: value for value in graph.output}
    for index, node in enumerate(graph.node):
        if (node.domain, node.op_type) != (_DOMAIN, "ZipMap") or node.output[0] not in outputs:
            continue
        name, labels = node.output[0], _labels(node)
        graph.node[index].CopyFrom(helper.make_node("Identity", node.input, [name], node.name))
        outputs[name].CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        outputs[name].type.tensor_type.ClearField("shape")
        columns = ", ".join(labels)
        yield f"output {name} is a list of maps in the file (ZipMap): it becomes a tensor with the columns {columns}"


def _remove_text_outputs(graph: onnx.GraphProto) -> Iterator[str]:
    """Remove outputs that are class labels as text; there must be others."""
    makers = {name: node for node in graph.node for name in node.output}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for value in list(graph.output):
        is_text = value.type.tensor_type.elem_type == TensorProto.STRING
        labels = _labels_of_output(value.name, makers, weights) if is_text else []
        if labels and len(graph.output) == 1:
            raise InputError(
                f"the only output of the model, {value.name}, is text, which no board computes",
                details=f"it is one of the labels {', '.join(labels)}",
                hint="export the model with its scores or probabilities too, or with classes that are numbers",
            )
        if labels:
            graph.output.remove(value)
            node_count = -1
            while node_count != len(graph.node):  # each round may leave others without a reader
                node_count = len(graph.node)
                read = set(protos.names_read(graph))
                nodes = [node for node in graph.node if read.intersection(node.output)]
                protos.set_repeated(graph.node, nodes)
            protos.drop_unread_weights(graph)
            yield (
                f"output {value.name} is text, which no board computes: it is left out; "
                f"the labels in the order of the classes: {', '.join(labels)}"
            )


def _labels_of_output(
    name: str, makers: Mapping[str, onnx.NodeProto], weights: Mapping[str, onnx.TensorProto]
) -> Sequence[str]:
    """Return the labels that an output can be; none if it is not made of class labels."""
    node = makers.get(name)
    # Operators that pass labels on, back to the one that makes them.
    while node is not None and node.op_type in _PASSED_ON:
        node = makers.get(node.input[0])
    if node is None or node.domain != _DOMAIN:
        return []
    if node.op_type in _PRODUCES_TEXT and node.input[0] in weights:
        tensor = weights[node.input[0]]
        return _texts(tensor.string_data) if tensor.data_type == TensorProto.STRING else []
    return _labels(node)


def _labels(node: onnx.NodeProto) -> list[str]:
    """Return the labels that an attribute of a node lists, whatever its name."""
    for attribute in node.attribute:
        if attribute.name in {"classlabels_strings", "values_strings"}:
            return _texts(attribute.strings)
        if attribute.name in {"classlabels_int64s", "classlabels_ints"}:
            return [str(number) for number in attribute.ints]
        if attribute.name == "values_tensor" and attribute.t.data_type == TensorProto.STRING:
            return [str(text) for text in numpy_helper.to_array(attribute.t).reshape(-1)]
    return []


def _texts(values: Sequence[bytes]) -> list[str]:
    return [value.decode(errors="replace") for value in values]
