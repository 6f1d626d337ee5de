"""Kernels of layers on bytes: they read and write int32 that hold four neighbouring channels of a pixel each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te, tirx

from toolchain.backends.graph import quantization
from toolchain.backends.mali.int8.elements import Elements
from toolchain.backends.mali.int8.epilogues import Epilogue, lane, round_to_byte
from toolchain.backends.mali.int8.layers import BYTE, FOUR, Layer
from toolchain.backends.mali.opencl_functions import dot4


def fours(channels: int) -> int:
    """Return how many int32 hold the channels of a pixel."""
    return -(-channels // FOUR)


def pack_weights(layer: Layer) -> NDArray[Any]:
    """Return what the kernel of a layer multiplies with: HWIO in int32 of four inputs each, or HWO by channel."""
    numbers = layer.numbers
    outputs, inputs, height, width = numbers.shape
    if layer.by_channel:
        kind = np.int32 if layer.is_whole else np.float32
        return pad_channels(np.ascontiguousarray(numbers[:, 0].transpose(1, 2, 0)), outputs).astype(kind)
    # Channels are filled up to fours with zeros, which add nothing to a dot product.
    padded = np.zeros((height, width, fours(outputs) * FOUR, fours(inputs) * FOUR), np.int8)
    padded[:, :, :outputs, :inputs] = numbers.transpose(2, 3, 0, 1)
    packed: NDArray[np.int32] = np.ascontiguousarray(padded.view("<i4").transpose(0, 1, 3, 2))
    return packed


def pad_channels(array: NDArray[Any], channels: int) -> NDArray[Any]:
    """Return an array whose last dimension, channels, is filled with zeros to whole fours."""
    more = fours(channels) * FOUR - channels
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, more)])


def zero_sums(layer: Layer) -> NDArray[np.int32]:
    """Return what the zero of the bytes adds to the sums of each output channel."""
    sums = layer.numbers.astype(np.int64).sum(axis=(1, 2, 3)) * layer.grid.zero
    return pad_channels(sums.astype(np.int32), len(sums))


def pack(data: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """Compute int32 of four channels each, [batch, rows, columns, fours], of bytes in NCHW."""
    batch, channels, height, width = shape
    above = quantization.LEAST[str(data.dtype)] - quantization.LEAST[BYTE]

    def byte(image: Any, row: Any, column: Any, channel: Any) -> Any:
        value = (data(image, channel, row, column).astype("int32") - above) & 255
        return value if channels % FOUR == 0 else tirx.if_then_else(channel < channels, value, tirx.const(0, "int32"))

    def four(image: Any, row: Any, column: Any, group: Any) -> Any:
        return _joined([byte(image, row, column, group * FOUR + index) for index in range(FOUR)])

    return te.compute((batch, height, width, fours(channels)), four, name="packed")


def unpack(words: te.Tensor, shape: Sequence[int], dtype: str) -> te.Tensor:
    """Compute bytes in NCHW, or in a matrix, of what `pack` or a layer computes."""
    below = quantization.LEAST[dtype] - quantization.LEAST[BYTE]

    def byte(image: Any, channel: Any, *pixel: Any) -> Any:
        row, column = pixel or (0, 0)
        return (lane(words(image, row, column, channel // FOUR), channel) + below).astype(dtype)

    return te.compute(tuple(shape), byte, name="unpacked", tag="injective")


def convolve(layer: Layer, words: te.Tensor, weights: te.Tensor, *others: te.Tensor) -> te.Tensor:
    """Compute a layer in NHWC, in numbers.

    Args:
        words: Its bytes, as `pack` computes them.
        weights: What `pack_weights` returned.
        others: What its zero adds, unless the weights are floats; scales.
    """
    total, number = _sums(layer, words, weights, others)
    outputs = len(layer.numbers)
    return te.compute((*total.shape[:3], outputs), number, name="scaled")


def convolve_to_bytes(
    layer: Layer, epilogue: Epilogue, words: te.Tensor, weights: te.Tensor, *others: te.Tensor
) -> te.Tensor:
    """Compute a layer and what follows it in bytes, four channels to an int32.

    Args:
        epilogue: What follows it.
        words: Its bytes, as `pack` computes them.
        weights: What `pack_weights` returned.
        others: What `convolve` takes, and what is added: to each channel, or other images.
    """
    count = len(epilogue.added)
    total, number = _sums(layer, words, weights, others[: len(others) - count])
    added = others[len(others) - count :]

    def level(image: Any, row: Any, column: Any, channel: Any) -> Any:
        return epilogue.byte(number(image, row, column, channel), (image, row, column, channel), added)

    return _in_fours(te.compute(total.shape, level, name="levels"), len(layer.numbers), "requantized")


def elementwise(elements: Elements, *words: te.Tensor) -> te.Tensor:
    """Compute bytes of which each is made of a few others, four channels to an int32.

    Args:
        elements: How.
        words: The bytes of its leaves, as `pack` computes them.
    """
    tensors = {leaf.value.variable: tensor for leaf, tensor in zip(elements.leaves, words, strict=True)}
    number = elements.number(tensors)
    batch, channels, height, width = elements.out.shape or ()
    shape = (batch, height, width, fours(channels) * FOUR)
    levels = te.compute(shape, lambda *position: round_to_byte(number(*position), elements.grid), name="levels")
    return _in_fours(levels, channels, "elements")


def _in_fours(levels: te.Tensor, channels: int, name: str) -> te.Tensor:
    """Compute four bytes to an int32, of an int32 each."""

    def four(image: Any, row: Any, column: Any, group: Any) -> Any:
        return _joined([levels(image, row, column, group * FOUR + index) & 255 for index in range(FOUR)])

    return te.compute((*levels.shape[:3], fours(channels)), four, name=name)


def _sums(layer: Layer, words: te.Tensor, weights: te.Tensor, others: Sequence[te.Tensor]) -> tuple[te.Tensor, Any]:
    """Compute the sums of a layer in NHWC, channels in whole fours; return them, and what makes numbers of them."""
    padded = _padded(layer, words)
    batch, height, width, groups = (int(size) for size in padded.shape)
    rows, columns = (int(size) for size in weights.shape[:2])
    (down, across), (far, wide) = layer.strides, layer.dilation
    shape = (batch, (height - far * (rows - 1) - 1) // down + 1, (width - wide * (columns - 1) - 1) // across + 1)
    inner = [] if layer.by_channel else [te.reduce_axis((0, groups), "rc")]
    over = [te.reduce_axis((0, rows), "ry"), te.reduce_axis((0, columns), "rx"), *inner]

    def step(image: Any, row: Any, column: Any, channel: Any) -> Any:
        pixel = (image, row * down + over[0] * far, column * across + over[1] * wide)
        if not layer.by_channel:
            return te.sum(dot4(padded(*pixel, over[2]), weights(*over, channel)), axis=over)
        byte = lane(padded(*pixel, channel // FOUR), channel)
        factor = byte if layer.is_whole else (byte - layer.grid.zero).astype("float32")
        return te.sum(factor * weights(*over, channel), axis=over)

    total = te.compute((*shape, int(weights.shape[-1])), step, name="sums")

    def number(image: Any, row: Any, column: Any, channel: Any) -> Any:
        *zeros, scales = others
        value = total(image, row, column, channel)
        for zero in zeros:
            value = value - zero(channel)
        return value.astype("float32") * scales(channel)

    return total, number


def _padded(layer: Layer, words: te.Tensor) -> te.Tensor:
    """Compute what a layer sees: at the edges, bytes that say zero."""
    top, left, bottom, right = layer.padding
    if not any(layer.padding):
        return words
    batch, height, width, groups = (int(size) for size in words.shape)
    # Four bytes of the zero point: outside of the image, the sum has to be that of zeros.
    edge = int(np.full(FOUR, layer.grid.zero, np.int8).view("<i4")[0])

    def word(image: Any, row: Any, column: Any, group: Any) -> Any:
        inside = tirx.all(row >= top, row < top + height, column >= left, column < left + width)
        return tirx.if_then_else(inside, words(image, row - top, column - left, group), tirx.const(edge, "int32"))

    return te.compute((batch, height + top + bottom, width + left + right, groups), word, name="padded")


def _joined(bytes_: Sequence[Any]) -> Any:
    first, *others = (byte << 8 * index for index, byte in enumerate(bytes_))
    for other in others:
        first = first | other
    return first
