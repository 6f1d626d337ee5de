"""How large a model is once its functions are inlined: a few of them, each calling the next twice, fill any memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx

from toolchain.errors import InputError

_MOST_NODES = 200_000
"""Exporters write some ten thousand, for the largest networks that protobuf can hold."""
_MOST_BYTES = (1 << 31) - 1  # of what protobuf holds in one piece
_DEEPEST = 100
_CAP = 1 << 62  # more is the same: each function may double what came before
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
        return self.nodes > _MOST_NODES or self.bytes > _MOST_BYTES


def check(proto: onnx.ModelProto) -> None:
    """Refuse a model whose functions, inlined, would be larger than any that can be built.

    Args:
        proto: The model; nothing of it is inlined.

    Raises:
        InputError: It would, or a function calls itself; the error names the function.
    """
    if not proto.functions:
        return
    total = _Functions(proto).of_nodes(proto.graph.node, ())
    if total.is_too_large:
        raise _too_large("its graph", total)


class _Functions:
    """The functions of a model, and the size of each with all that it calls."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._functions = {(one.domain, one.name, one.overload): one for one in proto.functions}
        self._sizes: dict[_Name, _Size] = {}

    def of_nodes(self, nodes: Iterable[onnx.NodeProto], path: tuple[_Name, ...]) -> _Size:
        """Return the size of nodes; `path` names the functions that they are in, the outermost first."""
        total = _Size()
        for node in _with_subgraphs(nodes):
            name = (node.domain, node.op_type, node.overload)
            total += self._of_function(name, path) if name in self._functions else _Size(1, _own_bytes(node))
        return total

    def _of_function(self, name: _Name, path: tuple[_Name, ...]) -> _Size:
        if name in self._sizes:
            return self._sizes[name]
        if name in path:
            raise InputError(f"function {_text(name)} of the model calls itself", hint=_HINT)
        if len(path) >= _DEEPEST:
            raise InputError(f"functions of the model nest more than {_DEEPEST} deep, at {_text(name)}", hint=_HINT)
        size = self.of_nodes(self._functions[name].node, (*path, name))
        if size.is_too_large:
            raise _too_large(f"function {_text(name)}", size)
        self._sizes[name] = size
        return size


def _too_large(what: str, size: _Size) -> InputError:
    return InputError(
        f"the model is too large once its functions are inlined: {what} would have {_amount(size.nodes)} operators "
        f"in {_amount(size.bytes)} bytes",
        details=f"at most {_MOST_NODES} operators in {_MOST_BYTES} bytes are supported",
        hint=_HINT,
    )


def _amount(count: int) -> str:
    return f"more than {_CAP}" if count >= _CAP else str(count)


def _text(name: _Name) -> str:
    return ".".join(filter(None, name))


def _with_subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _with_subgraphs(graph.node)


def _own_bytes(node: onnx.NodeProto) -> int:
    """Return the bytes of a node without its subgraphs' nodes, which are counted one by one; their weights are its."""
    inner: int = sum(
        nested.ByteSize()
        for attribute in node.attribute
        for graph in (attribute.g, *attribute.graphs)
        for nested in graph.node
    )
    return max(int(node.ByteSize()) - inner, 0)
