"""A branch of an If as a part of the graph around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from toolchain.models import reads


@dataclass(frozen=True)
class Branch:
    """Nodes and constants of a branch, under names that nothing else has, and the names of its results."""

    nodes: tuple[onnx.NodeProto, ...]
    constants: tuple[onnx.TensorProto, ...]
    outputs: tuple[str, ...]


def body(node: onnx.NodeProto, *, condition: bool) -> onnx.GraphProto:
    """Return the graph of the branch that is taken for a condition."""
    wanted = "then_branch" if condition else "else_branch"
    return next(one.g for one in node.attribute if one.name == wanted)


def named_apart(graph: onnx.GraphProto, prefix: str) -> Branch:
    """Return a branch whose names begin with a prefix.

    Raises:
        ValueError: There is a branch or loop in it.
    """
    names = {name: f"{prefix}.{name}" for node in graph.node for name in node.output if name}
    names |= {tensor.name: f"{prefix}.{tensor.name}" for tensor in graph.initializer}
    constants = []
    for tensor in graph.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = names[tensor.name]
        constants.append(copy)
    nodes = tuple(_renamed(node, names) for node in graph.node)
    return Branch(nodes, tuple(constants), tuple(names.get(value.name, value.name) for value in graph.output))


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    if list(reads.bodies(node)):
        raise ValueError("there is a branch or a loop in a branch")
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    return copy
