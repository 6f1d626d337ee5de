"""Layouts of VTA: as many images as the array has rows, channels in blocks, the last of each filled up with zeros."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.graph.values import shape_of
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.isa.config import VtaConfig

_MOST_WEIGHT = 6  # log2 of the greatest power of two in int8
_PACK = (0, 2, 4, 5, 1, 3)  # (N / R, R, blocks, B, H, W) to (N / R, blocks, H, W, R, B), for an array of R by B
_UNPACK = (0, 4, 1, 5, 2, 3)

Shape = tuple[int, int, int, int]


def blocks(channels: int, block: int) -> int:
    """Return the blocks that hold some channels."""
    return math.ceil(channels / block)


def filled(channels: int, block: int) -> int:
    """Return the channels of the blocks that hold some channels; the same of images and rows."""
    return blocks(channels, block) * block


def image(shape: tuple[int, ...]) -> Shape:
    """Return a shape as that of images; rows of numbers are images of one pixel."""
    batch, channels, *sizes = shape
    height, width = sizes or (1, 1)
    return batch, channels, height, width


def packed_shape(shape: tuple[int, ...], config: VtaConfig) -> tuple[int, ...]:
    """Return the shape of images, or rows of numbers, in blocks of channels."""
    batch, channels, height, width = image(shape)
    rows, block = config.batch, config.block
    return blocks(batch, rows), blocks(channels, block), height, width, rows, block


def pack(data: Any, config: VtaConfig) -> Any:
    """Return the Relax expression of images, or rows of numbers, in blocks of channels."""
    batch, channels, height, width = image(shape_of(data.ty) or ())
    images, count, _, _, rows, block = packed_shape((batch, channels, height, width), config)
    if len(data.ty.shape.values) == 2:  # noqa: PLR2004 - rows
        data = relax.op.reshape(data, (batch, channels, 1, 1))
    # The last rows and channels of the array get zeros.
    missing = images * rows - batch, count * block - channels
    if any(missing):
        data = relax.op.nn.pad(data, [0, missing[0], 0, missing[1], 0, 0, 0, 0])
    return relax.op.permute_dims(relax.op.reshape(data, (images, rows, count, block, height, width)), _PACK)


def unpack(data: Any, shape: tuple[int, ...]) -> Any:
    """Return the Relax expression that undoes `pack`.

    Args:
        data: Images in blocks.
        shape: The shape without blocks: NCHW, or rows and columns.
    """
    batch, channels, height, width = image(shape)
    images, count, _, _, rows, block = shape_of(data.ty) or ()
    filled_shape = (images * rows, count * block)
    plain = relax.op.reshape(relax.op.permute_dims(data, _UNPACK), (*filled_shape, height, width))
    plain = crop(plain, filled_shape, (batch, channels))
    return plain if len(shape) != 2 else relax.op.reshape(plain, shape)  # noqa: PLR2004


def crop(data: Any, sizes: tuple[int, int], targets: tuple[int, int]) -> Any:
    """Return the Relax expression of the first images and channels, without what was filled up.

    Args:
        data: Images.
        sizes: How many images and channels there are.
        targets: How many there are to be.
    """
    axes = [axis for axis in range(2) if sizes[axis] != targets[axis]]
    if not axes:
        return data
    return relax.op.strided_slice(data, axes=axes, begin=[0] * len(axes), end=[targets[axis] for axis in axes])


def pack_weights(weights: NDArray[np.int8], block: int) -> NDArray[np.int8]:
    """Return weights OIHW as (O blocks, I blocks, H, W, B out, B in)."""
    outputs, inputs, height, width = weights.shape
    out_blocks, in_blocks = blocks(outputs, block), blocks(inputs, block)
    padded = np.zeros((out_blocks * block, in_blocks * block, height, width), np.int8)
    padded[:outputs, :inputs] = weights
    split = padded.reshape(out_blocks, block, in_blocks, block, height, width)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 1, 3))


def pack_vector(bias: NDArray[np.int32], config: VtaConfig) -> NDArray[np.int32]:
    """Return one number for each channel as (blocks, R, B), the same in each of the array's R rows."""
    padded = np.zeros(filled(bias.size, config.block), np.int32)
    padded[: bias.size] = bias
    return padded.reshape(-1, 1, config.block).repeat(config.batch, axis=1)


def residual_weights(shift: int, block: int) -> NDArray[np.int8]:
    """Return the weights that multiply a residual with as much of its shift as int8 holds."""
    return np.eye(block, dtype=np.int8) << np.int8(min(shift, _MOST_WEIGHT))


# --- folded images ---------------------------------------------------------------------------------------------------

# A window that moves by two pixels over 3 channels becomes one that moves by one over 12, which fill a block nearly
# whole where 3 leave 13 of its 16 places empty: a 7x7 window on 224x224 is a 4x4 one on 112x112 then.

Pair = tuple[int, int]


@dataclass(frozen=True)
class Folding:
    """Pixels that become channels.

    Attributes:
        step: Rows and columns of pixels that become the channels of one.
        before: Rows and columns of padding above and left of the image.
        size: Rows and columns of the folded image.
        window: Rows and columns of the window on it.
        fill: The byte around the image.
    """

    step: Pair
    before: Pair
    size: Pair
    window: Pair
    fill: int = 0

    def channels(self, channels: int) -> int:
        return channels * math.prod(self.step)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the folded image of one of some shape, NCHW."""
        return shape[0], self.channels(shape[1]), *self.size

    def weights(self, weights: NDArray[np.int8]) -> NDArray[np.int8]:
        """Return weights OIHW for the folded image."""
        outputs, inputs, height, width = weights.shape
        rows, columns = (size * step for size, step in zip(self.window, self.step, strict=True))
        # A window that is no multiple of the step gets rows and columns of zeros.
        padded = np.zeros((outputs, inputs, rows, columns), np.int8)
        padded[:, :, :height, :width] = weights
        split = padded.reshape(outputs, inputs, self.window[0], self.step[0], self.window[1], self.step[1])
        return split.transpose(0, 1, 3, 5, 2, 4).reshape(outputs, self.channels(inputs), *self.window)

    def image(self, data: Any) -> Any:
        """Return the Relax expression of a folded image; what no window reads is left out.

        Args:
            data: NCHW.
        """
        shape = shape_of(data.ty) or ()
        batch, channels, *sizes = shape
        extents = [size * step for size, step in zip(self.size, self.step, strict=True)]
        behind = [extent - size - before for extent, size, before in zip(extents, sizes, self.before, strict=True)]
        if any(missing < 0 for missing in behind):
            ends = [size + min(0, missing) for size, missing in zip(sizes, behind, strict=True)]
            data = relax.op.strided_slice(data, axes=[2, 3], begin=[0, 0], end=ends)
        (top, left), (bottom, right) = self.before, (max(0, missing) for missing in behind)
        if any((top, left, bottom, right)):
            data = relax.op.nn.pad(data, [0, 0, 0, 0, top, bottom, left, right], pad_value=self.fill)
        split = relax.op.reshape(data, (batch, channels, self.size[0], self.step[0], self.size[1], self.step[1]))
        moved = relax.op.permute_dims(split, (0, 1, 3, 5, 2, 4))
        return relax.op.reshape(moved, self.shape(shape))


def folding(layer: Conv2d, channels: int, block: int) -> Folding | None:
    """Return how a layer's image is folded; None if it is not: it would fill more than a block, or nothing is gained.

    Args:
        layer: The layer on the image as it is.
        channels: Those of the image that are no filling.
        block: Channels of a block.
    """
    window, step = layer.kernel, layer.stride
    # Steps beyond the window skip pixels, which would only be loaded for nothing.
    narrow = any(extent < by for extent, by in zip(window, step, strict=True))
    if layer.alone or narrow or step == (1, 1) or channels * math.prod(step) > block:
        return None
    rows, columns = (math.ceil(extent / by) for extent, by in zip(window, step, strict=True))
    size = (layer.out_height - 1 + rows, layer.out_width - 1 + columns)
    return Folding(step, layer.padding[:2], size, (rows, columns), layer.pad)
