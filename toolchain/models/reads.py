"""Which names nodes and graphs read, those of the graphs in them included."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def of_graph(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield a name for each use of it, the graph's outputs included."""
    for node in graph.node:
        yield from of_node(node)
    for value in graph.output:
        yield value.name


def of_node(node: onnx.NodeProto) -> Iterator[str]:
    """Yield a name for each use of it by one node; the bodies of If and Loop read from the graph around them."""
    yield from node.input
    for body in bodies(node):
        yield from of_graph(body)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node."""
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else []
        yield from attribute.graphs


def drop_unread_weights(graph: onnx.GraphProto) -> None:
    """Remove the initializers that nobody reads."""
    read = set(of_graph(graph))
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
