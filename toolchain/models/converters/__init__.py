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

import numpy as np
import tvm
from numpy.typing import NDArray
from onnx import AttributeProto, helper
from tvm import relax

from toolchain.errors import InputError

__all__ = ["UPSTREAM", "Converter", "Node", "as_operator", "blocks_ended", "converter", "names", "registered"]


@dataclass(frozen=True)
class Node:
    """A node to convert.

    Attributes:
        operator: `DOMAIN.NAME` for an operator of another domain than the standard's.
        opset: Version of the standard's operators that the model was written for.
        inputs: Relax expressions; None where an optional input is left out.
        attributes: Values of `onnx.helper.get_attribute_value` by name; text is `str`.
        outputs: How many outputs the node has, those without a name included.
    """

    operator: str
    name: str
    opset: int
    builder: relax.BlockBuilder
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any]
    outputs: int

    def input(self, index: int) -> Any:
        return self.inputs[index] if index < len(self.inputs) else None

    def shape(self, index: int) -> tuple[int, ...]:
        return self.shape_of(self.inputs[index])

    def shape_of(self, value: Any) -> tuple[int, ...]:
        """Return the sizes of an expression; an InputError if they depend on the data."""
        try:
            return tuple(int(size) for size in value.ty.shape)
        except (TypeError, AttributeError) as fault:
            raise self.refusal("the shape of an input depends on the data") from fault

    def dtype(self, index: int) -> str:
        return str(self.inputs[index].ty.dtype)

    def constant(self, index: int) -> NDArray[Any] | None:
        """Return the value of a constant input; None if it is left out, an InputError if the network computes it."""
        value = self.input(index)
        if value is None:
            return None
        if not self.is_constant(index):
            raise self.refusal(f"input {index} is computed by the network, but must be known at compile time")
        return np.asarray(value.value.numpy())

    def is_constant(self, index: int) -> bool:
        return self.is_known(self.input(index))

    @staticmethod
    def is_known(value: Any) -> bool:
        return isinstance(value, tvm.ir.GenericConst)

    def integers(self, index: int, attribute: str) -> list[int] | None:
        """Return a list that is an attribute of old operators and an input of newer ones; None if it is left out."""
        if attribute in self.attributes:
            numbers = self.attributes[attribute]
            return [int(item) for item in numbers] if isinstance(numbers, Sequence) else [int(numbers)]
        value = self.constant(index)
        return None if value is None else [int(item) for item in value.reshape(-1)]

    def emit(self, expression: Any) -> Any:
        """Bind an expression to a variable, so that it is computed once."""
        return self.builder.emit(expression)

    def compute(self, function: Callable[..., Any], *arguments: Any, name: str, **attributes: str) -> Any:
        """Bind the result of a function that builds a tensor expression from its arguments.

        Its kernel gets the attributes, if there are any.
        """
        more = {"primfunc_attrs": attributes} if attributes else {}
        return self.builder.emit_te(function, *arguments, primfunc_name_hint=name, **more)

    def refusal(self, reason: str, hint: str = "") -> InputError:
        return InputError(
            f"{self.operator} node {self.name!r} cannot be compiled",
            details=reason,
            hint=hint or "export the model without this node; list all of them with `toolchain inspect model`",
        )


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
