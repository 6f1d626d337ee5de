"""Write a planned block as Relax: each layer one call of a kernel, which is a stand-in until it is known which."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.cpu.graph.blocked_ops import run_blocked
from toolchain.backends.cpu.graph.items import (
    BlockedOperation,
    Flat,
    Heads,
    Item,
    Join,
    Plain,
    Slice,
    assign_buffers,
    own_activation,
)
from toolchain.backends.cpu.graph.plans import BytePlan, ImagePlan, LayerPlan, RowPlan
from toolchain.backends.cpu.graph.stand_ins import StandIns
from toolchain.backends.cpu.kernels import in_bfloat16, is_covered, lacking, without_subnormals
from toolchain.backends.cpu.kernels.int8 import grids
from toolchain.backends.cpu.kernels.packed.weights import encode, rounded
from toolchain.backends.cpu.kernels.sparse.weights import count_vectors
from toolchain.backends.cpu.layers import BFLOAT16, FLOAT16, Activation, Conv, Dense, ImageLayer, Layer, Map, in_float16
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph.fold import contiguous
from toolchain.backends.graph.values import Block, Value
from toolchain.models.converters.quantized.packed import PackedWeights

_Layer = TypeVar("_Layer", bound=Layer)

_LARGE = 1 << 14  # weights that are worth rounding
_BYTE = 8  # bits
_BLOCK = 32  # inputs that share a scale of 4 bits; of 8 bits, one for each output is exact enough


class BlockWriter:
    """Writes one block.

    Operations that stay keep their bindings and variables. A variable whose value is blocked gets its binding, a change
    of layout, when an operation needs it on plain layout.
    """

    def __init__(
        self, block: Block, items: list[Item], machine: Machine, kernels: StandIns, without: frozenset[str]
    ) -> None:
        self._block, self._items, self._kernels = block, items, kernels
        self._machine, self._lanes, self._without = machine, machine.lanes, without | lacking(machine)
        self._homes = assign_buffers(items, machine.lanes)
        if machine.bfloat16:
            self._round_early()
        self._buffers: dict[Value, Any] = {}  # by the tensor that fills it, the variable of its latest state
        self._converted: dict[Value, Any] = {}  # blocked copies of plain tensors
        self._bound: set[Any] = set()
        self._bindings: list[Any] = []

    def run(self) -> relax.DataflowBlock:
        for item in self._items:
            self._write_item(item)
        for variable in self._block.escaping:
            self._plain(variable)
        return relax.DataflowBlock(self._bindings)

    def _write_item(self, item: Item) -> None:
        # Nothing is written for a slice, which is a view.
        if isinstance(item, ImagePlan):
            self._layer(item)
        elif isinstance(item, RowPlan):
            self._dense(item)
        elif isinstance(item, Join):
            (self._plain_join if item.plain else self._join)(item)
        elif isinstance(item, BlockedOperation):
            self._blocked_operation(item)
        elif isinstance(item, Flat):
            is_plain = self._is_plain(self._homes[item.source][1])
            source = self._buffer(item.source) if is_plain else self._plain(item.source.variable)
            self._bind(item.out.variable, relax.op.reshape(source, item.out.shape))
        elif isinstance(item, Heads):
            inputs = item.operation.inputs
            arguments = [self._plain(value.variable) if value.constant is None else value.constant for value in inputs]
            layer = self._in_bfloat16(item.operation.layer)
            self._bind(item.operation.out.variable, self._kernels.call(layer, arguments))
        elif isinstance(item, Plain):
            for value in item.operation.outputs:
                if value.variable in self._block.origins:
                    self._plain(value.variable)

    def _round_early(self) -> None:
        """Let tensors in blocks lie in bfloat16 where all layers that read or write them can."""
        items: dict[Value, list[Item]] = {}
        for item in self._items:
            for value in {*item.reads, *item.makes}:
                items.setdefault(value, []).append(item)
        groups: dict[Value, list[Value]] = {}
        for value, (root, _) in self._homes.items():
            groups.setdefault(root, []).append(value)
        for values in groups.values():
            if all(self._can_be_rounded(value, items.get(value, [])) for value in values):
                for value in values:
                    root, place = self._homes[value]
                    self._homes[value] = root, replace(place, dtype=BFLOAT16)

    def _can_be_rounded(self, value: Value, items: Sequence[Item]) -> bool:
        """Whether a tensor can lie in bfloat16, with all items that read or make it."""
        place = self._homes[value][1]
        # Rows of features are read without blocks, and what the network returns keeps its digits.
        if value.escapes or place.dtype != "float32" or place.height * place.width == 1:
            return False
        return all(self._takes_rounded(item, value, replace(place, dtype=BFLOAT16)) for item in items)

    def _takes_rounded(self, item: Item, value: Value, rounded: Activation) -> bool:
        if isinstance(item, (Join, Slice)):
            return True
        if not isinstance(item, ImagePlan) or isinstance(item, BytePlan):
            return False
        layer = self._with_vectors(item.layer(self._place), item)
        if isinstance(layer, Conv) and layer.vectors:
            return False
        if item.data is value:
            layer = replace(layer, data=rounded)
        if item.out is value:
            layer = replace(layer, out=rounded)
        rounding = replace(layer, bfloat16=True) if isinstance(layer, Conv) else layer
        return is_covered(layer, self._without) or is_covered(rounding, self._without)

    # Variables as Relax has them

    def _bind(self, variable: Any, expression: Any) -> Any:
        self._bindings.append(relax.VarBinding(variable, expression))
        self._bound.add(variable)
        return variable

    def _new(
        self, like: Any, suffix: str, shape: Sequence[int], expression: Any, dtype: str = "float32"
    ) -> relax.DataflowVar:
        """Bind a new variable for the value of another one; its span names the same node of the model."""
        kind = relax.TensorType(shape, dtype)
        return self._bind(relax.DataflowVar(f"{like.name}{suffix}", kind, like.span), expression)

    def _bind_as(self, value: Value, shape: tuple[int, ...], expression: Any) -> Any:
        """Bind the variable of a tensor to what has that tensor's elements in another shape."""
        if value.shape == shape:
            return self._bind(value.variable, expression)
        other = self._new(value.variable, "_shaped", shape, expression, value.dtype)
        return self._bind(value.variable, relax.op.reshape(other, value.shape))

    def _reshape(self, value: Value, shape: tuple[int, ...]) -> Any:
        source = self._plain(value.variable)
        if value.shape == shape:
            return source
        return self._new(value.variable, "_shaped", shape, relax.op.reshape(source, shape), value.dtype)

    def _plain(self, variable: Any) -> Any:
        """Return a variable of the block, after binding it and all that it needs."""
        if variable in self._bound or variable not in self._block.values:
            return variable
        value = self._block.values[variable]
        if value.variable is not None and not value.variable.same_as(variable):
            return self._bind(variable, self._plain(value.variable))
        if value in self._homes:
            activation, plain = self._homes[value][1], own_activation(value, 1)
            # A reshape costs nothing: TVM makes a view of it.
            if self._is_plain(activation):
                return self._bind(variable, relax.op.reshape(self._buffer(value), value.shape))
            return self._bind_as(value, plain.shape, self._kernels.call(Map(activation, plain), [self._buffer(value)]))
        if variable in self._block.origins:
            binding = self._block.origins[variable]
            for needed in relax.analysis.free_vars(binding.value):
                self._plain(needed)
            self._bindings.append(binding)
            self._bound.add(variable)
        return variable

    # Blocked tensors

    def _buffer(self, value: Value) -> Any:
        return self._buffers[self._homes[value][0]]

    def _blocked(self, value: Value) -> tuple[Activation, Any]:
        """Return where a tensor lies in blocks, and the variable of its buffer."""
        if value in self._homes:
            return self._homes[value][1], self._buffer(value)
        activation = own_activation(value, self._lanes)
        if value not in self._converted:
            source = self._plain(value.variable)
            call = self._kernels.call(Map(own_activation(value, 1), activation), [source])
            dtype = self._dtype(activation)
            self._converted[value] = self._new(value.variable, "_blocked", activation.shape, call, dtype)
        return activation, self._converted[value]

    def _write_buffer(self, layer: ImageLayer, arguments: Sequence[Any], value: Value) -> None:
        """Call a kernel that writes a tensor, or a part of it, where that has its home."""
        root = self._homes[value][0]
        call = self._kernels.call(layer, arguments, self._buffers.get(root))
        self._buffers[root] = self._new(value.variable, "", layer.out.shape, call, self._dtype(layer.out))

    def _layer(self, plan: ImagePlan) -> None:
        layer = self._in_bfloat16(self._with_vectors(plan.layer(self._place), plan))
        if isinstance(plan, BytePlan) and plan.is_copy and self._is_plain(layer.out):
            self._buffers[plan.out] = self._reshape(plan.data, layer.out.shape)
            return
        data = self._reshape(plan.data, layer.data.shape) if layer.data.lanes == 1 else self._blocked(plan.data)[1]
        arguments = [data, *_constants(plan, layer), *self._operands(plan, layer)]
        if layer.out.lanes == 1:
            self._bind_as(plan.out, layer.out.shape, self._kernels.call(layer, arguments))
        else:
            self._write_buffer(layer, arguments, plan.out)

    def _with_vectors(self, layer: _Layer, plan: LayerPlan) -> _Layer:
        """Return a layer with the number of its weights' vectors that are not zero, if many are."""
        if plan.weights is None or not isinstance(layer, (Conv, Dense)) or isinstance(plan, BytePlan):
            return layer
        if self._machine.float16:  # no sparse kernel computes in it
            return layer
        if isinstance(layer, Conv) and (layer.groups > 1 or layer.data.lanes == 1):
            return layer
        folded = plan.folded_weights()
        return replace(layer, vectors=count_vectors(plan.weights.array if folded is None else folded, self._lanes))

    def _in_bfloat16(self, layer: _Layer) -> _Layer:
        return in_bfloat16(layer, self._machine, self._without) if self._machine.bfloat16 else layer

    def _dtype(self, activation: Activation) -> str:
        """Return the element type of a tensor, which is another in blocks of float16."""
        return in_float16(Map(activation, activation)).out.dtype if self._machine.float16 else activation.stored_dtype

    def _is_plain(self, activation: Activation) -> bool:
        """Whether blocks lie as without blocks, as those of full blocks of one pixel do; only float16 does not."""
        return (
            activation.height == activation.width == 1
            and activation.channels % activation.lanes == 0
            and not activation.is_slice
            and activation.dtype != BFLOAT16
            and not self._machine.float16
        )

    def _place(self, value: Value) -> Activation:
        return self._homes[value][1] if value in self._homes else own_activation(value, self._lanes)

    def _operands(self, plan: ImagePlan, layer: ImageLayer) -> Iterator[Any]:
        """Yield what the post-ops take: other tensors, and numbers for each channel."""
        numbers = iter(plan.numbers(layer))
        for post_op in plan.split_effects()[1]:
            if post_op.value is not None:
                yield self._blocked(post_op.value)[1]
            elif post_op.numbers is not None:
                yield _constant(next(numbers))

    def _source(self, value: Value) -> tuple[Activation, Any]:
        """Return a tensor on its present layout: its activation, and the variable of its buffer."""
        if value in self._homes:
            return self._blocked(value)
        return own_activation(value, 1), self._plain(value.variable)

    def _join(self, join: Join) -> None:
        root, home = self._homes[join.out]
        for value, start in join.offsets():
            first = home.first + start // self._lanes
            # Its layer has stored it there already.
            if value in self._homes and self._homes[value][0] is root and self._homes[value][1].first == first:
                continue
            place = own_activation(value, self._lanes)
            target = replace(place, first=first, held=home.held or home.blocks, dtype=home.dtype)
            source, data = self._source(value)
            self._write_buffer(Map(source, target), [data], join.out)

    def _plain_join(self, join: Join) -> None:
        # Each call writes its part into the buffer that the call before returned.
        larger, latest = own_activation(join.out, 1), None
        for value, first in join.offsets():
            source, data = self._source(value)
            layer = Map(source, replace(own_activation(value, 1), first=first, held=larger.blocks))
            call = self._kernels.call(layer, [data], latest)
            latest = self._new(join.out.variable, f"_{first}", larger.shape, call)
        self._bind(join.out.variable, latest)

    def _blocked_operation(self, item: BlockedOperation) -> None:
        operation = item.operation
        blocked = {value: self._in_float32(value) for value in operation.inputs if value.constant is None}
        renamed = {value.variable: variable for value, variable in blocked.items()}
        arguments = []
        for argument in operation.call.args:
            is_value = isinstance(argument, relax.Var) and argument in self._block.values
            # Relax binds some variables to others: the first one names the tensor.
            first = self._block.values[argument].variable if is_value else None
            arguments.append(renamed.get(first, argument))
        expression = run_blocked(operation, blocked, arguments, self._lanes)
        shape = own_activation(item.out, self._lanes).shape
        result = self._new(item.out.variable, "", shape, expression)
        if self._machine.float16:
            result = self._new(item.out.variable, "_half", shape, relax.op.astype(result, FLOAT16), FLOAT16)
        self._buffers[item.out] = result

    def _in_float32(self, value: Value) -> Any:
        """Return a tensor in blocks as Relax's operations read it."""
        activation, buffer = self._blocked(value)
        if not self._machine.float16:
            return buffer
        return self._new(value.variable, "_single", activation.shape, relax.op.astype(buffer, "float32"))

    # Dense layers, on plain rows

    def _packed(self, layer: Dense, plan: RowPlan) -> tuple[Dense, PackedWeights | None]:
        """Return a layer with its packed weights: those of the file, or large ones that the user wants rounded."""
        bits, packed = self._machine.weight_bits, plan.folded_packed()
        if packed is not None or not bits or plan.weights is None or math.prod(layer.weights_shape) < _LARGE:
            return layer, packed
        block = layer.inputs if bits == _BYTE else _BLOCK
        rounded_layer = replace(layer, bits=bits, block=block)
        if not is_covered(rounded_layer, self._without):
            return layer, None
        folded = plan.folded_weights()
        return rounded_layer, rounded(plan.weights.array if folded is None else folded, bits, block)

    def _dense(self, plan: RowPlan) -> None:
        layer, packed = self._packed(plan.layer(self._place), plan)
        if packed is None:
            layer = self._in_bfloat16(self._with_vectors(layer, plan))
        rows, result = (layer.rows, layer.inputs), (layer.rows, layer.outputs)
        arguments = [self._reshape(plan.data, rows)]
        if packed is not None:
            arguments.append(relax.const(encode(packed), "uint8"))
        elif plan.weights is not None:
            arguments.append(_weights(plan.weights, plan))
        if plan.has_bias:
            arguments.append(_constant(plan.bias()))
        for post_op in plan.split_effects()[1]:
            if post_op.value is not None:
                arguments.append(self._reshape(post_op.value, result))
            elif post_op.numbers is not None:
                arguments.append(_constant(post_op.numbers))
        self._bind_as(plan.out, result, self._kernels.call(layer, arguments))


def _constants(plan: ImagePlan, layer: ImageLayer) -> list[Any]:
    """Return the constant arguments of a layer's kernel, with the weights before they are packed."""
    if isinstance(plan, BytePlan):
        return [relax.const(array, str(array.dtype)) for array in plan.constants(layer)]
    constants = [] if plan.weights is None else [_weights(plan.weights, plan)]
    return (
        [*constants, _constant(grids.pad_channels(layer, plan.bias().astype(np.float32)))]
        if plan.has_bias
        else constants
    )


def _weights(value: Value, plan: LayerPlan) -> Any:
    folded = plan.folded_weights()
    return value.constant if folded is None else _constant(folded)


def _constant(numbers: NDArray[Any]) -> Any:
    return relax.const(contiguous(without_subnormals(numbers.astype(np.float32, copy=False))), "float32")
