"""Writes the dataflow blocks of a function anew, some of whose variables have a twin whose channels are last."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax

from toolchain.backends.graph.kernels import Meaning, meaning
from toolchain.backends.graph.values import name_of, shape_of
from toolchain.models import origins

# --- axes ------------------------------------------------------------------------------------------------------------

# Where the dimensions of an image are with its channels second, as ONNX has them, and last.

RANKS = {3: "W", 4: "HW", 5: "DHW"}
"""By rank of an image, its dimensions besides batch and channels."""

OP = relax.op


def order(rank: int, spatial: int | None = None) -> list[int]:
    """Return which dimension of NCHW each one of NHWC is.

    Args:
        rank: How many dimensions there are.
        spatial: How many of them are spatial: the last ones. All but two by default.
    """
    first = 2 if spatial is None else rank - spatial
    return [0, *range(first, rank), *range(1, first)]


def transposed_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with its second number last."""
    return tuple(shape[axis] for axis in order(len(shape)))


def is_flat(shape: Sequence[int]) -> bool:
    """Whether the elements of an image are in the same order in both layouts."""
    return shape[1] == 1 or math.prod(shape[2:]) == 1


def transposed(expression: Any, shape: Sequence[int]) -> Any:
    """Return an image with its channels last.

    Args:
        expression: The image, NCHW.
        shape: Its sizes.
    """
    if is_flat(shape):
        return OP.reshape(expression, list(transposed_shape(shape)))
    return OP.permute_dims(expression, order(len(shape)))


def transposed_back(expression: Any, shape: Sequence[int]) -> Any:
    """Return an image with its channels second.

    Args:
        expression: The image, NHWC.
        shape: Its sizes as NCHW.
    """
    if is_flat(shape):
        return OP.reshape(expression, list(shape))
    rank = len(shape)
    return OP.permute_dims(expression, [0, rank - 1, *range(1, rank - 1)])


def constant(array: Any, like: Any) -> Any:
    """Return an array as a constant of the element type of another expression."""
    return relax.const(np.ascontiguousarray(array), str(like.ty.dtype))


def numbers(values: Any) -> list[int]:
    """Return an attribute that is a list of whole numbers."""
    return [int(value) for value in values]


# --- the writer ------------------------------------------------------------------------------------------------------

_PREFIX = "relax."
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")


@dataclass(frozen=True)
class Replacement:
    """An expression in place of another, and whether its channels are last."""

    value: Any
    last: bool = True


@dataclass(frozen=True)
class SplitChannels:
    """An image whose channels are parted into several dimensions, which are last.

    Attributes:
        value: The variable: batch, places, parts of the channels.
        spatial: How many of its dimensions are places.
        original: The variable before its channels were parted, if all that it has since become are views of it.
    """

    value: Any
    spatial: int
    original: Any = None


@dataclass
class BlockState:
    """What is known while a block is written.

    Attributes:
        pending: The variables that the block has to write; any other one is there already, in the layout of the model.
        bindings: What has been written.
        bound: The variables of those bindings.
        last: By variable, the one that holds the same with its channels last.
        same: By variable, another one with the same value.
        stretched: By variable, the one that it is a view of, with one more dimension before its channels.
        squared: By variable, what it is the square of.
        pooled: By variable, the same without that dimension and with its channels last.
        split: By variable, the same with its places before what its channels are parted into.
        stacked: By variable, those that it is a stack of.
        reduced: By variable, a call that makes the same, but without the dimensions that were reduced to 1.
    """

    pending: frozenset[Any] = frozenset()
    bindings: list[Any] = field(default_factory=list)
    bound: set[Any] = field(default_factory=set)
    last: dict[Any, Any] = field(default_factory=dict)
    same: dict[Any, Any] = field(default_factory=dict)
    stretched: dict[Any, Any] = field(default_factory=dict)
    squared: dict[Any, Any] = field(default_factory=dict)
    pooled: dict[Any, Any] = field(default_factory=dict)
    reduced: dict[Any, Any] = field(default_factory=dict)
    split: dict[Any, SplitChannels] = field(default_factory=dict)
    stacked: dict[Any, list[Any]] = field(default_factory=dict)


class Writer:
    """Writes the dataflow blocks of a function anew.

    Variables keep their values and their layout; beside them, some have a twin whose channels are last. A variable that
    has one is only computed if something reads it as it is.
    """

    def __init__(self, module: tvm.IRModule, rules: Mapping[str, Rule], *, half: bool, tiled: bool = False) -> None:
        self.half, self.tiled = half, tiled
        self._builder = relax.BlockBuilder(module)
        self._functions = dict(module.functions_items())
        self._state = BlockState()
        self._rules = rules

    @property
    def module(self) -> tvm.IRModule:
        """The module with the kernels that had to be added."""
        return self._builder.get()

    def block(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        self._state = BlockState(frozenset(binding.var for binding in block.bindings))
        for binding in block.bindings:
            self._binding(binding)
        for binding in block.bindings:
            if not isinstance(binding.var, relax.DataflowVar):
                self.plain(binding.var)
        return relax.DataflowBlock(self._state.bindings)

    def _binding(self, binding: Any) -> None:
        variable, replacement = binding.var, None
        call = binding.value
        same = None if isinstance(binding, relax.MatchCast) else self._same(variable, call)
        if same is not None:
            self._state.same[variable] = same
            if self.twin(same) is not None:
                self._state.last[variable] = self.twin(same)
            return
        if isinstance(call, relax.Call) and not isinstance(binding, relax.MatchCast):
            replacement = self._ruled(variable, call)
        if replacement is None:
            self._kept(binding)
        elif replacement.last:
            self._state.last[variable] = self.twin_of(variable, replacement.value)
        else:
            self._bind(variable, replacement.value)

    def _ruled(self, variable: Any, call: Any) -> Replacement | None:
        name = name_of(call)
        operation = meaning(call, self._functions.get(call.args[0])) if name == "call_tir" else None
        if operation is not None and operation.name in {*BINARY, "pad"}:
            call = _operator(operation)
            name = operation.name if operation.name in BINARY else "nn.pad"
        # Without a rule, or if that declines, the operation stays in the model's layout.
        rule = self._rules.get(name)
        replacement = rule(self, variable, call) if rule is not None and shape_of(variable.ty) is not None else None
        if replacement is None and operation is not None:
            for free in relax.analysis.free_vars(call):
                self.plain(free)
            return Replacement(call, last=False)
        return replacement

    def _same(self, variable: Any, value: Any) -> Any:
        """Return the variable that an expression only hands on."""
        if isinstance(value, relax.Var):
            return value
        if isinstance(value, relax.TupleGetItem) and value.index == 0:
            return self._state.same.get(value.tuple_value)
        if not isinstance(value, relax.Call) or not value.args or not isinstance(value.args[0], relax.Var):
            return None
        source = value.args[0]
        if name_of(value) == "broadcast_to":
            return source if shape_of(source.ty) and shape_of(source.ty) == shape_of(variable.ty) else None
        return None

    def _kept(self, binding: Any) -> None:
        """Write a binding as it is."""
        if isinstance(binding.value, relax.Call) and name_of(binding.value) == "nn.dropout":
            # The first field of the result is the input, and networks do not read the second.
            self._state.same[binding.var] = binding.value.args[0]
        for variable in relax.analysis.free_vars(binding.value):
            self.plain(variable)
        self._state.bindings.append(binding)
        self._state.bound.add(binding.var)

    # What rules ask for

    def twin_of(self, variable: Any, value: Any) -> Any:
        """Write a new variable that is like another one, but with its channels last."""
        return self.like(variable, transposed_shape(shape_of(variable.ty) or ()), value)

    def like(self, variable: Any, shape: Sequence[int], value: Any, *, is_step: bool = False) -> Any:
        """Write a new variable with the name and the type of another one; it may be a step on the way to that."""
        kind, span = relax.TensorType(list(shape), str(variable.ty.dtype)), variable.span
        return self._bind(relax.DataflowVar(str(variable.name), kind, origins.step(span) if is_step else span), value)

    def _bind(self, variable: Any, value: Any) -> Any:
        self._state.bindings.append(relax.VarBinding(variable, value))
        self._state.bound.add(variable)
        return variable

    def plain(self, variable: Any) -> Any:
        """Return a variable in the layout of the model, after writing what makes it."""
        if variable in self._state.bound or variable not in self._state.pending:
            return variable
        if variable in self._state.same and not isinstance(variable.ty, relax.TupleType):
            return self._bind(variable, self.plain(self._state.same[variable]))
        if variable in self._state.last:
            return self._bind(variable, transposed_back(self._state.last[variable], shape_of(variable.ty) or ()))
        return variable

    def twin(self, expression: Any) -> Any:
        """Return the variable that holds the same with its channels last; None if there is none yet."""
        return self._state.last.get(expression) if isinstance(expression, relax.Var) else None

    def last(self, expression: Any) -> Any:
        """Return a tensor of three to five dimensions with its channels last."""
        if isinstance(expression, tvm.ir.GenericConst):
            array = expression.value.numpy()
            return constant(array.transpose(order(array.ndim)), expression)
        twin = self.twin(expression)
        if twin is None:
            shape = shape_of(expression.ty) or ()
            twin = self.twin_of(expression, transposed(self.plain(expression), shape))
            self._state.last[expression] = twin
        return twin

    def function(self, name: Any) -> Any:
        """Return the function of the module that has a name; None if it has none."""
        return self._functions.get(name)

    @property
    def state(self) -> BlockState:
        """What is known of the block that is being written."""
        return self._state

    @property
    def builder(self) -> relax.BlockBuilder:
        """What adds kernels to the module."""
        return self._builder


def _operator(operation: Meaning) -> Any:
    """Return the operator of Relax in place of a kernel of the importer: other passes know what it does."""
    if operation.name != "pad":
        return relax.Call(tvm.ir.Op.get(_PREFIX + operation.name), list(operation.arguments))
    (data,), rank = operation.arguments, len(operation.values) // 2
    widths = [operation.values[axis + side] for axis in range(rank) for side in (0, rank)]
    return OP.nn.pad(data, widths, "constant", 0.0)


Rule = Callable[[Writer, Any, Any], Replacement | None]
"""Writes the binding of a variable to a call: what takes its place, or None for what stays as it is."""
