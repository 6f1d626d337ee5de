"""Graphs inside nodes (If, Loop, Scan): the names they read, and a branch as a part of the graph around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx


def names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield a name for each time that a graph reads it; its outputs count as reads."""
    for node in graph.node:
        yield from node_reads(node)
    for value in graph.output:
        yield value.name


def node_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield a name for each time that a node reads it; bodies of If and Loop read from the graph around them."""
    yield from node.input
    for body in bodies(node):
        yield from names_read(body)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else []
        yield from attribute.graphs


def drop_unread_weights(graph: onnx.GraphProto) -> None:
    read = set(names_read(graph))
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(weights)


@dataclass(frozen=True)
class Branch:
    """Nodes and constants of a branch under unique names, and the names of its results."""

    nodes: tuple[onnx.NodeProto, ...]
    constants: tuple[onnx.TensorProto, ...]
    outputs: tuple[str, ...]


def branch_body(node: onnx.NodeProto, *, condition: bool) -> onnx.GraphProto:
    name = "then_branch" if condition else "else_branch"
    return next(attribute.g for attribute in node.attribute if attribute.name == name)


def prefixed_branch(graph: onnx.GraphProto, prefix: str) -> Branch:
    """Return a branch whose names begin with a prefix; a ValueError if there is a branch or loop in it."""
    names = {name: f"{prefix}.{name}" for node in graph.node for name in node.output if name}
    names |= {tensor.name: f"{prefix}.{tensor.name}" for tensor in graph.initializer}
    constants = []
    for tensor in graph.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = names[tensor.name]
        constants.append(copy)
    nodes = tuple(_rename(node, names) for node in graph.node)
    return Branch(nodes, tuple(constants), tuple(names.get(value.name, value.name) for value in graph.output))


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    if list(bodies(node)):
        raise ValueError("there is a branch or a loop in a branch")
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    return copy
