"""The size of a model in memory, checked while it is small: with weights from other files, and with inlined functions.

A few functions, each calling the next twice, fill any memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from toolchain.errors import InputError
from toolchain.models import protos

_MAX_NODES = 200_000  # exporters write some ten thousand, for the largest networks that protobuf can hold
_MAX_BYTES = (1 << 31) - 1  # protobuf's limit for one message
_MAX_DEPTH = 100
_CAP = 1 << 62  # sums stop here: each function may double the size, and integers of Python would grow without limit
_HINT = "export the model again without functions of its own"

_Name = tuple[str, str, str]


@dataclass(frozen=True)
class _Size:
    nodes: int = 0
    bytes: int = 0

    def __add__(self, other: _Size) -> _Size:
        return _Size(min(self.nodes + other.nodes, _CAP), min(self.bytes + other.bytes, _CAP))

    @property
    def is_too_large(self) -> bool:
        return self.nodes > _MAX_NODES or self.bytes > _MAX_BYTES


def external_bytes(proto: onnx.ModelProto, folder: Path) -> int:
    """Return the bytes that a model's tensors take from other files; a ValueError if a location is invalid."""
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    nodes = list(protos.walk_nodes(nodes))
    graphs = [proto.graph, *(body for node in nodes for body in protos.bodies(node))]
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    tensors += [
        tensor for graph in graphs for sparse in graph.sparse_initializer for tensor in (sparse.values, sparse.indices)
    ]
    tensors += [
        tensor for node in nodes for attribute in node.attribute for tensor in (attribute.t, *attribute.tensors)
    ]
    total = 0
    for tensor in filter(uses_external_data, tensors):
        info = ExternalDataInfo(tensor)
        if "\0" in info.location:  # the reader would end the name there, and open another file
            raise ValueError(f"the location of the weights {tensor.name} has a NUL byte: {info.location!r}")
        path = folder / info.location
        if info.length is not None:
            total += int(info.length)
        elif path.is_file():
            total += max(path.stat().st_size - int(info.offset or 0), 0)
    return total


def check_inlined(proto: onnx.ModelProto) -> None:
    """Refuse a model that would be too large with inlined functions, or whose functions call themselves."""
    if not proto.functions:
        return
    total = _FunctionSizes(proto).of_nodes(proto.graph.node, ())
    if total.is_too_large:
        raise _too_large("its graph", total)


class _FunctionSizes:
    """The size of each function of a model with all that it calls."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._functions = {
            (function.domain, function.name, function.overload): function for function in proto.functions
        }
        self._sizes: dict[_Name, _Size] = {}

    def of_nodes(self, nodes: Iterable[onnx.NodeProto], path: tuple[_Name, ...]) -> _Size:
        """Return the size of nodes; `path` names the functions that they are in, the outermost first."""
        total = _Size()
        for node in protos.walk_nodes(nodes):
            name = (node.domain, node.op_type, node.overload)
            if name in self._functions:
                total += self._of_function(name, path)
                continue
            # The nodes of subgraphs are counted one by one; their weights belong to this node.
            inner: int = sum(nested.ByteSize() for graph in protos.bodies(node) for nested in graph.node)
            total += _Size(1, max(int(node.ByteSize()) - inner, 0))
        return total

    def _of_function(self, name: _Name, path: tuple[_Name, ...]) -> _Size:
        if name in self._sizes:
            return self._sizes[name]
        if name in path:
            raise InputError(f"function {_text(name)} of the model calls itself", hint=_HINT)
        if len(path) >= _MAX_DEPTH:
            raise InputError(f"functions of the model nest more than {_MAX_DEPTH} deep, at {_text(name)}", hint=_HINT)
        size = self.of_nodes(self._functions[name].node, (*path, name))
        if size.is_too_large:
            raise _too_large(f"function {_text(name)}", size)
        self._sizes[name] = size
        return size


def _too_large(subject: str, size: _Size) -> InputError:
    return InputError(
        f"the model is too large once its functions are inlined: {subject} would have {_amount(size.nodes)} operators "
        f"in {_amount(size.bytes)} bytes",
        details=f"at most {_MAX_NODES} operators in {_MAX_BYTES} bytes are supported",
        hint=_HINT,
    )


def _amount(count: int) -> str:
    return f"more than {_CAP}" if count >= _CAP else str(count)


def _text(name: _Name) -> str:
    return ".".join(filter(None, name))
