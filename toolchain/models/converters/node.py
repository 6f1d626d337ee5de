"""One ONNX node as a converter sees it: its inputs as Relax expressions, its attributes as Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from toolchain.errors import InputError


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

    def compute(self, function: Callable[..., Any], *arguments: Any, name: str) -> Any:
        """Bind the result of a function that builds a tensor expression from its arguments."""
        return self.builder.emit_te(function, *arguments, primfunc_name_hint=name)

    def refusal(self, reason: str, hint: str = "") -> InputError:
        return InputError(
            f"{self.operator} node {self.name!r} cannot be compiled",
            details=reason,
            hint=hint or "export the model without this node; list all of them with `toolchain inspect model`",
        )
