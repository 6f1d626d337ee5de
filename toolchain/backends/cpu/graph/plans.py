"""What becomes of a network: its layers and what lies between them, before anything is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu.graph import effects
from toolchain.backends.cpu.graph.attention import Attended
from toolchain.backends.cpu.graph.effects import Affine, Done, Effect
from toolchain.backends.cpu.layers import Activation, Conv, Dense, Layer, Map, Pool
from toolchain.backends.graph.values import Operation, Value


@dataclass(eq=False)
class Plan(ABC):
    """A layer.

    Attributes:
        data: What it reads.
        out: What it makes, after `effects`.
        at: Number of the last operation it stands for.
        weights: Constant with its weights, if it has any.
        effects: What is done to the result.
    """

    data: Value
    out: Value
    at: int
    weights: Value | None = None
    effects: list[Effect] = field(default_factory=list)

    @property
    def channels(self) -> int:
        """Channels of the result."""
        return (self.out.shape or ())[self.axis]

    @property
    @abstractmethod
    def axis(self) -> int:
        """Axis of the channels in the result as Relax has it."""

    @abstractmethod
    def layer(self, place: Callable[[Value], Activation]) -> Layer:
        """Return the layer.

        Args:
            place: Tells where a blocked tensor lies.
        """

    def parts(self) -> tuple[Affine | None, list[Done]]:
        """Return what goes into weights and bias, and the epilogue."""
        made = effects.merged(self.effects)
        first = made[0] if made else None
        if self.weights is None or not isinstance(first, Affine):
            return None, effects.epilogue(made, self.channels)
        return first, effects.epilogue(made[1:], self.channels)

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias."""
        folded, _ = self.parts()
        return folded is not None and bool((folded.shift != 0).any())

    def bias(self) -> NDArray[np.float64]:
        """Return the bias."""
        folded, _ = self.parts()
        return np.broadcast_to(np.array(0.0) if folded is None else folded.shift, (self.channels,))

    def folded_weights(self) -> NDArray[np.float32] | None:
        """Return the weights, outputs first, with a factor for each in them; None if they stay as they are."""
        folded, _ = self.parts()
        factors = None if folded is None or (folded.scale == 1).all() else folded.scale
        weights = self._turned_weights()
        if factors is None or self.weights is None:
            return weights
        weights = self.weights.array if weights is None else weights
        shape = (-1, *[1] * (weights.ndim - 1))
        return (weights * np.broadcast_to(factors, (self.channels,)).reshape(shape)).astype(np.float32)

    def _turned_weights(self) -> NDArray[np.float32] | None:
        """Return the weights as the layer wants them before they are packed; None if they are so already."""
        return None


@dataclass(eq=False)
class ImagePlan(Plan):
    """A layer on images.

    Attributes:
        bare: The layer without bias and epilogue, in buffers of its own; weights are OIHW.
        groups: Groups of channels in the weights; a layer with fewer gets zeros for what they leave out.
    """

    bare: Conv | Pool | Map = field(kw_only=True)
    groups: int = 1

    @property
    def axis(self) -> int:
        """Axis of the channels in the result as Relax has it."""
        return 1

    def layer(self, place: Callable[[Value], Activation]) -> Conv | Pool | Map:
        """Return the layer; data that is read plain stays so."""
        done = self.parts()[1]
        epilogue = tuple(replace(one.op, other=place(one.value)) if one.value else one.op for one in done)
        data = self.bare.data if self.bare.data.lanes == 1 else place(self.data)
        layer = replace(self.bare, data=data, out=place(self.out), epilogue=epilogue)
        return replace(layer, bias=self.has_bias) if isinstance(layer, Conv) else layer

    def _turned_weights(self) -> NDArray[np.float32] | None:
        same = not isinstance(self.bare, Conv) or self.bare.groups == self.groups
        return None if same or self.weights is None else _ungrouped(self.weights.array, self.groups)


@dataclass(eq=False)
class RowPlan(Plan):
    """A fully connected layer on plain rows.

    Attributes:
        bare: The layer without bias and epilogue; weights are [outputs, inputs].
        is_turned: Whether the constant is [inputs, outputs].
    """

    bare: Dense = field(kw_only=True)
    is_turned: bool = False

    @property
    def axis(self) -> int:
        """Axis of the channels in the result as Relax has it."""
        return len(self.out.shape or ()) - 1

    def layer(self, place: Callable[[Value], Activation]) -> Dense:  # noqa: ARG002 - nothing of it is blocked
        """Return the layer."""
        return replace(self.bare, bias=self.has_bias, epilogue=tuple(one.op for one in self.parts()[1]))

    def _turned_weights(self) -> NDArray[np.float32] | None:
        return self.weights.array.T if self.is_turned and self.weights is not None else None


def _ungrouped(weights: NDArray[np.float32], groups: int) -> NDArray[np.float32]:
    """Return the weights of a grouped convolution as those of an ordinary one."""
    outputs, inputs, *kernel = weights.shape
    whole = np.zeros((groups, outputs // groups, groups, inputs, *kernel), np.float32)
    for group, own in enumerate(weights.reshape(groups, -1, inputs, *kernel)):
        whole[group, :, group] = own
    return whole.reshape(outputs, groups * inputs, *kernel)


@dataclass(eq=False)
class Join:
    """Tensors put together along the channels, in blocks; those that come from a layer are written in place.

    Attributes:
        operation: The concatenation.
        at: Its number.
        plain: Whether the result is plain NCHW, since the tensors do not end at ends of blocks.
    """

    operation: Operation
    at: int
    plain: bool = False

    @property
    def out(self) -> Value:
        """The result."""
        return self.operation.out

    def offsets(self) -> list[tuple[Value, int]]:
        """Return each tensor with its first channel."""
        found, start = [], 0
        for value in self.operation.inputs:
            found.append((value, start))
            start += value.image[1]
        return found


@dataclass(eq=False)
class Slice:
    """Some channels of a blocked tensor, from the beginning of a block.

    Attributes:
        source: The tensor.
        out: The channels.
        first: The first.
        at: Number of the operation.
    """

    source: Value
    out: Value
    first: int
    at: int


@dataclass(eq=False)
class Carried:
    """An operation of Relax on each element, done on blocked tensors as it is.

    Attributes:
        operation: The operation.
        at: Its number.
    """

    operation: Operation
    at: int

    @property
    def out(self) -> Value:
        """The result."""
        return self.operation.out


@dataclass(eq=False)
class Flat:
    """An image of one pixel taken as a tensor of another rank.

    Attributes:
        source: The image, blocked.
        out: The same numbers, plain.
        at: Number of the operation.
    """

    source: Value
    out: Value
    at: int


@dataclass(eq=False)
class Heads:
    """An attention.

    Attributes:
        operation: The operation.
        at: Its number.
    """

    operation: Attended
    at: int


@dataclass(eq=False)
class Plain:
    """An operation that stays as it is.

    Attributes:
        operation: The operation.
        at: Its number.
    """

    operation: Operation
    at: int


Item = ImagePlan | RowPlan | Join | Slice | Carried | Flat | Heads | Plain


def whole(value: Value, lanes: int) -> Activation:
    """Return an image as a tensor in a buffer of its own."""
    return Activation(*value.image, lanes)


def homes(items: list[Item], lanes: int) -> dict[Value, tuple[Value, Activation]]:
    """Decide where each blocked tensor lies: in a buffer of its own, or in that of a tensor that it is a part of.

    Returns:
        For each tensor, the one that fills the whole buffer, and the place in there.
    """
    parents = _parents(items, lanes)
    found = {}
    for item in items:
        if not _is_blocked(item):
            continue
        root, first = item.out, 0
        while root in parents:
            root, more = parents[root]
            first += more
        own, buffer = whole(item.out, lanes), whole(root, lanes)
        if root is not item.out and (first, own.blocks) != (0, buffer.blocks):
            own = replace(own, first=first, held=buffer.blocks)
        found[item.out] = root, own
    return found


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
    return isinstance(item, (ImagePlan, Slice, Carried)) or (isinstance(item, Join) and not item.plain)
