"""What becomes of a block: layers and what lies between them, and where each blocked tensor is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeGuard

from toolchain.backends.cpu.graph.attention import Attended
from toolchain.backends.cpu.graph.plans import ImagePlan, Plan
from toolchain.backends.cpu.layers import Activation
from toolchain.backends.graph.values import Block, Operation, Value


@dataclass(eq=False)
class _Done:
    """An operation that is no layer.

    Attributes:
        operation: The operation.
        at: Its number.
    """

    operation: Operation
    at: int

    @property
    def reads(self) -> Iterable[Value]:
        """The tensors that it reads."""
        return self.operation.inputs

    @property
    def makes(self) -> Iterable[Value]:
        """The tensors that it makes."""
        return self.operation.outputs

    @property
    def out(self) -> Value:
        """The only result."""
        return self.operation.out


@dataclass(eq=False)
class Plain(_Done):
    """An operation that stays as it is."""


@dataclass(eq=False)
class Carried(_Done):
    """An operation of Relax on each element, done on blocked tensors as it is."""


@dataclass(eq=False)
class Heads(_Done):
    """An attention."""

    operation: Attended


@dataclass(eq=False)
class Join(_Done):
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
class _Seen:
    """A blocked tensor, or a part of one, seen as another.

    Attributes:
        source: The tensor.
        out: The other.
        at: Number of the operation.
    """

    source: Value
    out: Value
    at: int

    @property
    def reads(self) -> Iterable[Value]:
        """The tensors that it reads."""
        return [self.source]

    @property
    def makes(self) -> Iterable[Value]:
        """The tensors that it makes."""
        return [self.out]


@dataclass(eq=False)
class Flat(_Seen):
    """An image of one pixel taken as a tensor of another rank, on plain layout."""


@dataclass(eq=False)
class Slice(_Seen):
    """Some channels, from the beginning of a block.

    Attributes:
        first: The first.
    """

    first: int


Item = Plan | Join | Slice | Carried | Flat | Heads | Plain


def needed(items: list[Item], block: Block) -> list[Item]:
    """Return the items, in order, without those whose results nobody needs and those that are not worth a kernel.

    What such a one would have made stays an operation of Relax, and needs what that reads.
    """
    kept = [item for item in items if not isinstance(item, ImagePlan) or item.is_kept]
    provided = {value for item in kept for value in item.makes}
    wanted: set[Value] = set()
    _want((block.values[variable] for variable in block.escaping), wanted, provided)
    needed_items: list[Item] = []
    for item in reversed(kept):
        if not wanted.isdisjoint(item.makes):
            needed_items.append(item)
            _want(item.reads, wanted, provided)
    return needed_items[::-1]


def _want(values: Iterable[Value], wanted: set[Value], provided: set[Value]) -> None:
    """Add values to those that are wanted, with all that those need which no item makes."""
    left = list(values)
    while left:
        value = left.pop()
        if value in wanted:
            continue
        wanted.add(value)
        if value not in provided and value.maker is not None:
            left += value.maker.inputs


def whole(value: Value, lanes: int) -> Activation:
    """Return a tensor as images in a buffer of its own."""
    return Activation(*value.pixels, lanes, dtype=value.dtype)


def homes(items: list[Item], lanes: int) -> dict[Value, tuple[Value, Activation]]:
    """Decide where each blocked tensor lies: in a buffer of its own, or in that of a tensor that it is a part of.

    Returns:
        For each tensor, the one that fills the whole buffer, and the place in there.
    """
    parents = _parents(items, lanes)
    places = {item.out: _place(item, lanes) for item in items if _is_blocked(item)}
    found = {}
    for value, own in places.items():
        root, first = value, 0
        while root in parents:
            root, more = parents[root]
            first += more
        if root is not value and (first, own.blocks) != (0, places[root].blocks):
            found[value] = root, replace(own, first=first, held=places[root].blocks)
        else:
            found[value] = root, own
    return found


def _place(item: ImagePlan | Join | Slice | Carried, lanes: int) -> Activation:
    """Return where a tensor lies if it has a buffer of its own."""
    return item.bare.out if isinstance(item, ImagePlan) else whole(item.out, lanes)


def _parents(items: list[Item], lanes: int) -> dict[Value, tuple[Value, int]]:
    """Return for each tensor that is part of a larger one that one, and its first block there."""
    alone = {value for item in items if isinstance(item, Carried) for value in item.operation.inputs}
    movable = {item.out for item in items if _is_blocked(item) and isinstance(item, (ImagePlan, Join))} - alone
    parents: dict[Value, tuple[Value, int]] = {}
    for item in items:
        if isinstance(item, Slice):
            parents[item.out] = item.source, item.first // lanes
        elif isinstance(item, Join) and not item.plain:
            for value, first in item.offsets():
                if value in movable and value not in parents and first % lanes == 0:
                    parents[value] = item.out, first // lanes
    return parents


def _is_blocked(item: Item) -> TypeGuard[ImagePlan | Join | Slice | Carried]:
    """Whether an item makes a blocked tensor, or tells of a part of one."""
    if isinstance(item, ImagePlan):
        return item.bare.out.lanes > 1
    return isinstance(item, (Slice, Carried)) or (isinstance(item, Join) and not item.plain)
