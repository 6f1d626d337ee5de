"""Packed weights of a layer as one array of bytes: what a stand-in has, before a template puts them in its order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu.layers import Dense
from toolchain.models.converters.quantized.packed import PackedWeights

_BYTE = 8  # bits
_SHORTER = 0.9  # times a scale at which nothing is cut off: the largest weights lose, and the others gain


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
    return replace(weights, scales=scales)


def rounded(weights: NDArray[np.float32], bits: int, block: int) -> PackedWeights:
    """Return weights [outputs, inputs] rounded to numbers of so many bits, without zero points.

    Of a few scales, each block gets the one with the least squares of errors. Weights that are not finite make a scale
    that is not: results stay so, too.
    """
    outputs, inputs = weights.shape
    padded = np.zeros((outputs, -(-inputs // block) * block), np.float32)
    padded[:, :inputs] = weights
    of_blocks = padded.reshape(outputs, -1, block)
    numbers, scales, errors = _rounded_by(of_blocks, _scales(of_blocks, bits)[0], bits)
    for others in _scales(of_blocks, bits)[1:]:
        other_numbers, other_scales, other_errors = _rounded_by(of_blocks, others, bits)
        better = other_errors < errors
        numbers = np.where(better[:, :, None], other_numbers, numbers)
        scales, errors = np.where(better, other_scales, scales), np.minimum(other_errors, errors)
    return PackedWeights(numbers.reshape(outputs, -1)[:, :inputs], scales, None, block)


def _scales(of_blocks: NDArray[np.float32], bits: int) -> list[NDArray[np.float32]]:
    """Return the scales that are tried: the largest weight becomes the greatest number, or of 4 bits the least one."""
    greatest = (1 << (bits - 1)) - 1
    largest = np.abs(of_blocks).max(axis=2)
    usual = largest / np.float32(greatest)
    if bits == _BYTE:
        return [usual]
    place = np.abs(of_blocks).argmax(axis=2)[:, :, None]
    signed = np.take_along_axis(of_blocks, place, axis=2)[:, :, 0]
    return [usual, signed / np.float32(-greatest - 1), np.float32(_SHORTER) * usual]


def _rounded_by(
    of_blocks: NDArray[np.float32], scales: NDArray[np.float32], bits: int
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
    """Return the numbers of blocks, their scales, and the squares of their errors."""
    usable = np.isfinite(scales) & (np.abs(scales) > np.finfo(np.float32).tiny)
    limit = 1 << (bits - 1)
    with np.errstate(invalid="ignore"):
        ratios = np.rint(of_blocks / np.where(usable, scales, np.float32(1))[:, :, None])
        numbers = np.where(usable[:, :, None], ratios.clip(-limit, limit - 1), np.sign(of_blocks))
        kept = np.where(usable | ~np.isfinite(scales), scales, np.float32(0)).astype(np.float32)
        errors = np.square(numbers * kept[:, :, None] - of_blocks).sum(axis=2)
    return np.nan_to_num(numbers).astype(np.int8), kept, errors


def in_words(
    held: PackedWeights, layer: Dense, shape: tuple[int, ...], shifts: NDArray[np.uint32], raised: int = 0
) -> NDArray[np.int32]:
    """Return packed weights in 32-bit words, as kernels read them.

    Args:
        shape: [groups of blocks, blocks of inputs, vectors, blocks of a tile, lanes]. Behind the words of a block of
            inputs are the scales in float32, and then, if there are zero points, these times minus the scales.
        shifts: Where the numbers of neighbouring inputs lie in a word.
        raised: What is added to each number.
    """
    groups, blocks, vectors, of_tile, lanes = shape
    outputs, words = groups * of_tile * lanes, vectors - 1 - layer.zeros
    # Zeros fill up the last word, the last block and the last group.
    numbers = np.full((outputs, blocks, words * len(shifts)), raised, np.uint32)
    padded = np.zeros((outputs, blocks * layer.block), np.int16)
    padded[: layer.outputs, : layer.inputs] = held.numbers
    numbers[:, :, : layer.block] = padded.reshape(outputs, blocks, layer.block) + raised
    numbers &= (1 << layer.bits) - 1
    grids = [held.scales, *([] if held.zeros is None else [-held.scales * held.zeros])]
    packed = np.zeros((outputs, blocks, vectors), np.int32)
    packed[:, :, :words] = (numbers.reshape(outputs, blocks, words, -1) << shifts).sum(3, np.uint32).view(np.int32)
    for number, grid in enumerate(grids):
        packed[: layer.outputs, :, words + number] = np.ascontiguousarray(grid, np.float32).view(np.int32)
    in_groups = packed.reshape(groups, of_tile, lanes, blocks, vectors).transpose(0, 3, 4, 1, 2)
    return np.ascontiguousarray(in_groups).reshape(shape)


def example(layer: Dense) -> NDArray[np.uint8]:
    """Return weights of a layer to measure it with: random bits would be scales that are not numbers."""
    grid = np.ones((layer.outputs, layer.blocks), np.float32)
    return encode(
        PackedWeights(np.ones(layer.weights_shape, np.int8), grid, grid if layer.zeros else None, layer.block)
    )
