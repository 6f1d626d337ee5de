"""Layouts of VTA: channels in blocks, the last block filled up with zeros."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.graph.values import shape_of

_MOST_WEIGHT = 6  # log2 of the greatest power of two in int8
_TRANSPOSE = (0, 1, 4, 5, 2, 3)  # (N, blocks, 1, B, H, W) to (N, blocks, H, W, 1, B); the same transposes it back

Shape = tuple[int, int, int, int]


def blocks(channels: int, block: int) -> int:
    """Return the blocks that hold some channels."""
    return math.ceil(channels / block)


def filled(channels: int, block: int) -> int:
    """Return the channels of the blocks that hold some channels."""
    return blocks(channels, block) * block


def image(shape: tuple[int, ...]) -> Shape:
    """Return a shape as that of images; rows of numbers are images of one pixel."""
    batch, channels, *sizes = shape
    height, width = sizes or (1, 1)
    return batch, channels, height, width


def packed_shape(shape: tuple[int, ...], block: int) -> tuple[int, ...]:
    """Return the shape of images, or rows of numbers, in blocks of channels."""
    batch, channels, height, width = image(shape)
    return batch, blocks(channels, block), height, width, 1, block


def packed(data: Any, block: int) -> Any:
    """Return the Relax expression of images, or rows of numbers, in blocks of channels."""
    batch, channels, height, width = image(shape_of(data.ty) or ())
    count = blocks(channels, block)
    if len(data.ty.shape.values) == 2:  # noqa: PLR2004 - rows
        data = relax.op.reshape(data, (batch, channels, 1, 1))
    if channels % block:
        missing = filled(channels, block) - channels
        data = relax.op.nn.pad(data, [0, 0, 0, missing, 0, 0, 0, 0])
    return relax.op.permute_dims(relax.op.reshape(data, (batch, count, 1, block, height, width)), _TRANSPOSE)


def unpacked(data: Any, shape: tuple[int, ...]) -> Any:
    """Return the Relax expression that undoes `packed`.

    Args:
        data: Images in blocks.
        shape: What they are to have without: NCHW, or rows and columns.
    """
    batch, channels, height, width = image(shape)
    _, count, _, _, _, block = shape_of(data.ty) or ()
    plain = relax.op.reshape(relax.op.permute_dims(data, _TRANSPOSE), (batch, count * block, height, width))
    if channels % block:
        plain = relax.op.strided_slice(plain, axes=[1], begin=[0], end=[channels])
    return plain if len(shape) != 2 else relax.op.reshape(plain, shape)  # noqa: PLR2004


def packed_weights(weights: NDArray[np.int8], block: int) -> NDArray[np.int8]:
    """Return weights OIHW as (O blocks, I blocks, H, W, B out, B in)."""
    outputs, inputs, height, width = weights.shape
    out_blocks, in_blocks = blocks(outputs, block), blocks(inputs, block)
    whole = np.zeros((out_blocks * block, in_blocks * block, height, width), np.int8)
    whole[:outputs, :inputs] = weights
    apart = whole.reshape(out_blocks, block, in_blocks, block, height, width)
    return np.ascontiguousarray(apart.transpose(0, 2, 4, 5, 1, 3))


def packed_bias(bias: NDArray[np.int32], block: int) -> NDArray[np.int32]:
    """Return one number for each channel as (blocks, 1, B)."""
    whole = np.zeros(filled(bias.size, block), np.int32)
    whole[: bias.size] = bias
    return whole.reshape(-1, 1, block)


def residual_weights(shift: int, block: int) -> NDArray[np.int8]:
    """Return the weights that multiply a residual with as much of its shift as int8 holds."""
    return np.eye(block, dtype=np.int8) << np.int8(min(shift, _MOST_WEIGHT))
