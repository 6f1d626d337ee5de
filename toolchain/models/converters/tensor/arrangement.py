"""Elements that change places: between channels and space, into parts, and away from edges that are padded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, topi

from toolchain.models.converters import UPSTREAM, Node, as_operator, converter


# TVM ignores its mode.
@converter("SpaceToDepth")
def space_to_depth(node: Node) -> Any:
    block = int(node.attributes["blocksize"])
    batch, channels, height, width = node.shape(0)
    split_shape = (batch, channels, height // block, block, width // block, block)
    order = [0, 1, 3, 5, 2, 4] if node.attributes.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    permuted = node.emit(relax.op.permute_dims(node.emit(relax.op.reshape(node.input(0), split_shape)), order))
    return relax.op.reshape(permuted, (batch, channels * block**2, height // block, width // block))


# TVM's fails for a single output.
@converter("Split")
def split(node: Node) -> Any:
    axis = int(node.attributes.get("axis", 0)) % len(node.shape(0))
    sizes = node.integers(1, "split")
    if sizes is not None and (len(sizes) != node.outputs or sum(sizes) != node.shape(0)[axis]):
        raise node.refusal(f"it splits {node.shape(0)[axis]} elements into {node.outputs} parts of {list(sizes)}")
    if node.outputs == 1:
        return node.inputs[0]
    if sizes is None:
        return relax.op.split(node.inputs[0], node.outputs, axis)
    return relax.op.split(node.inputs[0], [int(end) for end in np.cumsum(sizes)[:-1]], axis)


# TVM's takes negative numbers, and a tensor of a negative size is the result.
@converter("Tile")
def tile(node: Node) -> Any:
    repeats = node.constant(1)
    if repeats is not None and min(repeats.flatten(), default=0) < 0:
        raise node.refusal(f"it repeats its input {repeats.tolist()} times")
    return as_operator(node, f"{UPSTREAM}Tile", node.inputs, dict(node.attributes))


# TVM's needs a constant value, and pads before it crops.
@converter("Pad")
def pad(node: Node) -> Any:
    shape = node.shape(0)
    before, after = _pad_amounts(node)
    data = node.inputs[0]
    if min(*before, *after, 0) < 0:
        starts = [max(-amount, 0) for amount in before]
        ends = [size - max(-amount, 0) for size, amount in zip(shape, after, strict=True)]
        data = node.emit(relax.op.strided_slice(data, list(range(len(shape))), starts, ends))
        before, after = ([max(amount, 0) for amount in amounts] for amounts in (before, after))
    mode = node.attributes.get("mode", "constant")
    if mode == "constant" and node.input(2) is not None and not node.is_constant(2):
        scalar = node.emit(relax.op.reshape(node.input(2), ()))
        return node.compute(
            lambda tensor, number: topi.nn.pad(tensor, before, after, number()), data, scalar, name="pad_with_input"
        )
    if mode == "constant":
        constant: NDArray[Any] | None = node.constant(2)
        number = node.attributes.get("value", 0.0) if constant is None else constant.item()
        return node.builder.emit_te(topi.nn.pad, data, before, after, number)
    if mode == "reflect":
        return node.builder.emit_te(topi.nn.mirror_pad, data, before, after, "REFLECT")
    return node.builder.emit_te(topi.nn.circular_pad if mode == "wrap" else topi.nn.replicate_pad, data, before, after)


def _pad_amounts(node: Node) -> tuple[list[int], list[int]]:
    """Return the padding before and after each axis; a negative amount crops."""
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
