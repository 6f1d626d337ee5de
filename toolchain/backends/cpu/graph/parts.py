"""Parts of tensors in blocks, and other shapes of them: each function takes an operation, and says whether it did."""

from __future__ import annotations

from toolchain.backends.cpu.graph.items import Flat, Join, Slice, whole
from toolchain.backends.cpu.graph.planning import Bytes, Planning
from toolchain.backends.cpu.graph.plans import BytePlan
from toolchain.backends.cpu.layers import Activation, Map
from toolchain.backends.graph.quantization import LEAST
from toolchain.backends.graph.values import Operation, Value

_NCHW = 4  # axes


def concat(plans: Planning, operation: Operation, at: int) -> bool:
    """Tensors put together along the channels."""
    if len(operation.out.shape or ()) != _NCHW or int(operation.attributes.axis) % _NCHW != 1:
        return False
    if operation.out.dtype in LEAST:
        return _concat_of_bytes(plans, operation, at)
    if not all(value.is_image and value.constant is None for value in operation.inputs):
        return False
    if not any(value in plans.blocked for value in operation.inputs):
        return False
    join = Join(operation, at)
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
    place = whole(value, 1 if join.plain else plans.lanes)
    larger = whole(join.out, place.lanes)
    part = Activation(*value.image, place.lanes, 0, larger.blocks)
    return plans.covers(Map(whole(value, lanes), part))


def _concat_of_bytes(plans: Planning, operation: Operation, at: int) -> bool:
    """Tensors on one grid; those that others need too are copied."""
    parts = [plans.bytes[value] for value in operation.inputs if value in plans.bytes]
    same = {(part.grid, part.place.lanes) for part in parts}
    if len(parts) < len(operation.inputs) or len(same) != 1 or parts[0].place.lanes != plans.lanes:
        return False
    if any(first % plans.lanes for _, first in Join(operation, at).offsets()):
        return False
    result = plans.new_bytes(operation.out)
    values = tuple(_own(plans, part, at) for part in parts)
    plans.items.append(Join(Operation(operation.name, values, (result,), operation.call), at))
    return plans.note(operation.out, Bytes(result, whole(result, plans.lanes), parts[0].grid, at, is_alone=True), at)


def _own(plans: Planning, part: Bytes, at: int) -> Value:
    """Return bytes that a concatenation alone reads."""
    if part.is_alone:
        return part.value
    result = plans.new_bytes(part.value)
    bare = Map(part.place, whole(result, part.place.lanes))
    plans.take(BytePlan(part.value, result, at, bare=bare, data_grid=part.grid, result_grid=part.grid))
    return result


def split(plans: Planning, operation: Operation, at: int) -> bool:
    """A tensor cut along the channels."""
    source, *parts = (*operation.inputs[:1], *operation.outputs)
    together = parts.pop()  # the tuple itself
    if source not in plans.blocked or together.readers or int(operation.attributes.axis) % 4 != 1:
        return False
    slices, first = [], 0
    for part in parts:
        slices.append(Slice(source, part, at, first))
        first += part.image[1]
    needed = [piece for piece in slices if piece.out.readers]
    if any(piece.first % plans.lanes for piece in needed):
        return False
    for piece in needed:
        _sliced(plans, piece)
    return True


def strided_slice(plans: Planning, operation: Operation, at: int) -> bool:
    """Some channels of a tensor."""
    source = operation.inputs[0]
    if source not in plans.blocked or not operation.out.is_image:
        return False
    _, axes, begin, _, *strides = operation.call.args
    steps = {int(one) for each in strides for one in each.fields}
    if [int(axis) % 4 for axis in axes.fields] != [1] or steps - {1}:
        return False
    channels = source.image[1]
    first = int(begin.fields[0])
    first = max(first + channels, 0) if first < 0 else min(first, channels)
    if first % plans.lanes:
        return False
    _sliced(plans, Slice(source, operation.out, at, first))
    return True


def _sliced(plans: Planning, piece: Slice) -> None:
    plans.items.append(piece)
    plans.blocked.add(piece.out)
    plans.slices.add(piece.out)


def reshape(plans: Planning, operation: Operation, at: int) -> bool:
    """Images of one pixel as rows, or the other way round."""
    source, out = operation.inputs[0], operation.out
    bytes_ = plans.bytes.get(source)
    if bytes_ is not None and out.has_pixels and source.pixels == out.pixels:
        return plans.note(out, bytes_, at)
    if source not in plans.blocked or source.image[2:] != (1, 1) or out.shape is None:
        return False
    plans.items.append(Flat(source, out, at))
    return True
