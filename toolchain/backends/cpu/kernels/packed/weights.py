"""Packed weights of a layer as one array of bytes: what a stand-in has, before a template puts them in its order."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu.layers import Dense
from toolchain.models.converters.quantized.packed import PackedWeights


def encode(weights: PackedWeights) -> NDArray[np.uint8]:
    """Return packed weights as an array: the numbers, then the scales and zero points."""
    return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in weights.arrays])


def decode(layer: Dense, held: NDArray[np.uint8]) -> PackedWeights:
    """Return the packed weights of a layer from their array."""
    shape = (layer.outputs, layer.blocks)
    size, grid_bytes = math.prod(layer.weights_shape), 4 * math.prod(shape)
    numbers = held[:size].view(np.int8).reshape(layer.weights_shape)
    grids = [
        np.frombuffer(held[first : first + grid_bytes].tobytes(), np.float32).reshape(shape)
        for first in range(size, held.size, grid_bytes)
    ]
    return PackedWeights(numbers, grids[0], grids[1] if layer.zeros else None, layer.block)


def scaled(weights: PackedWeights, factors: NDArray[np.float64]) -> PackedWeights:
    """Return packed weights times a factor for each output."""
    scales = (weights.scales * factors.reshape(-1, 1)).astype(np.float32)
    return PackedWeights(weights.numbers, scales, weights.zeros, weights.block)


def rounded(weights: NDArray[np.float32], bits: int, block: int) -> PackedWeights:
    """Return weights [outputs, inputs] rounded to numbers of so many bits, around zero.

    Weights that are not finite make a scale that is not: results stay so, too.
    """
    outputs, inputs = weights.shape
    blocks, greatest = -(-inputs // block), (1 << (bits - 1)) - 1
    padded = np.zeros((outputs, blocks * block), np.float32)
    padded[:, :inputs] = weights
    of_blocks = padded.reshape(outputs, blocks, block)
    scales = np.abs(of_blocks).max(axis=2) / np.float32(greatest)
    usable = np.isfinite(scales) & (scales > np.finfo(np.float32).tiny)
    ratios = of_blocks / np.where(usable, scales, 1)[:, :, None]
    numbers = np.where(usable[:, :, None], np.rint(ratios), np.sign(of_blocks))
    scales = np.where(usable | ~np.isfinite(scales), scales, np.float32(0))
    return PackedWeights(
        np.nan_to_num(numbers).reshape(outputs, -1)[:, :inputs].astype(np.int8), scales.astype(np.float32), None, block
    )


def example(layer: Dense) -> NDArray[np.uint8]:
    """Return weights of a layer to measure it with: random bits would be scales that are not numbers."""
    grid = np.ones((layer.outputs, layer.blocks), np.float32)
    return encode(
        PackedWeights(np.ones(layer.weights_shape, np.int8), grid, grid if layer.zeros else None, layer.block)
    )
