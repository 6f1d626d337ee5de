"""The constants of a quantized network: weights as bytes with a scale for each channel, biases, and grids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.graph.kernels import UNPACK
from toolchain.backends.graph.values import Operation, Value
from toolchain.models.converters.quantized import packed
from toolchain.models.converters.quantized.packed import PackedWeights

LEAST = {"uint8": 0, "int8": -128}
"""Least value of a type of byte; the greatest is 255 more."""

_INTEGERS = {*LEAST, "int32"}
_BYTE = 255  # steps of a byte


@dataclass(frozen=True)
class Grid:
    """The numbers that bytes can say: scale * (byte - zero)."""

    scale: float
    zero: int

    def moved(self, before: str, after: str) -> Grid:
        """Return the grid of another type of byte for the same numbers."""
        return replace(self, zero=self.zero + LEAST[after] - LEAST[before])


NUMBERS = Grid(1.0, 0)
"""Stands for the grid of a tensor of numbers."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights as whole numbers.

    Attributes:
        numbers: By how much their bytes lie above their zero, int16, the output channels first: of each channel, the
            greatest is 255 more than the least at most.
        scales: Scale of each output channel.
    """

    numbers: NDArray[np.int16]
    scales: NDArray[np.float64]

    @property
    def has_offset(self) -> bool:
        """Whether some do not fit int8."""
        limits = np.iinfo(np.int8)
        return bool(self.numbers.min() < limits.min or self.numbers.max() > limits.max)

    def of_one_group(self, groups: int) -> Weights:
        """Return the weights of a convolution in groups as those of one in a single group, zeros between groups."""
        outputs, inputs, *kernel = self.numbers.shape
        padded = np.zeros((groups, outputs // groups, groups, inputs, *kernel), np.int16)
        for group, group_weights in enumerate(self.numbers.reshape(groups, outputs // groups, inputs, *kernel)):
            padded[group, :, group] = group_weights
        return Weights(padded.reshape(outputs, groups * inputs, *kernel), self.scales)


def is_quantize(operation: Operation | None) -> bool:
    """Whether an operation makes bytes of float32, on a grid that is known ahead of time."""
    return _is_rounding(operation, "quantize") and operation.inputs[0].dtype == "float32"  # type: ignore[union-attr]


def is_dequantize(operation: Operation | None) -> bool:
    """Whether an operation makes float32 of bytes (or of a bias in int32), on a grid that is known ahead of time."""
    return _is_rounding(operation, "dequantize") and operation.out.dtype == "float32"  # type: ignore[union-attr]


def _is_rounding(operation: Operation | None, name: str) -> bool:
    if operation is None or operation.name != name:
        return False
    source, scale, zero = operation.inputs
    integers = operation.out if name == "quantize" else source
    return integers.dtype in _INTEGERS and scale.constant is not None and zero.constant is not None


def grid_of(operation: Operation, byte: str) -> Grid | None:
    """Return the grid of a `quantize` or `dequantize` of bytes, if it is one for all channels.

    Args:
        byte: Type that bytes have in the kernels; in the model it may be another.
    """
    source, scale, zero = operation.inputs
    dtype = operation.out.dtype if operation.name == "quantize" else source.dtype
    if dtype not in LEAST or scale.array.size != 1 or zero.array.size != 1:
        return None
    return Grid(float(scale.array.reshape(())), int(zero.array.reshape(()))).moved(dtype, byte)


def constant_of(value: Value) -> NDArray[np.float64] | None:
    """Return the numbers of a value that follows from constants alone; None for other values."""
    scaled = _integers_and_scales(value)
    if scaled is not None:
        return scaled[0] * scaled[1]
    if value.maker is not None and value.maker.name == UNPACK:
        return _unpack(value.maker).unpacked().astype(np.float64)
    transposed, reshaped = _transposed(value), _reshaped(value)
    if transposed is not None:
        return transposed.unpacked().T.astype(np.float64)
    if reshaped is not None:
        return reshaped.unpacked().astype(np.float64).reshape(value.shape)
    return None if value.constant is None else value.array.astype(np.float64)


def fold_to_constant(value: Value) -> Value:
    """Return a value after making it a constant, if it follows from constants alone."""
    numbers = constant_of(value) if value.constant is None and value.dtype == "float32" else None
    if numbers is not None:
        value.constant = relax.const(numbers.astype(np.float32), "float32")
    return value


def weights(value: Value) -> Weights | None:
    """Return the weights that a value is made of, if they are bytes with a scale for each output channel.

    Args:
        value: The weights in the network: OIHW, or [inputs, outputs].
    """
    scaled = _integers_and_scales(value)
    if scaled is None:
        return None
    outputs = 1 if len(value.shape or ()) == 2 else 0  # noqa: PLR2004 - a matrix
    numbers, scale = np.moveaxis(scaled[0], outputs, 0), np.moveaxis(scaled[1], outputs, 0)
    same = all(not stride or size == 1 for stride, size in zip(scale.strides[1:], scale.shape[1:], strict=True))
    rows = numbers.reshape(len(numbers), -1)
    if not same or abs(numbers).max() > _BYTE or np.ptp(rows, axis=1).max() > _BYTE:
        return None
    # Only the channel matters by now: all other axes repeat one scale.
    while scale.ndim > 1:
        scale = scale[..., 0]
    return Weights(np.ascontiguousarray(numbers, np.int16), scale.copy())


def packed_weights(value: Value) -> PackedWeights | None:
    """Return the packed weights that a matrix [inputs, outputs], or a filter of 1x1, is made of; None for other values.

    Bytes with a scale for each output are packed weights in one block.
    """
    in_blocks = _transposed(value) or _reshaped(value)
    if in_blocks is not None:
        return in_blocks
    shape = value.shape or ()
    in_bytes = weights(value) if len(shape) == 2 or shape[2:] == (1, 1) else None  # noqa: PLR2004 - a matrix
    if in_bytes is None or in_bytes.has_offset:
        return None
    in_bytes = Weights(in_bytes.numbers.reshape(in_bytes.numbers.shape[:2]), in_bytes.scales)
    numbers, scales = in_bytes.numbers.astype(np.int8), in_bytes.scales.astype(np.float32).reshape(-1, 1)
    return PackedWeights(numbers, scales, None, numbers.shape[1])


def _transposed(value: Value) -> PackedWeights | None:
    """Return the packed weights that a value is the transpose of."""
    transpose = value.maker
    unpack = transpose.inputs[0].maker if transpose is not None and transpose.name == "permute_dims" else None
    return None if unpack is None or unpack.name != UNPACK else _unpack(unpack)


def _reshaped(value: Value) -> PackedWeights | None:
    """Return the packed weights that a filter of 1x1 is the reshaped matrix of."""
    reshape = value.maker
    unpack = reshape.inputs[0].maker if reshape is not None and reshape.name == "reshape" else None
    return None if unpack is None or unpack.name != UNPACK else _unpack(unpack)


def _unpack(operation: Operation) -> PackedWeights:
    block, rounds = operation.values
    return packed.of_arrays([value.array for value in operation.inputs], int(block), rounds=bool(rounds))


def _integers_and_scales(value: Value) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Return a constant as whole numbers and the scale of each."""
    maker = value.maker
    if maker is None:
        return None
    if maker.name in {"permute_dims", "reshape"}:
        inner = _integers_and_scales(maker.inputs[0])
        return None if inner is None else (_follow_shape(maker, inner[0]), _follow_shape(maker, inner[1]))
    integers = _integers(maker.inputs[0]) if is_dequantize(maker) else None
    if integers is None:
        return None
    _, scale, zero = maker.inputs
    axis = int(maker.attributes.axis)
    above = integers - _align(zero.array.astype(np.int64), axis, integers.ndim)
    return above, np.broadcast_to(_align(scale.array.astype(np.float64), axis, integers.ndim), integers.shape)


def _follow_shape(operation: Operation, array: NDArray[Any]) -> NDArray[Any]:
    if operation.name == "reshape":
        return array.reshape(operation.out.shape)
    axes = operation.attributes.axes
    return array.transpose(None if axes is None else [int(axis) for axis in axes])


def _integers(value: Value) -> NDArray[np.int64] | None:
    """Return whole numbers: a constant, or what `quantize` makes of one."""
    if value.constant is not None:
        return value.array.astype(np.int64)
    maker = value.maker
    if maker is None or not is_quantize(maker) or value.dtype not in LEAST or maker.inputs[0].constant is None:
        return None
    source, scale, zero = (tensor.array for tensor in maker.inputs)
    # Weights may be floats behind a `quantize`: the bytes that it would make of them.
    axis, lowest = int(maker.attributes.axis), LEAST[value.dtype]
    ratio = source.astype(np.float64) / _align(scale.astype(np.float64), axis, source.ndim)
    rounded: NDArray[np.int64] = np.rint(ratio).astype(np.int64)
    rounded += _align(zero.astype(np.int64), axis, source.ndim)
    return rounded.clip(lowest, lowest + 255)


def _align(array: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """Return numbers for each place along an axis, or one for all, with as many dimensions as a tensor."""
    if array.size == 1:
        return array.reshape([1] * rank)
    return array.reshape([-1 if number == axis % rank else 1 for number in range(rank)])
