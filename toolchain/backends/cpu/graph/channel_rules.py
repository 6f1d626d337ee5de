"""Concatenations, slices and reshapes of blocked tensors: each rule returns whether it planned the operation."""

from __future__ import annotations

from toolchain.backends.cpu.graph.items import Flat, Join, Slice, own_activation
from toolchain.backends.cpu.graph.planning import Bytes, Planning
from toolchain.backends.cpu.graph.plans import BytePlan
from toolchain.backends.cpu.layers import Activation, Map
from toolchain.backends.graph.quantization import LEAST
from toolchain.backends.graph.values import Operation, Value

_NCHW = 4  # axes


def concat(plans: Planning, operation: Operation, index: int) -> bool:
    """Tensors put together along the channels."""
    if len(operation.out.shape or ()) != _NCHW or int(operation.attributes.axis) % _NCHW != 1:
        return False
    if operation.out.dtype in LEAST:
        return _concat_of_bytes(plans, operation, index)
    if not all(value.is_image and value.constant is None for value in operation.inputs):
        return False
    if not any(value in plans.blocked for value in operation.inputs):
        return False
    join = Join(operation, index)
    # Where an input ends within a block, the result is put together on plain layout.
    aligned = all(first % plans.lanes == 0 for _, first in join.offsets())
    join.plain = not aligned
    if not all(_can_enter(plans, value, join) for value in operation.inputs):
        return False
    plans.items.append(join)
    (plans.blocked if aligned else plans.joined_plain).add(operation.out)
    return True


def _can_enter(plans: Planning, value: Value, join: Join) -> bool:
    """Whether a tensor can be copied into a part of another."""
    lanes = plans.lanes if value in plans.blocked else 1
    target = own_activation(value, 1 if join.plain else plans.lanes)
    larger = own_activation(join.out, target.lanes)
    slot = Activation(*value.image, target.lanes, 0, larger.blocks)
    return plans.covers(Map(own_activation(value, lanes), slot))


def _concat_of_bytes(plans: Planning, operation: Operation, index: int) -> bool:
    """Tensors on one grid; those that others need too are copied."""
    inputs = [plans.bytes[value] for value in operation.inputs if value in plans.bytes]
    same = {(source.grid, source.activation.lanes) for source in inputs}
    if len(inputs) < len(operation.inputs) or len(same) != 1 or inputs[0].activation.lanes != plans.lanes:
        return False
    if any(first % plans.lanes for _, first in Join(operation, index).offsets()):
        return False
    result = plans.new_bytes(operation.out)
    values = tuple(_copy_for_concat(plans, source, index) for source in inputs)
    plans.items.append(Join(Operation(operation.name, values, (result,), operation.call), index))
    return plans.note(
        operation.out, Bytes(result, own_activation(result, plans.lanes), inputs[0].grid, index, is_alone=True), index
    )


def _copy_for_concat(plans: Planning, source: Bytes, index: int) -> Value:
    """Return bytes that a concatenation alone reads."""
    # Other readers of the same bytes would see them change inside the larger buffer.
    if source.is_alone:
        return source.value
    result = plans.new_bytes(source.value)
    bare = Map(source.activation, own_activation(result, source.activation.lanes))
    plans.take(BytePlan(source.value, result, index, bare=bare, data_grid=source.grid, result_grid=source.grid))
    return result


def split(plans: Planning, operation: Operation, index: int) -> bool:
    """A tensor cut along the channels."""
    source, *pieces = (*operation.inputs[:1], *operation.outputs)
    together = pieces.pop()  # the tuple itself
    if source not in plans.blocked or together.readers or int(operation.attributes.axis) % 4 != 1:
        return False
    slices, first = [], 0
    for output in pieces:
        slices.append(Slice(source, output, index, first))
        first += output.image[1]
    needed = [piece for piece in slices if piece.out.readers]
    # A slice is a view only if it begins with a block.
    if any(piece.first % plans.lanes for piece in needed):
        return False
    for piece in needed:
        _add_slice(plans, piece)
    return True


def strided_slice(plans: Planning, operation: Operation, index: int) -> bool:
    """Some channels of a tensor."""
    source = operation.inputs[0]
    if source not in plans.blocked or not operation.out.is_image:
        return False
    _, axes, begin, _, *strides = operation.call.args
    steps = {int(stride) for field in strides for stride in field.fields}
    if [int(axis) % 4 for axis in axes.fields] != [1] or steps - {1}:
        return False
    channels = source.image[1]
    first = int(begin.fields[0])
    first = max(first + channels, 0) if first < 0 else min(first, channels)
    if first % plans.lanes:
        return False
    _add_slice(plans, Slice(source, operation.out, index, first))
    return True


def _add_slice(plans: Planning, piece: Slice) -> None:
    plans.items.append(piece)
    plans.blocked.add(piece.out)
    plans.slices.add(piece.out)


def reshape(plans: Planning, operation: Operation, index: int) -> bool:
    """Images of one pixel as rows, or the other way round."""
    source, out = operation.inputs[0], operation.out
    bytes_ = plans.bytes.get(source)
    # Bytes of the same pixels in another rank are the same bytes.
    if bytes_ is not None and out.has_pixels and source.pixels == out.pixels:
        return plans.note(out, bytes_, index)
    if source not in plans.blocked or source.image[2:] != (1, 1) or out.shape is None:
        return False
    plans.items.append(Flat(source, out, index))
    return True
