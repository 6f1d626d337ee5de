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
    """What is to be converted.

    Attributes:
        operator: Name of the operator; one of another domain than the standard's is `DOMAIN.NAME`.
        name: The node's name in the file.
        opset: Version of the standard's operators that the model was written for.
        builder: Takes what is emitted.
        inputs: The inputs; None where an optional one is left out.
        attributes: What `onnx.helper.get_attribute_value` gives, by name; text is `str`.
        outputs: How many outputs the node names, those without a name included.
    """

    operator: str
    name: str
    opset: int
    builder: relax.BlockBuilder
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any]
    outputs: int

    def input(self, index: int) -> Any:
        """Return an input, or None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the sizes of an input.

        Raises:
            InputError: They are not known before it runs.
        """
        return self.shape_of(self.inputs[index])

    def shape_of(self, value: Any) -> tuple[int, ...]:
        """Return the sizes of an expression; as `shape`."""
        try:
            return tuple(int(size) for size in value.ty.shape)
        except (TypeError, AttributeError) as fault:
            raise self.refused("the shape of an input depends on the data") from fault

    def dtype(self, index: int) -> str:
        """Return the element type of an input."""
        return str(self.inputs[index].ty.dtype)

    def constant(self, index: int) -> NDArray[Any] | None:
        """Return the value of an input that is known now; None if it is left out.

        Raises:
            InputError: It is computed by the network.
        """
        value = self.input(index)
        if value is None:
            return None
        if not self.is_constant(index):
            raise self.refused(f"input {index} is computed by the network, but must be known at compile time")
        return np.asarray(value.value.numpy())

    def is_constant(self, index: int) -> bool:
        """Whether an input is there and its value is known now."""
        return self.is_known(self.input(index))

    @staticmethod
    def is_known(value: Any) -> bool:
        """Whether an expression is a constant."""
        return isinstance(value, tvm.ir.GenericConst)

    def integers(self, index: int, attribute: str) -> list[int] | None:
        """Return a list that old operators have as an attribute and newer ones as an input; None if it is left out."""
        if attribute in self.attributes:
            given = self.attributes[attribute]
            return [int(item) for item in given] if isinstance(given, Sequence) else [int(given)]
        value = self.constant(index)
        return None if value is None else [int(item) for item in value.reshape(-1)]

    def emit(self, expression: Any) -> Any:
        """Bind an expression to a variable, so that it is computed once."""
        return self.builder.emit(expression)

    def compute(self, function: Callable[..., Any], *arguments: Any, name: str) -> Any:
        """Bind the result of a function that builds a tensor expression of its arguments."""
        return self.builder.emit_te(function, *arguments, primfunc_name_hint=name)

    def refused(self, reason: str, hint: str = "") -> InputError:
        """Return the error for a node that cannot be computed."""
        return InputError(
            f"{self.operator} node {self.name!r} cannot be compiled",
            details=reason,
            hint=hint or "export the model without this node; list all of them with `toolchain model inspect`",
        )
