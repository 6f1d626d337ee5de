"""A model file in the form that every later step expects, where the standard or ONNX Runtime allows several.

Attributes whose values the standard lists are checked too: other values are refused by name, before anything is
compiled. The outputs of classical machine learning become tensors of numbers. Converters end a classifier with ZipMap,
whose result is a list of maps from labels to probabilities, and write text labels as text. A board computes neither.
The maps become the tensor of probabilities that they are made from; text labels are left out if the model has another
output. The labels, in the order of the columns, are reported to the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper, numpy_helper

from toolchain.errors import InputError, did_you_mean
from toolchain.models import protos

_STANDARD = "ai.onnx"  # the standard's domain; its usual name is the empty one

_LISTS = {onnx.AttributeProto.INTS: "ints", onnx.AttributeProto.FLOATS: "floats"}

# Attributes that our converters check are not included.
_REDUCTION = ("none", "add", "mul", "max", "min")
_VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    **{(operator, "reduction"): _REDUCTION for operator in ("ScatterElements", "ScatterND")},
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("Gelu", "approximate"): ("none", "tanh"),
    ("GridSample", "mode"): ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    ("GridSample", "padding_mode"): ("zeros", "border", "reflection"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Resize", "nearest_mode"): ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("Resize", "keep_aspect_ratio_policy"): ("stretch", "not_larger", "not_smaller"),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear"),
}
_NUMBERS: dict[tuple[str, str], tuple[int, ...]] = {
    ("ConcatFromSequence", "new_axis"): (0, 1),
    ("GRU", "layout"): (0, 1),
    ("LSTM", "layout"): (0, 1),
    ("RNN", "layout"): (0, 1),
}

_DOMAIN = "ai.onnx.ml"
_PRODUCES_TEXT = frozenset({"ArrayFeatureExtractor", "LabelEncoder"})
_OPSET = 13  # for a model without operators of the standard, and so without a version of them: any would do
_PASSED_ON = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"})


def make_canonical(proto: onnx.ModelProto) -> None:
    """Rename the standard's domain to the empty name, drop empty lists, and sort nodes by what they read, in place."""
    versions = {entry.version for entry in proto.opset_import if entry.domain in {"", _STANDARD}}
    if len(versions) > 1:
        raise InputError(
            f"the model imports {_STANDARD} in several versions: {', '.join(map(str, sorted(versions)))}",
            hint="export it again with one version of them",
        )
    if any(entry.domain == _STANDARD for entry in proto.opset_import):
        others = [entry for entry in proto.opset_import if entry.domain not in {"", _STANDARD}]
        protos.set_repeated(proto.opset_import, [onnx.helper.make_opsetid("", versions.pop()), *others])
    for graph in _all_graphs(proto.graph):
        _make_nodes_canonical(graph.node)
    for function in proto.functions:
        _make_nodes_canonical(function.node)


def _all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in protos.bodies(node):
            yield from _all_graphs(body)


def _make_nodes_canonical(nodes: onnx.GraphProto.node) -> None:
    for node in nodes:
        if node.domain == _STANDARD:
            node.domain = ""
        # ONNX Runtime takes empty lists as absent attributes, and TVM cannot read their type.
        empty = [item for item in node.attribute if item.type in _LISTS and not getattr(item, _LISTS[item.type])]
        for item in empty:
            if node.op_type != "Unsqueeze":  # whose axes may not be absent
                node.attribute.remove(item)
    # ONNX Runtime loads nodes in any order; the checker and the importer need makers before readers.
    ordered = _sort(list(nodes))
    if ordered is not None:
        # Copies, since setting the field deletes its old elements.
        protos.set_repeated(nodes, [protos.clone(node) for node in ordered])


def _sort(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto] | None:
    """Return nodes sorted after those that they read, otherwise in the file's order; None if they already are.

    Nodes of a cycle stay where they are: the checker refuses them.
    """
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs = [{makers[name] for name in protos.node_reads(node) if name in makers} for node in nodes]
    if all(index > max(needed, default=-1) for index, needed in enumerate(needs)):
        return None
    ordered: dict[int, None] = {}
    for start in range(len(nodes)):
        path = [start]
        on_path = {start}
        while path:  # depth first without recursion: a chain may have thousands of nodes
            missing = next((index for index in sorted(needs[path[-1]]) if index not in ordered), None)
            if missing is None:
                ordered[path[-1]] = None
                on_path.discard(path.pop())
            elif missing in on_path:
                return None
            else:
                path.append(missing)
                on_path.add(missing)
    return [nodes[index] for index in ordered]


def check(proto: onnx.ModelProto) -> None:
    """Refuse a model with a value that the standard does not define; the error names the node."""
    for node in protos.walk_nodes(proto.graph.node):
        # Other domains define attributes of the same names with other values.
        for attribute in node.attribute if not node.domain else ():
            key = (node.op_type, attribute.name)
            value: str | int
            allowed: tuple[str, ...] | tuple[int, ...]
            if attribute.type == onnx.AttributeProto.STRING:
                value, allowed = attribute.s.decode(errors="replace"), _VALUES.get(key, ())
            else:
                value, allowed = attribute.i, _NUMBERS.get(key, ())
            if allowed and value not in allowed:
                choices = [str(choice) for choice in allowed]
                raise InputError(
                    f"{node.op_type} node {node.name or node.output[0]!r} has {attribute.name}={value!r}",
                    details="the standard defines: " + ", ".join(choices),
                    hint=did_you_mean(str(value), choices) or "export the model again with one of these values",
                )


def make_tensor_outputs(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Change a model in place so that its outputs are tensors of numbers; return what was changed, a line each.

    Raises:
        InputError: Text labels are the only output of the model.
    """
    if not any(node.domain == _DOMAIN for node in proto.graph.node):
        return ()
    if not any(entry.domain in protos.STANDARD for entry in proto.opset_import):
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
