"""ONNX operators that TVM's importer lacks or computes wrongly: converters of our own, in its registry.

A converter is a function from a `Node` to its result as a Relax expression, or to a list of results. It is
registered by the names of its operators; one of another domain than the standard's is named `DOMAIN.NAME`. The modules
of this room go by subject. Where one replaces a converter of TVM's, its docstring says what that does wrong.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, helper
from tvm import relax

from toolchain.models.converters.node import Node

__all__ = ["UPSTREAM", "Converter", "Node", "as_operator", "blocks_ended", "converter", "names", "registered"]

Converter = Callable[[Node], Any]

_SUBJECTS: tuple[str, ...] = (
    "activations",
    "arithmetic",
    "arrangement",
    "attention",
    "casts",
    "convolution",
    "detection",
    "determinant",
    "einsum",
    "extremes",
    "features",
    "fused",
    "indexing",
    "linear",
    "normalizations",
    "integers",
    "pooling",
    "qlinear",
    "quantized",
    "recurrent",
    "reductions",
    "regions",
    "resize",
    "rotary",
    "sampling",
    "selection",
    "sequences",
    "signal",
    "trees",
    "vector_machines",
)
"""Modules of this room, each of which registers its converters."""

_OURS: dict[str, Converter] = {}
_FRONTEND = "tvm.relax.frontend.onnx.onnx_frontend"
UPSTREAM = "tvm."
"""Prefix of an operator's name that makes `as_operator` use TVM's converter where ours has taken its place."""
_HANDLED_BY_THE_IMPORTER = frozenset({"Constant", "If"})


def converter(*operators: str) -> Callable[[Converter], Converter]:
    """Register a function as the converter of operators.

    Args:
        operators: Their names; `com.microsoft.Gelu` for one of another domain.
    """

    def register(function: Converter) -> Converter:
        _OURS.update(dict.fromkeys(operators, function))
        return function

    return register


def names() -> frozenset[str]:
    """Return the names of all operators that can be imported."""
    _load()
    frontend: Any = importlib.import_module(_FRONTEND)
    return frozenset({*_OURS, *frontend._get_convert_map(), *_HANDLED_BY_THE_IMPORTER})  # noqa: SLF001


@contextlib.contextmanager
def registered() -> Iterator[Imported]:
    """Have TVM's importer use the converters of this room; yields what it makes of a graph's values."""
    _load()
    frontend: Any = importlib.import_module(_FRONTEND)
    # Private upstream, but it is the one registry that its importer asks.
    theirs = frontend._get_convert_map  # noqa: SLF001
    upstream = theirs()
    replaced = {f"{UPSTREAM}{name}": upstream[name] for name in _OURS if name in upstream}
    adapted = upstream | replaced | {name: _Adaptor(name, function) for name, function in _OURS.items()}
    imported = Imported()
    known = {name: _Watched(adaptor, imported) for name, adaptor in adapted.items()}
    frontend._get_convert_map = lambda: known  # noqa: SLF001
    try:
        yield imported
    finally:
        frontend._get_convert_map = theirs  # noqa: SLF001


@contextlib.contextmanager
def blocks_ended() -> Iterator[None]:
    """End what a function's builder has begun where an error leaves it: TVM does not, and warns on stderr later."""
    scope: Any = importlib.import_module("tvm.relax.block_builder").FunctionScope
    upstream = scope.__exit__

    def ended(self: Any, kind: Any, fault: Any, trace: Any) -> Any:
        if kind is not None and not self._is_emit_func_output_called:
            self._bb._end_block()  # noqa: SLF001 - as above
            self._bb.end_scope()
        return upstream(self, kind, fault, trace)

    scope.__exit__ = ended
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
    """Return what another operator's converter, of ours or TVM's, makes of some inputs.

    Args:
        node: The node that is converted.
        operator: Name of the other operator.
        inputs: Its inputs; None for one that is left out.
        attributes: Its attributes.
        opset: Version of the standard's operators that it is written for; that of the model by default.
        outputs: How many of its outputs are named.
    """
    frontend: Any = importlib.import_module(_FRONTEND)
    raw = {name: value.encode() if isinstance(value, str) else value for name, value in attributes.items()}
    raw["tvm_custom"] = {"name": node.name, "num_outputs": outputs}
    convert = frontend._get_convert_map()[operator].get_converter(opset or node.opset)  # noqa: SLF001
    made = convert(node.builder, frontend.onnx_input(inputs), raw, [{}, {}])
    if isinstance(made, relax.Tuple):
        fields = [node.emit(field) for field in made.fields[:outputs]]
        return fields[0] if outputs == 1 else relax.Tuple(fields)
    return node.emit(made)


def _load() -> None:
    for subject in _SUBJECTS:
        importlib.import_module(f"{__name__}.{subject}")


@dataclass
class Imported:
    """What TVM's importer has made of a graph.

    Attributes:
        values: The Relax expression of each value of the graph, by name.
    """

    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Watched:
    """A converter of the registry; the importer hands its values to each one, and to nobody else."""

    adaptor: Any
    imported: Imported

    def get_converter(self, opset: int) -> Callable[..., Any]:
        convert = self.adaptor.get_converter(opset)

        def call(builder: Any, inputs: Any, attributes: dict[str, Any], parameters: Any) -> Any:
            if parameters[0]:  # empty where one converter calls another
                self.imported.values = parameters[0]
            return convert(builder, inputs, attributes, parameters)

        return call


@dataclass(frozen=True)
class _Adaptor:
    """What TVM's importer expects in its registry."""

    operator: str
    convert: Converter

    def get_converter(self, opset: int) -> Callable[..., Any]:
        def call(builder: Any, inputs: Any, attributes: dict[str, Any], _parameters: Any) -> Any:
            about = attributes.pop("tvm_custom")
            given = {name: _plain(value) for name, value in attributes.items()}
            node = Node(self.operator, about["name"], opset, builder, tuple(inputs), given, about["num_outputs"])
            result = self.convert(node)
            if isinstance(result, (list, tuple)):
                return relax.Tuple(list(result)) if len(result) > 1 else result[0]
            return result

        return call


def _plain(value: Any) -> Any:
    """TVM's importer hands attributes on as protobuf has them: text is bytes there."""
    if isinstance(value, AttributeProto):
        value = helper.get_attribute_value(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
