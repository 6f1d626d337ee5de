"""What the constants of a quantised network say: weights as bytes with a scale for each channel, biases, and grids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.graph.values import Operation, Value

LEAST = {"uint8": 0, "int8": -128}
"""Least value of a type of byte; the greatest is 255 more."""

_WHOLE = {*LEAST, "int32"}
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
        whole = np.zeros((groups, outputs // groups, groups, inputs, *kernel), np.int16)
        for group, own in enumerate(self.numbers.reshape(groups, outputs // groups, inputs, *kernel)):
            whole[group, :, group] = own
        return Weights(whole.reshape(outputs, groups * inputs, *kernel), self.scales)


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
    whole = operation.out if name == "quantize" else source
    return whole.dtype in _WHOLE and scale.constant is not None and zero.constant is not None


def grid_of(operation: Operation, byte: str) -> Grid | None:
    """Return the grid of a `quantize` or `dequantize` of bytes, if it is one for all channels.

    Args:
        operation: The operation.
        byte: Type that bytes have in the kernels; in the model it may be another.
    """
    source, scale, zero = operation.inputs
    own = operation.out.dtype if operation.name == "quantize" else source.dtype
    if own not in LEAST or scale.array.size != 1 or zero.array.size != 1:
        return None
    return Grid(float(scale.array.reshape(())), int(zero.array.reshape(()))).moved(own, byte)


def constant_of(value: Value) -> NDArray[np.float64] | None:
    """Return what a value is if it follows from constants alone."""
    scaled = _scaled(value)
    if scaled is not None:
        return scaled[0] * scaled[1]
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
        value: What the network multiplies with: OIHW, or [inputs, outputs].
    """
    scaled = _scaled(value)
    if scaled is None:
        return None
    outputs = 1 if len(value.shape or ()) == 2 else 0  # noqa: PLR2004 - a matrix
    numbers, scale = np.moveaxis(scaled[0], outputs, 0), np.moveaxis(scaled[1], outputs, 0)
    same = all(not stride or size == 1 for stride, size in zip(scale.strides[1:], scale.shape[1:], strict=True))
    rows = numbers.reshape(len(numbers), -1)
    if not same or abs(numbers).max() > _BYTE or np.ptp(rows, axis=1).max() > _BYTE:
        return None
    while scale.ndim > 1:
        scale = scale[..., 0]
    return Weights(np.ascontiguousarray(numbers, np.int16), scale.copy())


def _scaled(value: Value) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Return a constant as whole numbers and the scale of each."""
    maker = value.maker
    if maker is None:
        return None
    if maker.name in {"permute_dims", "reshape"}:
        inner = _scaled(maker.inputs[0])
        return None if inner is None else (_moved(maker, inner[0]), _moved(maker, inner[1]))
    held = _held(maker.inputs[0]) if is_dequantize(maker) else None
    if held is None:
        return None
    _, scale, zero = maker.inputs
    axis = int(maker.attributes.axis)
    above = held - _along(zero.array.astype(np.int64), axis, held.ndim)
    return above, np.broadcast_to(_along(scale.array.astype(np.float64), axis, held.ndim), held.shape)


def _moved(operation: Operation, array: NDArray[Any]) -> NDArray[Any]:
    if operation.name == "reshape":
        return array.reshape(operation.out.shape)
    axes = operation.attributes.axes
    return array.transpose(None if axes is None else [int(axis) for axis in axes])


def _held(value: Value) -> NDArray[np.int64] | None:
    """Return whole numbers: a constant, or what `quantize` makes of one."""
    if value.constant is not None:
        return value.array.astype(np.int64)
    maker = value.maker
    if maker is None or not is_quantize(maker) or value.dtype not in LEAST or maker.inputs[0].constant is None:
        return None
    source, scale, zero = (one.array for one in maker.inputs)
    axis, least = int(maker.attributes.axis), LEAST[value.dtype]
    ratio = source.astype(np.float64) / _along(scale.astype(np.float64), axis, source.ndim)
    rounded: NDArray[np.int64] = np.rint(ratio).astype(np.int64)
    rounded += _along(zero.astype(np.int64), axis, source.ndim)
    return rounded.clip(least, least + 255)


def _along(array: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """Return numbers for each place along an axis, or one for all, with as many dimensions as a tensor."""
    if array.size == 1:
        return array.reshape([1] * rank)
    return array.reshape([-1 if number == axis % rank else 1 for number in range(rank)])
