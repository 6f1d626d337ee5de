"""A model file in the form that every later step expects, where the standard or ONNX Runtime allows several.

Attributes whose values the standard lists are checked too: other values are refused by name, before anything is
compiled.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

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
