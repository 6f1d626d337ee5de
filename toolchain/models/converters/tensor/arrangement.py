"""Elements that change places: between channels and space, out of columns, and into the middle of another size."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx, topi

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node
from toolchain.models.converters.nn.window import given_pads, numbers


@converter("SpaceToDepth")
def space_to_depth(node: Node) -> Any:
    """Convert SpaceToDepth: TVM ignores its mode."""
    block = int(node.attributes["blocksize"])
    batch, channels, height, width = node.shape(0)
    apart = (batch, channels, height // block, block, width // block, block)
    order = [0, 1, 3, 5, 2, 4] if node.attributes.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    parted = node.emit(relax.op.permute_dims(node.emit(relax.op.reshape(node.input(0), apart)), order))
    return relax.op.reshape(parted, (batch, channels * block**2, height // block, width // block))


@converter("CenterCropPad")
def center_crop_pad(node: Node) -> Any:
    """Convert CenterCropPad."""
    value, shape = node.input(0), list(node.shape(0))
    wanted = node.constant(1)
    axes = [axis % len(shape) for axis in node.attributes.get("axes", range(len(shape)))]
    if wanted is None or wanted.size != len(axes):
        raise node.refusal("its shape does not have a number for each axis")
    pads = [(0, 0)] * len(shape)
    for axis, size in zip(axes, map(int, wanted), strict=True):
        more = size - shape[axis]
        if more < 0:
            start = -more // 2
            value = node.emit(relax.op.strided_slice(value, [axis], [start], [start + size]))
        else:
            pads[axis] = (more // 2, more - more // 2)
    if not any(map(sum, pads)):
        return value
    return relax.op.nn.pad(value, list(itertools.chain(*pads)), pad_value=0)


@converter("Col2Im")
def col2im(node: Node) -> Any:
    """Convert Col2Im: each element of the image is the sum of all places in the columns that stand for it."""
    sizes, block = (node.integers(index, "") for index in (1, 2))
    if not sizes or not block:
        raise node.refusal("its image or its block has no axes")
    count = len(sizes)
    strides, dilations = numbers(node, "strides", count, 1), numbers(node, "dilations", count, 1)
    pads = given_pads(node, count)
    batch, columns, _ = node.shape(0)
    steps = [
        (size + sum(pad) - (taps - 1) * step - 1) // stride + 1
        for size, taps, stride, step, pad in zip(sizes, block, strides, dilations, pads, strict=True)
    ]
    apart = (batch, columns // math.prod(block), *block, *steps)

    def compute(data: Any) -> Any:
        taps = [te.reduce_axis((0, size), f"k{axis}") for axis, size in enumerate(block)]

        def element(image: Any, channel: Any, *at: Any) -> Any:
            moved = [
                place + before - tap * step
                for place, (before, _), tap, step in zip(at, pads, taps, dilations, strict=True)
            ]
            fits = [
                tirx.all(place >= 0, place % stride == 0, place < stride * made)
                for place, stride, made in zip(moved, strides, steps, strict=True)
            ]
            found = [place // stride for place, stride in zip(moved, strides, strict=True)]
            value = data(image, channel, *taps, *found)
            return te.sum(tirx.if_then_else(tirx.all(*fits), value, tirx.const(0, data.dtype)), axis=taps)

        return te.compute((*apart[:2], *sizes), element, name="image")

    return node.compute(compute, node.emit(relax.op.reshape(node.input(0), apart)), name="col2im")


@converter("Split")
def split(node: Node) -> Any:
    """Convert Split. TVM's fails for a single part."""
    axis = int(node.attributes.get("axis", 0)) % len(node.shape(0))
    sizes = node.integers(1, "split")
    if node.outputs == 1:
        return node.inputs[0]
    if sizes is None:
        return relax.op.split(node.inputs[0], node.outputs, axis)
    return relax.op.split(node.inputs[0], [int(end) for end in np.cumsum(sizes)[:-1]], axis)


@converter("Pad")
def pad(node: Node) -> Any:
    """Convert Pad. TVM's needs a value that is known before it runs, and pads before it crops."""
    shape = node.shape(0)
    before, after = _pads(node)
    data = node.inputs[0]
    if min(*before, *after, 0) < 0:
        starts = [max(-amount, 0) for amount in before]
        ends = [size - max(-amount, 0) for size, amount in zip(shape, after, strict=True)]
        data = node.emit(relax.op.strided_slice(data, list(range(len(shape))), starts, ends))
        before, after = ([max(amount, 0) for amount in amounts] for amounts in (before, after))
    mode = node.attributes.get("mode", "constant")
    if mode == "constant":
        return _filled(node, data, before, after)
    if mode == "reflect":
        return node.builder.emit_te(topi.nn.mirror_pad, data, before, after, "REFLECT")
    return node.builder.emit_te(topi.nn.circular_pad if mode == "wrap" else topi.nn.replicate_pad, data, before, after)


def _pads(node: Node) -> tuple[list[int], list[int]]:
    """Return how much is padded before and after each axis; less than 0 crops."""
    rank = len(node.shape(0))
    amounts = node.integers(1, "pads")
    axes = None if node.input(3) is None else node.integers(3, "axes")
    if amounts is None:
        raise node.refusal("it does not say how much is padded")
    axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    if len(amounts) != 2 * len(axes):
        raise node.refusal(f"it has {len(amounts)} amounts for {len(axes)} axes, and needs two for each")
    sides = []
    for half in (amounts[: len(axes)], amounts[len(axes) :]):
        side = [0] * rank
        for axis, amount in zip(axes, half, strict=True):
            side[axis] = amount
        sides.append(side)
    return sides[0], sides[1]


def _filled(node: Node, data: Any, before: list[int], after: list[int]) -> Any:
    """Return a tensor with one value around it."""
    value = node.input(2)
    if value is None or node.is_constant(2):
        constant: NDArray[Any] | None = node.constant(2)
        number = node.attributes.get("value", 0.0) if constant is None else constant.item()
        return node.builder.emit_te(topi.nn.pad, data, before, after, number)
    scalar = node.emit(relax.op.reshape(value, ()))
    return node.compute(
        lambda tensor, number: topi.nn.pad(tensor, before, after, number()), data, scalar, name="pad_with_input"
    )
