"""Identity nodes, of which some exporters write one after each layer: TVM's canonical form takes for ever with many."""

from __future__ import annotations

from collections.abc import Mapping

import onnx


def removed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Let what reads an Identity's output read its input.

    Args:
        proto: The model, changed in place. An Identity that makes an output of it stays.

    Returns:
        The same model.
    """
    graph = proto.graph
    ends = {value.name for value in graph.output}
    names: dict[str, str] = {}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Identity" and not node.domain and node.output[0] not in ends:
            names[node.output[0]] = names.get(node.input[0], node.input[0])
        else:
            kept.append(node)
    if names:
        for node in kept:
            _read(node, names)
        del graph.node[:]
        graph.node.extend(kept)
    return proto


def _read(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let a node read other names, in its subgraphs as well."""
    node.input[:] = [names.get(name, name) for name in node.input]
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                _read(inner, names)
            for value in graph.output:
                value.name = names.get(value.name, value.name)
