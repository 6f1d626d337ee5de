"""Find what of a network the templates can compute, and on which layout the rest is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.graph import carry, effects, operators
from toolchain.backends.cpu.graph.attention import Attended
from toolchain.backends.cpu.graph.plans import Carried, Flat, Heads, ImagePlan, Item, Join, Plain, RowPlan, Slice, whole
from toolchain.backends.cpu.layers import Activation, Dense, Layer, Map, Pool
from toolchain.backends.graph.values import Block, Operation, Value

_FEW = 4  # channels of an image that a convolution reads as it is
MOST_GROUPS = 8
"""Groups of a convolution that are worth multiplying zeros for."""

_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims", "flatten"})


class Matcher:
    """Goes through a block once, in order."""

    def __init__(self, block: Block, lanes: int, without: frozenset[str]) -> None:
        self._block, self._lanes, self._without = block, lanes, without
        self._items: list[Item] = []
        self._ends: dict[Value, ImagePlan | RowPlan] = {}  # layers by their result, which more can be done to
        self._blocked: set[Value] = set()
        self._slices: set[Value] = set()
        self._joined_plain: set[Value] = set()
        pixel = Activation(1, lanes, 1, 1, lanes)
        plain = Activation(1, lanes, 1, 1, 1)
        self._blocks = self._covered(Map(pixel, plain)) and self._covered(Map(plain, pixel))  # there, and back again

    def run(self) -> list[Item]:
        """Return what becomes of the block, in the order in which it is done."""
        for at, operation in enumerate(self._block.operations):
            handle = self._HANDLERS.get(operation.name, Matcher._element_wise)
            if not handle(self, operation, at):
                self._items.append(Plain(operation, at))
        return sorted(self._items, key=lambda item: item.at)

    def _covered(self, layer: Layer) -> bool:
        return kernels.covered(layer, self._without)

    def _whole(self, value: Value) -> Activation:
        return whole(value, self._lanes)

    def _planned(self, plan: ImagePlan | RowPlan) -> bool:
        """Take a layer if a template computes it."""
        if plan.data.constant is not None or not (self._blocks or isinstance(plan, RowPlan)):
            return False
        if not self._covered(plan.layer(self._whole)):
            return False
        self._items.append(plan)
        self._ends[plan.out] = plan
        if isinstance(plan, ImagePlan):
            self._blocked.add(plan.out)
        return True

    def _conv(self, operation: Operation, at: int) -> bool:
        data, weights = operation.inputs
        if weights.constant is None or not (weights.is_image and data.is_image and operation.out.is_image):
            return False
        kernel = (weights.image[2], weights.image[3])
        layer = operators.conv(operation, self._whole(data), self._whole(operation.out), kernel)
        if layer is None:
            return False
        groups, few = layer.groups, data not in self._blocked and data.image[1] <= _FEW
        for taken in (groups, 1) if groups <= MOST_GROUPS else (groups,):
            for lanes in (1, self._lanes) if few else (self._lanes,):
                bare = replace(layer, data=whole(data, lanes), groups=taken)
                if self._planned(ImagePlan(data, operation.out, at, weights, bare=bare, groups=groups)):
                    return True
        return False

    def _dense(self, operation: Operation, at: int) -> bool:
        data, weights = operation.inputs
        known = data.dtype == weights.dtype == "float32" and data.shape and operation.out.shape
        if not known or weights.constant is None or weights.shape is None or len(weights.shape) != 2:  # noqa: PLR2004
            return False
        is_turned = operation.name == "matmul"
        *rows, inputs = data.shape or ()
        bare = Dense(math.prod(rows), inputs, weights.shape[is_turned])
        return self._planned(RowPlan(data, operation.out, at, weights, bare=bare, is_turned=is_turned))

    def _attention(self, operation: Operation, at: int) -> bool:
        if isinstance(operation, Attended):
            self._items.append(Heads(operation, at))
        return isinstance(operation, Attended)

    def _pool(self, operation: Operation, at: int) -> bool:
        data = operation.inputs[0]
        if not data.is_image or not operation.out.is_image:
            return False
        bare = operators.pool(operation, self._whole(data), self._whole(operation.out))
        return bare is not None and self._planned(ImagePlan(data, operation.out, at, bare=bare))

    def _adaptive(self, operation: Operation, at: int) -> bool:
        if not operation.out.is_image or operation.out.image[2:] != (1, 1):
            return False
        return str(operation.attributes.layout) == "NCHW" and self._global(operation, operation.out, "mean", at)

    def _reduced(self, operation: Operation, at: int) -> bool:
        """The mean or maximum of each channel."""
        data = operation.inputs[0]
        if not data.is_image or not operators.is_over_pixels(operation):
            return False
        if operation.attributes.keepdims:
            return self._global(operation, operation.out, operation.name, at)
        image = self._block.made(operation.out, (*data.image[:2], 1, 1))
        if not self._global(operation, image, operation.name, at):
            return False
        image.readers = 1
        self._items.append(Flat(image, operation.out, at))
        return True

    def _global(self, operation: Operation, out: Value, reduce: Any, at: int) -> bool:
        data = operation.inputs[0]
        if not data.is_image:
            return False
        bare = Pool(self._whole(data), self._whole(out), reduce, (data.image[2], data.image[3]))
        return self._planned(ImagePlan(data, out, at, bare=bare))

    def _shuffle(self, operation: Operation, at: int) -> bool:
        data = operation.inputs[0]
        if data not in self._blocked:
            return False
        bare = Map(self._whole(data), self._whole(operation.out), shuffle=int(operation.values[0]))
        return self._planned(ImagePlan(data, operation.out, at, bare=bare))

    def _concat(self, operation: Operation, at: int) -> bool:
        images = all(value.is_image and value.constant is None for value in operation.inputs)
        if not images or int(operation.attributes.axis) % 4 != 1:
            return False
        if not any(value in self._blocked for value in operation.inputs):
            return False
        join = Join(operation, at)
        aligned = all(first % self._lanes == 0 for _, first in join.offsets())
        join.plain = not aligned
        if not all(self._can_enter(value, join) for value in operation.inputs):
            return False
        self._items.append(join)
        (self._blocked if aligned else self._joined_plain).add(operation.out)
        return True

    def _can_enter(self, value: Value, join: Join) -> bool:
        """Whether a tensor can be copied into a part of another."""
        lanes = self._lanes if value in self._blocked else 1
        place = whole(value, 1 if join.plain else self._lanes)
        larger = whole(join.out, place.lanes)
        part = Activation(*value.image, place.lanes, 0, larger.blocks)
        return self._covered(Map(whole(value, lanes), part))

    def _split(self, operation: Operation, at: int) -> bool:
        source, *parts = (*operation.inputs[:1], *operation.outputs)
        together = parts.pop()  # the tuple itself
        if source not in self._blocked or together.readers or int(operation.attributes.axis) % 4 != 1:
            return False
        slices, first = [], 0
        for part in parts:
            slices.append(Slice(source, part, first, at))
            first += part.image[1]
        if any(one.first % self._lanes for one in slices if one.out.readers):
            return False
        for one in slices:
            if one.out.readers:
                self._sliced(one)
        return True

    def _sliced(self, one: Slice) -> None:
        self._items.append(one)
        self._blocked.add(one.out)
        self._slices.add(one.out)

    def _slice(self, operation: Operation, at: int) -> bool:
        source = operation.inputs[0]
        if source not in self._blocked or not operation.out.is_image:
            return False
        _, axes, begin, _, *strides = operation.call.args
        steps = {int(one) for each in strides for one in each.fields}
        if [int(axis) % 4 for axis in axes.fields] != [1] or steps - {1}:
            return False
        channels = source.image[1]
        first = int(begin.fields[0])
        first = max(first + channels, 0) if first < 0 else min(first, channels)
        if first % self._lanes:
            return False
        self._sliced(Slice(source, operation.out, first, at))
        return True

    def _reshape(self, operation: Operation, at: int) -> bool:
        source = operation.inputs[0]
        if source not in self._blocked or source.image[2:] != (1, 1) or operation.out.shape is None:
            return False
        self._items.append(Flat(source, operation.out, at))
        return True

    def _element_wise(self, operation: Operation, at: int) -> bool:
        if len(operation.outputs) != 1:
            return False
        return self._joined(operation, at) or self._mapped(operation, at) or self._carried(operation, at)

    def _joined(self, operation: Operation, at: int) -> bool:
        """Do it before the result of a layer is stored: the last one, if there are several."""
        ready = [self._ends[value] for value in operation.inputs if value in self._ends]
        for plan in sorted(ready, key=lambda one: -one.at):
            if plan.out.readers != 1 or plan.out.escapes:
                continue
            made = effects.effects(operation, plan.out, plan.axis)
            if made is None:
                continue
            before, plan.effects = plan.effects, plan.effects + made
            if not self._covered(plan.layer(self._whole)):
                plan.effects = before
                continue
            del self._ends[plan.out]
            if plan.out in self._blocked:
                self._blocked.remove(plan.out)
                self._blocked.add(operation.out)
            plan.out, plan.at = operation.out, at
            self._ends[plan.out] = plan
            return True
        return False

    def _mapped(self, operation: Operation, at: int) -> bool:
        """Make it a layer of its own, if it reads a blocked tensor, or one that would be if its parts fitted."""
        for value in operation.inputs:
            if value not in self._blocked and value not in self._joined_plain:
                continue
            made = effects.effects(operation, value, 1)
            lanes = self._lanes if value in self._blocked else 1
            bare = Map(whole(value, lanes), self._whole(value))
            if made is not None and self._planned(ImagePlan(value, operation.out, at, effects=made, bare=bare)):
                return True
        return False

    def _carried(self, operation: Operation, at: int) -> bool:
        """Let Relax do it, but on blocked tensors."""
        tensors = [value for value in operation.inputs if value.constant is None]
        if not any(value in self._blocked for value in tensors) or any(value in self._slices for value in tensors):
            return False
        if not self._blocks or not carry.is_carried(operation, self._lanes):
            return False
        self._items.append(Carried(operation, at))
        self._blocked.add(operation.out)
        return True

    _HANDLERS: ClassVar[dict[str, Callable[[Matcher, Operation, int], bool]]] = {
        "nn.conv2d": _conv,
        "matmul": _dense,
        "linear": _dense,
        "nn.max_pool2d": _pool,
        "nn.avg_pool2d": _pool,
        "nn.adaptive_avg_pool2d": _adaptive,
        "mean": _reduced,
        "max": _reduced,
        "attention": _attention,
        "shuffle": _shuffle,
        "concat": _concat,
        "split": _split,
        "strided_slice": _slice,
        **dict.fromkeys(_RESHAPES, _reshape),
    }
