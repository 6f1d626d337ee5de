"""ONNX operators that TVM's importer lacks or computes wrongly: converters of our own, in its registry.

A converter is a function from a `Node` to its result as a Relax expression, or to a list of results. It is
registered by the names of its operators; an operator of another domain than the standard's is named `DOMAIN.NAME`. The
folders go by subject, and all modules in them are loaded. A comment above a converter that replaces TVM's names the
fault of TVM's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, helper
from tvm import relax

from toolchain.models.converters.node import Node

__all__ = ["UPSTREAM", "Converter", "Node", "as_operator", "blocks_ended", "converter", "names", "registered"]

Converter = Callable[[Node], Any]

_OURS: dict[str, Converter] = {}
_FRONTEND = "tvm.relax.frontend.onnx.onnx_frontend"
UPSTREAM = "tvm."
"""Prefix of an operator's name that makes `as_operator` use TVM's converter where ours has taken its place."""
_HANDLED_BY_THE_IMPORTER = frozenset({"Constant", "If"})


def converter(*operators: str) -> Callable[[Converter], Converter]:
    """Register a function as the converter of these operators, such as `Gelu` or `com.microsoft.Gelu`."""

    def register(function: Converter) -> Converter:
        _OURS.update(dict.fromkeys(operators, function))
        return function

    return register


def names() -> frozenset[str]:
    """Return the names of all operators that can be imported, TVM's own among them."""
    _load()
    frontend: Any = importlib.import_module(_FRONTEND)
    return frozenset({*_OURS, *frontend._get_convert_map(), *_HANDLED_BY_THE_IMPORTER})  # noqa: SLF001


@contextlib.contextmanager
def registered() -> Iterator[ImportedValues]:
    _load()
    frontend: Any = importlib.import_module(_FRONTEND)
    # Private upstream, but it is the only registry that its importer reads.
    get_upstream_map = frontend._get_convert_map  # noqa: SLF001
    upstream = get_upstream_map()
    replaced = {f"{UPSTREAM}{name}": upstream[name] for name in _OURS if name in upstream}
    adapted = upstream | replaced | {name: _Adaptor(name, function) for name, function in _OURS.items()}
    imported = ImportedValues()
    watched = {name: _Watched(adaptor, imported) for name, adaptor in adapted.items()}
    frontend._get_convert_map = lambda: watched  # noqa: SLF001
    try:
        yield imported
    finally:
        frontend._get_convert_map = get_upstream_map  # noqa: SLF001


@contextlib.contextmanager
def blocks_ended() -> Iterator[None]:
    """End the blocks of a function's builder that an error leaves open."""
    scope: Any = importlib.import_module("tvm.relax.block_builder").FunctionScope
    upstream = scope.__exit__

    # TVM leaves them open after an error, and warns of them on stderr when the builder is deleted.
    def exit_scope(self: Any, kind: Any, fault: Any, trace: Any) -> Any:
        if kind is not None and not self._is_emit_func_output_called:
            self._bb._end_block()  # noqa: SLF001 - as above
            self._bb.end_scope()
        return upstream(self, kind, fault, trace)

    scope.__exit__ = exit_scope
    try:
        yield
    finally:
        scope.__exit__ = upstream


def as_operator(
    node: Node,
    operator: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any],
    *,
    opset: int = 0,
    outputs: int = 1,
) -> Any:
    """Return the result of another operator's converter, ours or TVM's, for some inputs.

    The other operator is one of the version `opset` of the standard, by default the node's. Inputs that are left out
    are None; `outputs` is the number of results that are used.
    """
    frontend: Any = importlib.import_module(_FRONTEND)
    raw = {name: value.encode() if isinstance(value, str) else value for name, value in attributes.items()}
    raw["tvm_custom"] = {"name": node.name, "num_outputs": outputs}
    convert = frontend._get_convert_map()[operator].get_converter(opset or node.opset)  # noqa: SLF001
    result = convert(node.builder, frontend.onnx_input(inputs), raw, [{}, {}])
    if isinstance(result, relax.Tuple):
        fields = [node.emit(field) for field in result.fields[:outputs]]
        return fields[0] if outputs == 1 else relax.Tuple(fields)
    return node.emit(result)


@functools.cache
def _load() -> None:
    # Importing a module registers its converters.
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)


@dataclass
class ImportedValues:
    """The Relax expressions that TVM's importer has for the values of a graph, by their names in the file."""

    values: Mapping[str, Any] = field(default_factory=dict)


# Converters are the only ones that get the importer's values, so each notes them.
@dataclass(frozen=True)
class _Watched:
    adaptor: Any
    imported: ImportedValues

    def get_converter(self, opset: int) -> Callable[..., Any]:
        convert = self.adaptor.get_converter(opset)

        def call(builder: Any, inputs: Any, attributes: dict[str, Any], parameters: Any) -> Any:
            if parameters[0]:  # empty where one converter calls another
                self.imported.values = parameters[0]
            return convert(builder, inputs, attributes, parameters)

        return call


# The form that TVM's importer expects in its registry.
@dataclass(frozen=True)
class _Adaptor:
    operator: str
    convert: Converter

    def get_converter(self, opset: int) -> Callable[..., Any]:
        def call(builder: Any, inputs: Any, attributes: dict[str, Any], _parameters: Any) -> Any:
            custom = attributes.pop("tvm_custom")
            values = {name: _python_value(value) for name, value in attributes.items()}
            node = Node(self.operator, custom["name"], opset, builder, tuple(inputs), values, custom["num_outputs"])
            result = self.convert(node)
            if isinstance(result, (list, tuple)):
                return relax.Tuple(list(result)) if len(result) > 1 else result[0]
            return result

        return call


def _python_value(value: Any) -> Any:
    # TVM's importer passes attributes on as protobuf has them, where text is bytes.
    if isinstance(value, AttributeProto):
        value = helper.get_attribute_value(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, tuple):
        return [_python_value(item) for item in value]
    return value
