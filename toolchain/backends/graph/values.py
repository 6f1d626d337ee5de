"""A dataflow block of Relax as operations on values, without those that change nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from toolchain.backends.graph.kernels import meaning

_IMAGE_RANK = 4
_ROW_RANKS = (2, 3)
_PREFIX = "relax."


@dataclass(eq=False)
class Value:
    """A tensor.

    Attributes:
        variable: What Relax calls it; None for a constant.
        shape: Its sizes; None if they are not all known, or it is no tensor.
        dtype: Element type; empty if it is no tensor.
        constant: What Relax holds, if it is known ahead of time.
        maker: The operation it comes from; None if it comes from outside.
        readers: How often it is read, by operations and from outside.
        escapes: Whether it is read from outside.
    """

    variable: Any = None
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    constant: Any = None
    maker: Operation | None = None
    readers: int = 0
    escapes: bool = False

    @cached_property
    def array(self) -> NDArray[Any]:
        array: NDArray[Any] = self.constant.value.numpy()
        return array

    @property
    def is_image(self) -> bool:
        """Whether it is a float32 tensor of four dimensions, which is taken for NCHW."""
        return self.dtype == "float32" and self.shape is not None and len(self.shape) == _IMAGE_RANK

    @property
    def image(self) -> tuple[int, int, int, int]:
        """The shape of an image: batch, channels, height, width."""
        batch, channels, height, width = self.shape or ()
        return batch, channels, height, width

    @property
    def has_pixels(self) -> bool:
        """Whether it is NCHW, or rows of features, each of which is an image of one pixel; of any type."""
        return self.shape is not None and len(self.shape) in (_IMAGE_RANK, *_ROW_RANKS)

    @property
    def pixels(self) -> tuple[int, int, int, int]:
        """The shape as that of images: batch, channels, height, width."""
        if self.shape is not None and len(self.shape) == _IMAGE_RANK:
            return self.image
        *rows, features = self.shape or ()
        return math.prod(rows), features, 1, 1

    @property
    def channel_axis(self) -> int:
        """Axis of the channels: the second of an image, the last of rows."""
        rank = len(self.shape or ())
        return 1 if rank == _IMAGE_RANK else rank - 1

    @property
    def is_alone(self) -> bool:
        """Whether one operation alone needs it."""
        return self.readers == 1 and not self.escapes


@dataclass(eq=False)
class Operation:
    """An operation on values.

    Attributes:
        name: Relax's name without its prefix, or that of a pattern.
        inputs: The tensors that it reads, without shapes and other arguments.
        outputs: Its results.
        call: Relax's call; None for a pattern.
        values: Numbers of a pattern; what a convolution pads its data with at the top, left, bottom and right, besides
            its own padding.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    call: Any = None
    values: tuple[float, ...] = ()

    @property
    def out(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value

    @property
    def attributes(self) -> Any:
        return self.call.attrs


@dataclass(eq=False)
class Block:
    """A dataflow block.

    Attributes:
        operations: The operations, in order.
        values: The value of each variable; several variables may have the same.
        origins: The binding of each variable.
        escaping: The variables that are read from outside.
    """

    operations: list[Operation] = field(default_factory=list)
    values: dict[Any, Value] = field(default_factory=dict)
    origins: dict[Any, Any] = field(default_factory=dict)
    escaping: list[Any] = field(default_factory=list)

    def new_value(self, like: Value, shape: tuple[int, ...], dtype: str = "float32") -> Value:
        """Return a new value, with another shape or type than that of some value."""
        name, span = ("part", None) if like.variable is None else (like.variable.name, like.variable.span)
        variable = relax.DataflowVar(f"{name}_image", relax.TensorType(shape, dtype), span)
        self.values[variable] = Value(variable, shape, dtype)
        return self.values[variable]

    def remove_dead(self) -> None:
        """Count the readers of all values, and remove dead operations."""
        for value in self.values.values():
            value.readers, value.escapes = 0, False
        for operation in self.operations:
            for value in (*operation.inputs, *operation.outputs):
                value.readers, value.escapes = 0, False
        for variable in self.escaping:
            self.values[variable].readers += 1
            self.values[variable].escapes = True
        live = []
        # From the last operation on, so that what only dead code reads is dead, too.
        for operation in reversed(self.operations):
            if any(value.readers for value in operation.outputs):
                live.append(operation)
                for value in operation.inputs:
                    value.readers += 1
        self.operations = live[::-1]


def pair(numbers: Any) -> tuple[int, int]:
    """Return an attribute that is a pair: down and right."""
    first, second = (int(number) for number in numbers)
    return first, second


def four(numbers: Any) -> tuple[int, int, int, int]:
    """Return an attribute that has a number for each edge: top, left, bottom and right."""
    top, left, bottom, right = (int(number) for number in numbers)
    return top, left, bottom, right


def shape_of(kind: Any) -> tuple[int, ...] | None:
    """Return the sizes of a tensor type; None if they are not all known."""
    if not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
        return None
    sizes = list(kind.shape.values)
    return tuple(int(size) for size in sizes) if all(isinstance(size, tirx.IntImm) for size in sizes) else None


def read(block: relax.DataflowBlock, module: tvm.IRModule) -> Block:
    """Read a dataflow block of a function of a module."""
    reader = _BlockReader(module)
    for binding in block.bindings:
        reader.binding(binding)
    reader.block.remove_dead()
    return reader.block


class _BlockReader:
    """Reads one block."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.block = Block()
        self._functions: Mapping[Any, Any] = dict(module.functions_items())
        self._constants: dict[Any, Value] = {}
        self._tuples: dict[Any, tuple[Value | None, ...]] = {}  # what is known of the fields of a variable

    def binding(self, binding: Any) -> None:
        variable, value = binding.var, binding.value
        self.block.origins[variable] = binding
        if not isinstance(variable, relax.DataflowVar):
            self.block.escaping.append(variable)
        same = None if isinstance(binding, relax.MatchCast) else self._alias(variable, value)
        if same is not None:
            self.block.values[variable] = same
            return
        self.block.values[variable] = out = _value_of_variable(variable)
        operation = self._operation(value, out)
        operation.outputs = self._outputs(operation, variable)
        for output in operation.outputs:
            output.maker = operation
        self.block.operations.append(operation)

    def _alias(self, variable: Any, value: Any) -> Value | None:
        """Return the value of an expression that computes nothing; None for other expressions."""
        if isinstance(value, relax.Var):
            return self._value(value)
        if isinstance(value, relax.TupleGetItem):
            fields = self._tuples.get(value.tuple_value, ())
            field = fields[value.index] if fields else None
            if field is not None and field.variable is None:
                field.variable = variable
            return field
        # A reshape to the same shape only hands its tensor on.
        if isinstance(value, relax.Call) and name_of(value) in {"reshape", "broadcast_to"}:
            source = value.args[0]
            if shape_of(source.ty) is not None and shape_of(source.ty) == shape_of(variable.ty):
                return self._value(source)
        return None

    def _operation(self, value: Any, out: Value) -> Operation:
        if isinstance(value, relax.Call):
            name = name_of(value)
            recognized = meaning(value, self._functions.get(value.args[0])) if name == "call_tir" else None
            if recognized is not None:
                return Operation(
                    recognized.name, tuple(map(self._value, recognized.arguments)), (out,), value, recognized.values
                )
            return Operation(name, self._inputs(value, value.args), (out,), value)
        return Operation("", self._inputs(value, []), (out,))

    def _inputs(self, value: Any, arguments: Iterable[Any]) -> tuple[Value, ...]:
        """Return what an expression reads: its arguments first; all fields of a tuple, since any may be read."""
        tensors = [variable for argument in arguments for variable in _tensors(argument)]
        others = [variable for variable in relax.analysis.free_vars(value) if variable not in set(tensors)]
        fields = [variable for other in others for variable in self._tuples.get(other, ()) if variable is not None]
        return (*map(self._value, tensors), *fields, *map(self._value, others))

    def _outputs(self, operation: Operation, variable: Any) -> tuple[Value, ...]:
        if operation.name == "nn.dropout":
            self._tuples[variable] = (operation.inputs[0], None)
        if operation.name == "split":
            fields = tuple(Value(None, shape_of(kind), str(kind.dtype), maker=operation) for kind in variable.ty.fields)
            self._tuples[variable] = fields
            return (*fields, *operation.outputs)
        return operation.outputs

    def _value(self, expression: Any) -> Value:
        if isinstance(expression, relax.Var):
            if expression not in self.block.values:
                self.block.values[expression] = _value_of_variable(expression)
            return self.block.values[expression]
        if expression not in self._constants:
            kind = expression.ty
            self._constants[expression] = Value(None, shape_of(kind), str(kind.dtype), expression)
        return self._constants[expression]


def _value_of_variable(variable: Any) -> Value:
    kind = variable.ty
    return Value(variable, shape_of(kind), str(kind.dtype) if isinstance(kind, relax.TensorType) else "")


def name_of(expression: Any) -> str:
    """Return the name of the operator that an expression calls, without Relax's prefix; empty if it calls none."""
    is_call = isinstance(expression, relax.Call) and isinstance(expression.op, tvm.ir.Op)
    return str(expression.op.name).removeprefix(_PREFIX) if is_call else ""


def _tensors(argument: Any) -> list[Any]:
    """Return the tensors among an argument: itself, or the fields of a tuple."""
    fields = list(argument.fields) if isinstance(argument, relax.Tuple) else [argument]
    return [field for field in fields if isinstance(field.ty, relax.TensorType)]
