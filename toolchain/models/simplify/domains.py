"""Operators of other domains: TVM's importer knows names alone, so that is where the domain goes."""

from __future__ import annotations

import onnx

STANDARD = frozenset({"", "ai.onnx"})


def name_of(node: onnx.NodeProto) -> str:
    """Return a node's operator; one of another domain than the standard's is `DOMAIN.NAME`."""
    return node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"


def named(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which the names of operators carry their domains."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    _rename(made.graph)
    return made


def _rename(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.domain:
            node.op_type = name_of(node)
            node.ClearField("domain")
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                _rename(body)
