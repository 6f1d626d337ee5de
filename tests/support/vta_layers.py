"""Layers for VTA, random tensors for them, and what they compute in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toolchain.backends.vta.codegen.layers import Conv2d, Pool
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig

# Height and width, channels of x and y, kernel, padding, stride of ResNet-18's convolutions behind the first, and how
# often it has them: the tasks of the tutorial that this backend succeeds.
RESNET = [
    ((56, 64, 64, 3, 1, 1), 4),
    ((56, 64, 128, 1, 0, 2), 1),
    ((56, 64, 128, 3, 1, 2), 1),
    ((28, 128, 128, 3, 1, 1), 3),
    ((28, 128, 256, 1, 0, 2), 1),
    ((28, 128, 256, 3, 1, 2), 1),
    ((14, 256, 256, 3, 1, 1), 3),
    ((14, 256, 512, 1, 0, 2), 1),
    ((14, 256, 512, 3, 1, 2), 1),
    ((7, 512, 512, 3, 1, 1), 3),
]


def task(size: int, inputs: int, outputs: int, kernel: int, pad: int, stride: int) -> Conv2d:
    """Return a square layer without bias that is shifted by 8 and clipped to 0 to 127."""
    return Conv2d(1, size, size, inputs, outputs, (kernel,) * 2, (stride,) * 2, (pad,) * 4, 8, 0, 127, bias=False)


def tensors(layer: Conv2d, seed: int = 0, config: VtaConfig = DEFAULT) -> list[np.ndarray]:
    """Return random arguments of a layer, in their order; the last one is to be written."""
    random = np.random.default_rng(seed)
    limits = {"int8": (-128, 128), "int32": (-(1 << 20), 1 << 20)}
    arrays = [random.integers(*limits[kind], shape).astype(kind) for shape, kind in layer.arguments(config)]
    if layer.channel_shifts:
        position = 2 + layer.bias
        arrays[position] = random.integers(0, 16, arrays[position].shape).astype(np.int32)
    if layer.is_filled:
        arrays[-2][:] = layer.pad
    if layer.residual_shift is not None:
        arrays[-2 - layer.is_filled] = (np.eye(config.block) * (1 << min(layer.residual_shift, 6))).astype(np.int8)
    return arrays


def reference(layer: Conv2d, arguments: list[np.ndarray]) -> np.ndarray:
    """Return what a layer writes, computed with 64 bits and then taken as 32, as the machine does."""
    x, weights, *others = (argument.astype(np.int64) for argument in arguments[:-1])
    top, left, bottom, right = layer.padding
    around = ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0))
    x = np.pad(x, around, constant_values=layer.pad)
    rows, columns = layer.sum_height, layer.sum_width
    sums = np.zeros((*arguments[-1].shape[:2], rows, columns, *arguments[-1].shape[-2:]), np.int64)
    for row in range(layer.kernel[0]):
        for column in range(layer.kernel[1]):
            across = slice(row, row + (rows - 1) * layer.stride[0] + 1, layer.stride[0])
            along = slice(column, column + (columns - 1) * layer.stride[1] + 1, layer.stride[1])
            sums += (_apart if layer.alone else _products)(x[:, :, across, along], weights[:, :, row, column])
    if layer.bias:
        sums += others[0][:, None, None]
    if layer.residual_shift is not None:
        sums += others[layer.bias + layer.channel_shifts] << layer.residual_shift
    sums = sums.astype(np.int32)
    if layer.pool is not None:
        sums = maxima(layer.pool, sums)
    sums >>= layer.shift
    if layer.channel_shifts:
        sums >>= others[layer.bias][:, None, None].astype(np.int32)
    return np.clip(sums, layer.low, layer.high).astype(np.int8)


def maxima(pool: Pool, sums: np.ndarray) -> np.ndarray:
    """Return the maximum of each window, of the sums that are not outside; rows and columns are axes 2 and 3."""
    top, left, bottom, right = pool.outside
    inside = np.zeros((*sums.shape[2:4], *(1,) * (sums.ndim - 4)), bool)
    inside[top : inside.shape[0] - bottom, left : inside.shape[1] - right] = True
    masked = np.where(inside, sums, np.iinfo(sums.dtype).min)
    windows = sliding_window_view(masked, pool.window, (2, 3))[:, :, :: pool.stride[0], :: pool.stride[1]]
    return windows.max((-2, -1))


def _products(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Add up over blocks and lanes; doubles hold such sums exactly, and multiply matrices faster than integers."""
    product = np.tensordot(x.astype(np.float64), weights.astype(np.float64), ([1, 5], [1, 3]))
    return product.transpose(0, 4, 1, 2, 3, 5).astype(np.int64)


def _apart(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Add up over the lanes of each block."""
    return np.einsum("nbhwri,boi->nbhwro", x, weights[:, 0])
