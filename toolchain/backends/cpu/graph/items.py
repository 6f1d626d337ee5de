"""What becomes of a block: layers and what lies between them, and where each blocked tensor is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeGuard

from toolchain.backends.cpu.graph.attention import AttentionOperation
from toolchain.backends.cpu.graph.plans import ImagePlan, LayerPlan
from toolchain.backends.cpu.layers import Activation
from toolchain.backends.graph.values import Block, Operation, Value


@dataclass(eq=False)
class _SingleOperation:
    """An operation that is not a layer.

    Attributes:
        operation: The operation.
        index: Its number.
    """

    operation: Operation
    index: int

    @property
    def reads(self) -> Iterable[Value]:
        return self.operation.inputs

    @property
    def makes(self) -> Iterable[Value]:
        return self.operation.outputs

    @property
    def out(self) -> Value:
        """The only result."""
        return self.operation.out


@dataclass(eq=False)
class Plain(_SingleOperation):
    """An operation that stays as it is."""


@dataclass(eq=False)
class BlockedOperation(_SingleOperation):
    """An operation of Relax on each element, done on blocked tensors as it is."""


@dataclass(eq=False)
class Heads(_SingleOperation):
    """An attention."""

    operation: AttentionOperation


@dataclass(eq=False)
class Join(_SingleOperation):
    """Tensors put together along the channels, in blocks; those that come from a layer are written in place.

    Attributes:
        plain: Whether the result is plain NCHW, since the tensors do not end at ends of blocks.
    """

    plain: bool = False

    def offsets(self) -> list[tuple[Value, int]]:
        """Return each tensor with its first channel."""
        offsets, start = [], 0
        for value in self.operation.inputs:
            offsets.append((value, start))
            start += value.pixels[1]
        return offsets


@dataclass(eq=False)
class _TensorView:
    """A blocked tensor, or a part of one, seen as another.

    Attributes:
        source: The tensor.
        out: The other.
        index: Number of the operation.
    """

    source: Value
    out: Value
    index: int

    @property
    def reads(self) -> Iterable[Value]:
        return [self.source]

    @property
    def makes(self) -> Iterable[Value]:
        return [self.out]


@dataclass(eq=False)
class Flat(_TensorView):
    """An image of one pixel taken as a tensor of another rank, on plain layout."""


@dataclass(eq=False)
class Slice(_TensorView):
    """Some channels, from the beginning of a block.

    Attributes:
        first: The first.
    """

    first: int


Item = LayerPlan | Join | Slice | BlockedOperation | Flat | Heads | Plain


def prune(items: list[Item], block: Block) -> list[Item]:
    """Remove items whose results are not needed, and those that are not worth a kernel.

    Such a result stays an operation of Relax, which needs the inputs of that operation.
    """
    candidates = [item for item in items if not isinstance(item, ImagePlan) or item.is_kept]
    provided = {value for item in candidates for value in item.makes}
    required: set[Value] = set()
    _want((block.values[variable] for variable in block.escaping), required, provided)
    needed_items: list[Item] = []
    # Backwards: an item is needed if an item behind it reads its result.
    for item in reversed(candidates):
        if not required.isdisjoint(item.makes):
            needed_items.append(item)
            _want(item.reads, required, provided)
    return needed_items[::-1]


def _want(values: Iterable[Value], required: set[Value], provided: set[Value]) -> None:
    """Add values to those that are wanted, with all that those need which no item makes."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in required:
            continue
        required.add(value)
        # No item provides it, so that Relax computes it from its own inputs.
        if value not in provided and value.maker is not None:
            waiting += value.maker.inputs


def own_activation(value: Value, lanes: int) -> Activation:
    """Return a tensor as images in a buffer of its own."""
    return Activation(*value.pixels, lanes, dtype=value.dtype)


def assign_buffers(items: list[Item], lanes: int) -> dict[Value, tuple[Value, Activation]]:
    """Decide where each blocked tensor lies: in a buffer of its own, or in that of a tensor that it is a part of.

    Returns:
        For each tensor, the one that fills the whole buffer, and the place in there.
    """
    parents = _parents(items, lanes)
    activations = {
        item.out: item.bare.out if isinstance(item, ImagePlan) else own_activation(item.out, lanes)
        for item in items
        if _is_blocked(item)
    }
    homes_by_value = {}
    for value, activation in activations.items():
        root, first = value, 0
        # A concatenation may be part of another one: the largest tensor has the buffer.
        while root in parents:
            root, more = parents[root]
            first += more
        if root is not value and (first, activation.blocks) != (0, activations[root].blocks):
            homes_by_value[value] = root, replace(activation, first=first, held=activations[root].blocks)
        else:
            homes_by_value[value] = root, activation
    return homes_by_value


def _parents(items: list[Item], lanes: int) -> dict[Value, tuple[Value, int]]:
    """Return for each tensor that is part of a larger one that one, and its first block there."""
    # Relax's operations take whole buffers: their inputs cannot be slices of a larger one.
    relax_inputs = {value for item in items if isinstance(item, BlockedOperation) for value in item.operation.inputs}
    movable = {item.out for item in items if _is_blocked(item) and isinstance(item, (ImagePlan, Join))} - relax_inputs
    parents: dict[Value, tuple[Value, int]] = {}
    for item in items:
        if isinstance(item, Slice):
            parents[item.out] = item.source, item.first // lanes
        elif isinstance(item, Join) and not item.plain:
            for value, first in item.offsets():
                if value in movable and value not in parents and first % lanes == 0:
                    parents[value] = item.out, first // lanes
    return parents


def _is_blocked(item: Item) -> TypeGuard[ImagePlan | Join | Slice | BlockedOperation]:
    """Whether the result of an item is a blocked tensor, or a slice of one."""
    if isinstance(item, ImagePlan):
        return item.bare.out.lanes > 1
    return isinstance(item, (Slice, BlockedOperation)) or (isinstance(item, Join) and not item.plain)
