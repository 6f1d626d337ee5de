"""Weights in files of their own: their size is checked before any of them is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from toolchain.models import protos


def size(proto: onnx.ModelProto, folder: Path) -> int:
    """Return the bytes that a model's tensors take from other files; a ValueError if a location is invalid."""
    return sum(_size(tensor, folder) for tensor in _tensors(proto) if uses_external_data(tensor))


def _size(tensor: onnx.TensorProto, folder: Path) -> int:
    info = ExternalDataInfo(tensor)
    if "\0" in info.location:  # what reads the file would end the name there, and read another one
        raise ValueError(f"the location of the weights {tensor.name} has a NUL byte: {info.location!r}")
    if info.length is not None:
        return int(info.length)
    path = folder / info.location
    return max(path.stat().st_size - int(info.offset or 0), 0) if path.is_file() else 0


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
        for graph in protos.bodies(node):
            yield from _graph_tensors(graph)
