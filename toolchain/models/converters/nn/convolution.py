"""Convolutions of all kinds, as the two-dimensional ones that the backends have templates for.

A transposed convolution is split by what the output's coordinates leave when they are divided by the strides: each such
phase is an ordinary convolution of the input with some of the weights, so that nothing is multiplied with the zeros
between the elements of a dilated input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, te, tirx

from toolchain.models.converters import converter
from toolchain.models.converters.nn.weights import (
    as_expression,
    concatenate,
    input_weights,
    permute,
    reshape,
    shape,
    take,
)
from toolchain.models.converters.nn.window import axis_numbers, explicit_pads, padding_mode, window
from toolchain.models.converters.node import Node

_PLANE, _SPACE = 2, 3  # axes of an image


@dataclass(frozen=True)
class Sweep:
    """How a convolution moves; one number, or what is added before and behind, for each axis."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    groups: int = 1


@converter("Conv")
def conv(node: Node) -> Any:
    """Convert Conv: what has one axis as if it had two, what has three with the first among the channels.

    TVM pads for SAME in an operation of its own, and computes one and three axes without any of the templates.
    """
    found = window(node, node.shape(1)[2:])
    sweep = Sweep(found.strides, found.dilations, found.pads, int(node.attributes.get("group", 1)))
    return _biased(node, convolved(node, node.input(0), input_weights(node, 1), sweep))


def _biased(node: Node, value: Any) -> Any:
    bias = node.input(2)
    if bias is None:
        return value
    rank = len(node.shape(0))
    return relax.op.add(value, relax.op.reshape(bias, (1, -1, *[1] * (rank - 2))))


def convolved(node: Node, data: Any, weights: Any, sweep: Sweep) -> Any:
    """Return the convolution of an image.

    Args:
        node: Whose it is.
        data: [batch, channels, *sizes], with one to three sizes.
        weights: [outputs, channels of a group, *sizes].
        sweep: How it moves; negative padding cuts.

    Raises:
        InputError: It has more axes.
    """
    data, pads = _cut(node, data, sweep.pads)
    sweep = replace(sweep, pads=pads)
    axes = len(pads)
    if axes == 1:
        wide = Sweep((1, *sweep.strides), (1, *sweep.dilations), ((0, 0), *pads), sweep.groups)
        image = node.emit(relax.op.expand_dims(data, _PLANE))
        made = convolved(node, image, reshape(node, weights, _flat(weights)), wide)
        return node.emit(relax.op.squeeze(node.emit(made), [_PLANE]))
    if axes == _SPACE:
        return _spatial(node, data, weights, sweep)
    if axes != _PLANE:
        raise node.refusal(f"its image has {axes} axes instead of one to three")
    (top, bottom), (left, right) = pads
    return node.emit(
        relax.op.nn.conv2d(
            data,
            as_expression(weights),
            strides=list(sweep.strides),
            padding=[top, left, bottom, right],
            dilation=list(sweep.dilations),
            groups=sweep.groups,
        )
    )


def _flat(weights: Any) -> tuple[int, ...]:
    outputs, channels, taps = shape(weights)
    return outputs, channels, 1, taps


def _cut(node: Node, data: Any, pads: Sequence[tuple[int, int]]) -> tuple[Any, tuple[tuple[int, int], ...]]:
    """Cut off what padding is negative for."""
    for axis, (before, after) in enumerate(pads, 2):
        if min(before, after) < 0:
            end = node.shape_of(data)[axis] + min(after, 0)
            data = node.emit(relax.op.strided_slice(data, [axis], [max(-before, 0)], [end]))
    return data, tuple((max(before, 0), max(after, 0)) for before, after in pads)


def _spatial(node: Node, data: Any, weights: Any, sweep: Sweep) -> Any:
    """Convolve three axes: the elements of a window along the first become channels, its places images."""
    batch, channels, depth, *_ = node.shape_of(data)
    outputs, _, window_depth, *kernel = shape(weights)
    stride, step, (before, after) = sweep.strides[0], sweep.dilations[0], sweep.pads[0]
    places = (depth + before + after - (window_depth - 1) * step - 1) // stride + 1

    def layers(source: Any) -> Any:
        def element(image: Any, channel: Any, *at: Any) -> Any:
            place = image % places * stride + channel % window_depth * step - before
            inside = tirx.all(place >= 0, place < depth)
            value = source(image // places, channel // window_depth, place, *at)
            return tirx.if_then_else(inside, value, tirx.const(0, source.dtype))

        return te.compute((batch * places, channels * window_depth, *source.shape[3:]), element, name="layers")

    flat = Sweep(sweep.strides[1:], sweep.dilations[1:], sweep.pads[1:], sweep.groups)
    images = node.compute(layers, data, name="layers_of_depth")
    made = convolved(node, images, reshape(node, weights, (outputs, -1, *kernel)), flat)
    _, _, height, width = node.shape_of(made)
    parted = relax.op.reshape(made, (batch, places, outputs, height, width))
    return node.emit(relax.op.permute_dims(parted, [0, 2, 1, 3, 4]))


@converter("ConvTranspose")
def conv_transpose(node: Node) -> Any:
    """Convert ConvTranspose, one phase of the output after the other.

    TVM ignores `output_shape`, and multiplies the zeros of a dilated input.
    """
    channels, outputs, *kernel = node.shape(1)
    strides = axis_numbers(node, "strides", len(kernel), 1)
    dilations = axis_numbers(node, "dilations", len(kernel), 1)
    ends = _ends(node, kernel, strides, dilations)
    axes = [Along(*one) for one in zip(node.shape(0)[2:], kernel, strides, dilations, ends, strict=True)]
    groups = int(node.attributes.get("group", 1))
    weights = reshape(node, input_weights(node, 1), (groups, channels // groups, outputs, *kernel))
    phases = list(itertools.product(*(axis.phases() for axis in axes)))
    if len({tuple((phase.before, len(phase.taps)) for phase in one) for one in phases}) == 1:
        made = _at_once(node, weights, phases, axes)
    else:
        made = _one_by_one(node, weights, phases, axes)
    return _biased(node, _interleaved(node, made, axes, groups))


def _ends(node: Node, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[tuple[int, int]]:
    """Return for each axis where the output starts in what the whole kernels cover, and its length."""
    sizes, count = node.shape(0)[2:], len(kernel)
    more = axis_numbers(node, "output_padding", count, 0)
    full = [
        (size - 1) * stride + (taps - 1) * step + 1 + extra
        for size, taps, stride, step, extra in zip(sizes, kernel, strides, dilations, more, strict=True)
    ]
    how, wanted = padding_mode(node), node.attributes.get("output_shape")
    same = how in {"SAME_UPPER", "SAME_LOWER"}
    if wanted is None and not same:
        pads = explicit_pads(node, count) if how == "NOTSET" else [(0, 0)] * count
        return [(before, length - before - after) for length, (before, after) in zip(full, pads, strict=True)]
    made = [size * stride for size, stride in zip(sizes, strides, strict=True)] if wanted is None else wanted[-count:]
    spare = [max(length - one, 0) for length, one in zip(full, made, strict=True)]
    return [
        (one // 2 if how == "SAME_UPPER" else one - one // 2, length)
        for one, length in zip(spare, map(int, made), strict=True)
    ]


@dataclass(frozen=True)
class Phase:
    """What every stride-th element of the output along an axis is computed from.

    Attributes:
        taps: Elements of the kernel, in the order of the input's.
        step: Their distance in the input.
        before: What is padded before the input, and
        after: behind it; negative to cut.
    """

    taps: tuple[int, ...]
    step: int
    before: int
    after: int


@dataclass(frozen=True)
class Along:
    """A transposed convolution along one axis.

    Element i of the input and k of the kernel meet in element i * stride + k * dilation of what is covered, of which
    `end` tells where the output starts, and its length.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    end: tuple[int, int]

    @property
    def first(self) -> int:
        """Of all elements by their place in the phase, the first that the output needs."""
        return self.end[0] // self.stride

    @property
    def count(self) -> int:
        """How many elements of each phase the output needs."""
        return (sum(self.end) - 1) // self.stride - self.first + 1

    def phases(self) -> list[Phase]:
        """Return all phases."""
        return [self._phase(number) for number in range(self.stride)]

    def _phase(self, number: int) -> Phase:
        taps = tuple(k for k in reversed(range(self.kernel)) if (k * self.dilation - number) % self.stride == 0)
        if not taps:
            return Phase((), 1, 0, 0)
        step = self.dilation // math.gcd(self.dilation, self.stride)
        before = (taps[0] * self.dilation - number) // self.stride - self.first
        after = self.count - self.size - before + (len(taps) - 1) * step
        return Phase(taps, step, before, after)


def _at_once(node: Node, weights: Any, phases: Sequence[tuple[Phase, ...]], axes: Sequence[Along]) -> Any:
    """Convolve for all phases, which read the same elements: [batch, groups, phases, outputs, *counts]."""
    stacked = concatenate(node, [_weights(node, weights, one) for one in phases], 1)
    groups, outputs, *kernel = shape(stacked)
    made = _swept(node, reshape(node, stacked, (groups * outputs, *kernel)), phases[0], groups)
    counts = [axis.count for axis in axes]
    sizes = (node.shape(0)[0], groups, len(phases), outputs // len(phases), *counts)
    return node.emit(relax.op.reshape(made, sizes))


def _one_by_one(node: Node, weights: Any, phases: Sequence[tuple[Phase, ...]], axes: Sequence[Along]) -> Any:
    groups, _, outputs = shape(weights)[:3]
    sizes = (node.shape(0)[0], groups, 1, outputs, *(axis.count for axis in axes))
    parts = []
    for one in phases:
        if not all(phase.taps for phase in one):
            parts.append(node.emit(relax.op.zeros(sizes, node.dtype(0))))
            continue
        picked = _weights(node, weights, one)
        made = _swept(node, reshape(node, picked, (groups * outputs, *shape(picked)[2:])), one, groups)
        parts.append(node.emit(relax.op.reshape(made, sizes)))
    return node.emit(relax.op.concat(parts, axis=2))


def _swept(node: Node, weights: Any, one: Sequence[Phase], groups: int) -> Any:
    steps, pads = tuple(phase.step for phase in one), tuple((phase.before, phase.after) for phase in one)
    return convolved(node, node.input(0), weights, Sweep((1,) * len(one), steps, pads, groups))


def _weights(node: Node, weights: Any, one: Sequence[Phase]) -> Any:
    """Return the weights of one phase, [groups, outputs, channels, *taps]."""
    for axis, phase in enumerate(one, 3):
        weights = take(node, weights, phase.taps, axis)
    return permute(node, weights, [0, 2, 1, *range(3, 3 + len(one))])


def _interleaved(node: Node, made: Any, axes: Sequence[Along], groups: int) -> Any:
    """Put the phases between each other, and cut out the output."""
    count = len(axes)
    batch, _, _, outputs, *_ = node.shape_of(made)
    strides = [axis.stride for axis in axes]

    def compute(phases: Any) -> Any:
        def element(image: Any, channel: Any, *at: Any) -> Any:
            places = [one + axis.end[0] for one, axis in zip(at, axes, strict=True)]
            phase: Any = 0
            for place, stride in zip(places, strides, strict=True):
                phase = phase * stride + place % stride
            found = [place // axis.stride - axis.first for place, axis in zip(places, axes, strict=True)]
            return phases(image, channel // outputs, phase, channel % outputs, *found)

        return te.compute((batch, groups * outputs, *(axis.end[1] for axis in axes)), element, name="interleaved")

    if count == sum(strides) and all(axis.end[0] == axis.first for axis in axes):
        return node.emit(relax.op.reshape(made, (batch, groups * outputs, *(axis.count for axis in axes))))
    return node.compute(compute, made, name="interleaved")
