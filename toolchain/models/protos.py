"""ONNX messages read and rewritten: attributes, the names that nodes read, and the graphs inside nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

STANDARD = frozenset({"", "ai.onnx"})
"""The names of the standard's domain."""

_NUMBERS = {*helper.get_all_tensor_dtypes()} - {onnx.TensorProto.STRING}
_MAX_SHAPE_BYTES = 1 << 16  # of a constant that may be a shape, or sizes of parts


def opset(proto: onnx.ModelProto) -> int:
    """Return the version of the standard's operators that a model was written for."""
    return max((entry.version for entry in proto.opset_import if entry.domain in STANDARD), default=1)


def clone(message: Any, name: str = "") -> Any:
    """Return a copy of a message, under another name if there is one."""
    copy = type(message)()
    copy.CopyFrom(message)
    if name:
        copy.name = name
    return copy


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model whose large constants have a shape and a type, but no data.

    It has what shape inference needs, since shapes follow from small constants alone. ONNX's functions take a model as
    bytes and return it as bytes, which takes seconds with the weights of a large one.
    """
    graph = proto.graph
    copy = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    copy.graph.name = graph.name
    for name in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(copy.graph, name).extend(getattr(graph, name))
    for tensor in graph.initializer:
        if is_large(tensor):
            copy.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        else:
            copy.graph.initializer.append(tensor)
    return copy


def restore_weights(proto: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Put the data that `without_weights` left out back into what became of the copy, in place."""
    large = {tensor.name: tensor for tensor in original.graph.initializer if is_large(tensor)}
    for tensor in proto.graph.initializer:
        if tensor.name in large:
            tensor.CopyFrom(large[tensor.name])


def is_large(tensor: onnx.TensorProto) -> bool:
    """Whether `without_weights` leaves the data of a constant out."""
    return data_bytes(tensor) > _MAX_SHAPE_BYTES


def data_bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a constant's data.

    protobuf's `ByteSize` writes the whole message to find its length: 17 s of a build of VGG-19 were spent on that.
    """
    if tensor.data_type not in _NUMBERS:
        return int(tensor.ByteSize())
    return int(math.prod(tensor.dims)) * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def size(proto: onnx.ModelProto) -> int:
    """Return about how many bytes a model has with its weights."""
    large = sum(data_bytes(tensor) for tensor in proto.graph.initializer if is_large(tensor))
    return int(without_weights(proto).ByteSize()) + large


def set_repeated(field: Any, values: Iterable[Any]) -> None:
    """Replace the elements of a repeated field, which `values` must not read while it is iterated."""
    # protobuf has no assignment to a repeated field.
    del field[:]
    field.extend(values)


def get_attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return an attribute of a node as a Python value."""
    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def get_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


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


def walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, each before those of the bodies in it."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from walk_nodes(body.node)


def drop_unread_weights(graph: onnx.GraphProto) -> None:
    read = set(names_read(graph))
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    set_repeated(graph.initializer, weights)


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
    constants = tuple(clone(tensor, names[tensor.name]) for tensor in graph.initializer)
    nodes = []
    for node in graph.node:
        if list(bodies(node)):
            raise ValueError("there is a branch or a loop in a branch")
        copy = clone(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        nodes.append(copy)
    return Branch(tuple(nodes), constants, tuple(names.get(value.name, value.name) for value in graph.output))
