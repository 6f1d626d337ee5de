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

from toolchain.models.converters import Node, converter
from toolchain.models.converters.nn.window import (
    as_expression,
    axis_numbers,
    concatenate,
    explicit_pads,
    input_weights,
    padding_mode,
    permute,
    reshape,
    shape,
    take,
    window,
)

_PLANE, _SPACE = 2, 3  # axes of an image


@dataclass(frozen=True)
class Sweep:
    """How a convolution moves: one entry for each axis; `pads` are the padding before and behind it."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    groups: int = 1


# TVM pads for SAME in a separate operation, and computes one and three axes without any of the templates.
@converter("Conv")
def conv(node: Node) -> Any:
    geometry = window(node, node.shape(1)[2:])
    sweep = Sweep(geometry.strides, geometry.dilations, geometry.pads, int(node.attributes.get("group", 1)))
    return _add_bias(node, convolve(node, node.input(0), input_weights(node, 1), sweep))


def _add_bias(node: Node, value: Any) -> Any:
    bias = node.input(2)
    if bias is None:
        return value
    rank = len(node.shape(0))
    return relax.op.add(value, relax.op.reshape(bias, (1, -1, *[1] * (rank - 2))))


def convolve(node: Node, data: Any, weights: Any, sweep: Sweep) -> Any:
    """Convolve data [batch, channels, *sizes] with weights [outputs, channels of a group, *sizes].

    There are one to three sizes; negative padding crops.
    """
    for axis, (before, after) in enumerate(sweep.pads, 2):
        if min(before, after) < 0:
            end = node.shape_of(data)[axis] + min(after, 0)
            data = node.emit(relax.op.strided_slice(data, [axis], [max(-before, 0)], [end]))
    pads = tuple((max(before, 0), max(after, 0)) for before, after in sweep.pads)
    sweep = replace(sweep, pads=pads)
    axes = len(pads)
    if axes == 1:  # a row is an image of one line
        wide = Sweep((1, *sweep.strides), (1, *sweep.dilations), ((0, 0), *pads), sweep.groups)
        image = node.emit(relax.op.expand_dims(data, _PLANE))
        outputs, channels, taps = shape(weights)
        result = convolve(node, image, reshape(node, weights, (outputs, channels, 1, taps)), wide)
        return node.emit(relax.op.squeeze(node.emit(result), [_PLANE]))
    if axes == _SPACE:
        return _convolve_3d(node, data, weights, sweep)
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


def _convolve_3d(node: Node, data: Any, weights: Any, sweep: Sweep) -> Any:
    """Convolve three axes: the elements of a window along the first become channels, its positions images."""
    batch, channels, depth, *_ = node.shape_of(data)
    outputs, _, window_depth, *kernel = shape(weights)
    stride, step, (before, after) = sweep.strides[0], sweep.dilations[0], sweep.pads[0]
    depths = (depth + before + after - (window_depth - 1) * step - 1) // stride + 1

    def layers(source: Any) -> Any:
        def element(image: Any, channel: Any, *index: Any) -> Any:
            layer = image % depths * stride + channel % window_depth * step - before
            inside = tirx.all(layer >= 0, layer < depth)
            value = source(image // depths, channel // window_depth, layer, *index)
            return tirx.if_then_else(inside, value, tirx.const(0, source.dtype))

        return te.compute((batch * depths, channels * window_depth, *source.shape[3:]), element, name="layers")

    flat = Sweep(sweep.strides[1:], sweep.dilations[1:], sweep.pads[1:], sweep.groups)
    images = node.compute(layers, data, name="layers_of_depth")
    result = convolve(node, images, reshape(node, weights, (outputs, -1, *kernel)), flat)
    _, _, height, width = node.shape_of(result)
    split = relax.op.reshape(result, (batch, depths, outputs, height, width))
    return node.emit(relax.op.permute_dims(split, [0, 2, 1, 3, 4]))


# TVM ignores `output_shape`, and multiplies the zeros of a dilated input.
@converter("ConvTranspose")
def conv_transpose(node: Node) -> Any:
    channels, outputs, *kernel = node.shape(1)
    strides = axis_numbers(node, "strides", len(kernel), 1)
    dilations = axis_numbers(node, "dilations", len(kernel), 1)
    ends = _output_spans(node, kernel, strides, dilations)
    axes = [TransposedAxis(*axis) for axis in zip(node.shape(0)[2:], kernel, strides, dilations, ends, strict=True)]
    groups = int(node.attributes.get("group", 1))
    weights = reshape(node, input_weights(node, 1), (groups, channels // groups, outputs, *kernel))
    phases = list(itertools.product(*(axis.phases() for axis in axes)))
    # Phases that read the same elements are outputs of one convolution: the input is read once.
    if len({tuple((axis_phase.before, len(axis_phase.taps)) for axis_phase in phase) for phase in phases}) == 1:
        results = _convolve_phases_at_once(node, weights, phases, axes)
    else:
        results = _convolve_each_phase(node, weights, phases, axes)
    return _add_bias(node, _interleave(node, results, axes, groups))


def _output_spans(
    node: Node, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[tuple[int, int]]:
    """Return for each axis where the output starts in the area that whole kernels cover, and its length."""
    sizes, count = node.shape(0)[2:], len(kernel)
    output_padding = axis_numbers(node, "output_padding", count, 0)
    full = [
        (size - 1) * stride + (taps - 1) * step + 1 + extra
        for size, taps, stride, step, extra in zip(sizes, kernel, strides, dilations, output_padding, strict=True)
    ]
    mode, output_shape = padding_mode(node), node.attributes.get("output_shape")
    same = mode in {"SAME_UPPER", "SAME_LOWER"}
    if output_shape is None and not same:
        pads = explicit_pads(node, count) if mode == "NOTSET" else [(0, 0)] * count
        return [(before, length - before - after) for length, (before, after) in zip(full, pads, strict=True)]
    if output_shape is None:
        sizes_out = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    else:
        sizes_out = output_shape[-count:]
    # The output is the middle of the area that whole kernels cover. An odd rest is cut off its start, except for
    # SAME_UPPER.
    spare = [max(length - size, 0) for length, size in zip(full, sizes_out, strict=True)]
    return [
        (extra // 2 if mode == "SAME_UPPER" else extra - extra // 2, length)
        for extra, length in zip(spare, map(int, sizes_out), strict=True)
    ]


@dataclass(frozen=True)
class Phase:
    """How every stride-th element of the output along an axis is computed.

    The taps of the kernel are in the order of the input, in which they are `step` elements apart. Negative padding
    crops.
    """

    taps: tuple[int, ...]
    step: int
    before: int
    after: int


@dataclass(frozen=True)
class TransposedAxis:
    """A transposed convolution along one axis.

    Element i of the input and k of the kernel meet in element i * stride + k * dilation of the covered area; `end` has
    the start of the output in that area, and its length.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    end: tuple[int, int]

    @property
    def first(self) -> int:
        """The first element of each phase that the output needs."""
        return self.end[0] // self.stride

    @property
    def count(self) -> int:
        """How many elements of each phase the output needs."""
        return (sum(self.end) - 1) // self.stride - self.first + 1

    def phases(self) -> list[Phase]:
        phases = []
        step = self.dilation // math.gcd(self.dilation, self.stride)
        for number in range(self.stride):
            taps = tuple(k for k in reversed(range(self.kernel)) if (k * self.dilation - number) % self.stride == 0)
            if not taps:  # nothing of the input reaches these elements
                phases.append(Phase((), 1, 0, 0))
                continue
            before = (taps[0] * self.dilation - number) // self.stride - self.first
            after = self.count - self.size - before + (len(taps) - 1) * step
            phases.append(Phase(taps, step, before, after))
        return phases


def _convolve_phases_at_once(
    node: Node, weights: Any, phases: Sequence[tuple[Phase, ...]], axes: Sequence[TransposedAxis]
) -> Any:
    """Convolve for all phases, which read the same elements: [batch, groups, phases, outputs, *counts]."""
    stacked = concatenate(node, [_phase_weights(node, weights, phase) for phase in phases], 1)
    groups, outputs, *kernel = shape(stacked)
    result = _convolve_phase(node, reshape(node, stacked, (groups * outputs, *kernel)), phases[0], groups)
    counts = [axis.count for axis in axes]
    sizes = (node.shape(0)[0], groups, len(phases), outputs // len(phases), *counts)
    return node.emit(relax.op.reshape(result, sizes))


def _convolve_each_phase(
    node: Node, weights: Any, phases: Sequence[tuple[Phase, ...]], axes: Sequence[TransposedAxis]
) -> Any:
    groups, _, outputs = shape(weights)[:3]
    sizes = (node.shape(0)[0], groups, 1, outputs, *(axis.count for axis in axes))
    results = []
    for phase in phases:
        if not all(axis_phase.taps for axis_phase in phase):
            results.append(node.emit(relax.op.zeros(sizes, node.dtype(0))))
            continue
        kernel = _phase_weights(node, weights, phase)
        result = _convolve_phase(node, reshape(node, kernel, (groups * outputs, *shape(kernel)[2:])), phase, groups)
        results.append(node.emit(relax.op.reshape(result, sizes)))
    return node.emit(relax.op.concat(results, axis=2))


def _convolve_phase(node: Node, weights: Any, phase: Sequence[Phase], groups: int) -> Any:
    steps = tuple(axis_phase.step for axis_phase in phase)
    pads = tuple((axis_phase.before, axis_phase.after) for axis_phase in phase)
    return convolve(node, node.input(0), weights, Sweep((1,) * len(phase), steps, pads, groups))


def _phase_weights(node: Node, weights: Any, phase: Sequence[Phase]) -> Any:
    """Return the weights of one phase, [groups, outputs, channels, *taps]."""
    for axis, axis_phase in enumerate(phase, 3):
        weights = take(node, weights, axis_phase.taps, axis)
    return permute(node, weights, [0, 2, 1, *range(3, 3 + len(phase))])


def _interleave(node: Node, results: Any, axes: Sequence[TransposedAxis], groups: int) -> Any:
    count = len(axes)
    batch, _, _, outputs, *_ = node.shape_of(results)
    strides = [axis.stride for axis in axes]

    def compute(phases: Any) -> Any:
        def element(image: Any, channel: Any, *index: Any) -> Any:
            positions = [coordinate + axis.end[0] for coordinate, axis in zip(index, axes, strict=True)]
            phase: Any = 0
            for position, stride in zip(positions, strides, strict=True):
                phase = phase * stride + position % stride
            sources = [position // axis.stride - axis.first for position, axis in zip(positions, axes, strict=True)]
            return phases(image, channel // outputs, phase, channel % outputs, *sources)

        return te.compute((batch, groups * outputs, *(axis.end[1] for axis in axes)), element, name="interleaved")

    # With strides of 1 there is one phase, which is the result.
    if count == sum(strides) and all(axis.end[0] == axis.first for axis in axes):
        return node.emit(relax.op.reshape(results, (batch, groups * outputs, *(axis.count for axis in axes))))
    return node.compute(compute, results, name="interleaved")
