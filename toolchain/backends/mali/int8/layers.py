"""Which layers of a quantised network compute on bytes: convolutions, dense layers, and convolutions by channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.graph import quantization
from toolchain.backends.graph.values import Operation

BYTE = "int8"
"""What bytes are in kernels, whatever they are in the model."""

FOUR = 4
_ENDS = (-128, 127)
_MATRIX = 2


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer on bytes.

    Attributes:
        bytes: Its data as bytes, NCHW or a matrix.
        shape: Their shape as NCHW.
        grid: What the bytes say, as int8.
        numbers: What they are multiplied with, OIHW: whole numbers, or floats for each channel by itself.
        scales: By what the sum of an output channel is multiplied, float32.
        by_channel: Whether each channel is convolved by itself.
        strides: Down and across.
        padding: Above, left, below, right.
        dilation: Down and across.
    """

    bytes: Any
    shape: tuple[int, ...]
    grid: quantization.Grid
    numbers: NDArray[Any]
    scales: NDArray[np.float32]
    by_channel: bool = False
    strides: Sequence[int] = (1, 1)
    padding: Sequence[int] = (0, 0, 0, 0)
    dilation: Sequence[int] = (1, 1)

    @property
    def is_whole(self) -> bool:
        """Whether sums are whole numbers."""
        return bool(np.issubdtype(self.numbers.dtype, np.integer))


def layer_of(operation: Operation) -> Layer | None:
    """Return what a convolution or a product of matrices computes, if its data are bytes that kernels here take."""
    if operation.name not in {"nn.conv2d", "matmul"} or operation.out.dtype != "float32":
        return None
    data, held = operation.inputs
    if not quantization.is_dequantize(data.maker):
        return None
    assert data.maker is not None  # noqa: S101 - `is_dequantize` says so
    grid, bytes_ = quantization.grid_of(data.maker, BYTE), data.maker.inputs[0]
    if grid is None or bytes_.variable is None or bytes_.shape is None:
        return None
    weights = quantization.weights(held)
    whole = weights if weights is not None and not weights.has_offset and _is_exact(grid, weights) else None
    if operation.name == "matmul":
        return _dense(bytes_, grid, whole)
    return _convolution(operation, bytes_, grid, whole)


def _convolution(
    operation: Operation, value: Any, grid: quantization.Grid, whole: quantization.Weights | None
) -> Layer | None:
    attributes = operation.attributes
    layouts = (str(attributes.data_layout), str(attributes.kernel_layout), str(attributes.out_layout))
    channels, groups = value.shape[1], int(attributes.groups)
    by_channel = groups > 1 and groups == channels == (operation.out.shape or (0, 0))[1]
    if layouts != ("NCHW", "OIHW", "NCHW") or (groups != 1 and not by_channel):
        return None
    settings = [[int(one) for one in getattr(attributes, name)] for name in ("strides", "padding", "dilation")]
    if whole is not None:
        return Layer(value.variable, value.shape, grid, whole.numbers, _scales(grid, whole), by_channel, *settings)
    floats = quantization.constant_of(operation.inputs[1]) if by_channel else None
    if floats is None or not _is_normal(np.array([grid.scale])):
        return None
    scales = np.full(channels, grid.scale, np.float32)
    return Layer(value.variable, value.shape, grid, floats.astype(np.float32), scales, by_channel, *settings)


def _dense(value: Any, grid: quantization.Grid, whole: quantization.Weights | None) -> Layer | None:
    """Return a product of matrices as a convolution of pixels."""
    if whole is None or len(value.shape) != _MATRIX or whole.numbers.ndim != _MATRIX:
        return None
    numbers = whole.numbers[:, :, None, None]
    return Layer(value.variable, (*value.shape, 1, 1), grid, numbers, _scales(grid, whole))


def _scales(grid: quantization.Grid, whole: quantization.Weights) -> NDArray[np.float32]:
    found: NDArray[np.float32] = (whole.scales * grid.scale).astype(np.float32)
    return found


def _is_exact(grid: quantization.Grid, weights: quantization.Weights) -> bool:
    """Whether sums fit int32 whatever the bytes are, and scales are neither lost nor endless in single precision."""
    above = max(abs(end - zero) for end in _ENDS for zero in (0, grid.zero))
    sums = abs(weights.numbers.astype(np.int64)).reshape(len(weights.numbers), -1).sum(axis=1)
    return bool(sums.max() * above <= np.iinfo(np.int32).max) and _is_normal(weights.scales * grid.scale)


def _is_normal(scales: NDArray[np.float64]) -> bool:
    single = np.finfo(np.float32)
    return bool(np.all((abs(scales) >= single.tiny) & (abs(scales) <= single.max)))
