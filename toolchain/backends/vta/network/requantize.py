"""The operations between a layer's sums and its int8 result, as arithmetic on integers.

A scale of 2^-e is the exponent e. Sums of products have the exponents of data and weights added up; a result with a
smaller exponent is those sums, shifted right. Where another byte than 0 stands for 0, its share of the sums and of the
result is the same for all pixels of a channel: it goes into the bias.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.graph.patterns import limits
from toolchain.backends.graph.quantization import constant_of
from toolchain.backends.graph.values import Operation, Value

QUANTIZE = "write a network that VTA can compute with `toolchain quantize`"
STAYS = "keep it on the CPU, or change the network"

_BYTE_MIN, _BYTE_MAX = -128, 127
_MOST_SHIFT, _MOST_RESIDUAL_SHIFT = 30, 15
_MOST_CHANNEL_SHIFT = 15  # of five bits with their sign
_MOST_SUM = 2**31 - 1
_HALF = 0.5

Readers = dict[Value, list[Operation]]
"""By value, the operations that read it."""


class UnfitError(Exception):
    """A layer that VTA cannot compute; the hint names the way out."""

    def __init__(self, cause: str, hint: str = STAYS) -> None:
        super().__init__(cause)
        self.cause, self.hint = cause, hint


@dataclass
class Chain:
    """The operations on the sums of a layer.

    Attributes:
        end: The operation that makes int8 of them.
        bias: The sum of the constants that are added, by output channel.
        residual: The `dequantize` of the int8 tensor that is added; None without such a tensor.
        bounds: Least and greatest value of each activation, in order.
    """

    end: Operation
    bias: NDArray[np.float64]
    residual: Operation | None = None
    bounds: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class ByteGrid:
    """The numbers that the bytes of an activation stand for: (byte - zero) * 2^-exponent."""

    exponent: int
    zero: int = 0


def is_dequantize(operation: Operation | None) -> bool:
    """Whether an operation converts integers to float32, with a constant scale and zero point."""
    return _is_rounding(operation, "dequantize")


def is_quantize(operation: Operation | None) -> bool:
    """Whether an operation converts float32 to integers, with a constant scale and zero point."""
    return _is_rounding(operation, "quantize")


def _is_rounding(operation: Operation | None, name: str) -> bool:
    return (
        operation is not None
        and operation.name == name
        and all(value.constant is not None for value in operation.inputs[1:])
    )


def grid(operation: Operation, title: str) -> ByteGrid:
    """Return the grid of the int8 side of a `quantize` or `dequantize`.

    Args:
        title: Names its tensor in the error.

    Raises:
        UnfitError: The tensor is not int8 with one power of two as its scale, and one zero point.
    """
    powers, zeros = np.unique(_exponents(operation, title)), np.unique(operation.inputs[2].array)
    for values, name in ((powers, "scales"), (zeros, "zero points")):
        if values.size != 1:
            raise UnfitError(f"the {name} of {title} differ between channels", QUANTIZE)
    return ByteGrid(int(powers[0]), int(zeros[0]))


def exponents(operation: Operation, title: str) -> NDArray[np.int64]:
    """Return the exponents of weights, one or one for each channel; see `grid`. Their zero points must be 0."""
    powers = _exponents(operation, title)
    if operation.inputs[2].array.any():
        raise UnfitError(f"the zero point of {title} is not 0", QUANTIZE)
    return powers


def _exponents(operation: Operation, title: str) -> NDArray[np.int64]:
    source, scale, _ = operation.inputs
    dtype = operation.out.dtype if operation.name == "quantize" else source.dtype
    if dtype != "int8":
        raise UnfitError(f"the type of {title} is {dtype}, not int8", QUANTIZE)
    # frexp returns mantissas from 0.5 on: that of a power of two is 0.5.
    mantissas, powers = np.frexp(scale.array.reshape(-1))
    odd = scale.array.reshape(-1)[mantissas != _HALF]
    if odd.size:
        raise UnfitError(f"the scale of {title}, {float(odd[0]):g}, is not a power of two", QUANTIZE)
    return np.asarray(1 - powers, np.int64)


def follow(value: Value, channels: int, readers: Readers) -> Chain:
    """Follow the sums of a layer up to the operation that makes int8 of them.

    Args:
        value: The sums.
        channels: Output channels of the layer.
        readers: The operations that read each value.

    Raises:
        UnfitError: They do not become int8, or VTA cannot compute an operation on the way.
    """
    bias, residual, bounds = np.zeros(channels), None, list[tuple[float, float]]()
    while True:
        if value.readers != 1 or value.escapes:
            raise UnfitError("its result is read as floats: it is not quantized in the file", QUANTIZE)
        reader = readers[value][0]
        if _is_rounding(reader, "quantize"):
            return Chain(reader, bias, residual, bounds)
        bound = limits(reader)
        if bound is not None:
            bounds.append(bound)
            value = reader.out
            continue
        # The array bounds sums after all additions.
        if reader.name != "add" or bounds:
            raise UnfitError(f"{reader.name or 'an operation'} follows it before its result is int8")
        other = reader.inputs[1] if reader.inputs[0] is value else reader.inputs[0]
        if (numbers := constant_of(other)) is not None:
            bias = bias + _channel_bias(numbers, channels, len(value.shape or ()))
        elif residual is None:
            residual = other.maker
            if residual is None or not is_dequantize(residual):
                raise UnfitError("what is added to it is not int8: it is not quantized in the file", QUANTIZE)
            if other.shape != value.shape:
                raise UnfitError("what is added to it has another shape")
        else:
            raise UnfitError("more than one tensor is added to it")
        value = reader.out


def _channel_bias(numbers: NDArray[np.float64], channels: int, rank: int) -> NDArray[np.float64]:
    shape = (1,) * (rank - numbers.ndim) + numbers.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        raise UnfitError("the constant that is added to it differs within a channel")
    return np.broadcast_to(numbers.reshape(-1), (channels,))


@dataclass(frozen=True)
class Integers:
    """A chain as integers.

    Attributes:
        shift: Right shift of the sums.
        channel_shifts: Further right shift of each channel's sums; None if there is none.
        bias: One number for each channel, with half a step, as a shift rounds down, and with the zero points' share.
        residual_shift: Left shift of the residual; None if there is none.
        low: Lower bound of the result.
        high: Upper bound.
    """

    shift: int
    channel_shifts: NDArray[np.int32] | None
    bias: NDArray[np.int32]
    residual_shift: int | None
    low: int
    high: int


def integers(chain: Chain, weights: NDArray[np.int8], sums: int | NDArray[np.int64], zero: int = 0) -> Integers:
    """Return a chain as integers.

    Args:
        weights: OIHW.
        sums: Exponent of the sums of products, or one for each channel.
        zero: The byte of the layer's input that stands for 0.

    Raises:
        UnfitError: A shift is out of range, or a sum may be.
    """
    result = grid(chain.end, "its result")
    units = np.broadcast_to(sums, chain.bias.shape)
    shifts = units - result.exponent
    for bits in (shifts.max(), shifts.min()):
        shift = _check_shift(int(bits), _MOST_SHIFT, "its sums would have to be shifted right")
    channel_shifts = _channel_shifts(shifts - shift, chain)
    # Half a step of the result is added, as a shift rounds down. All below a unit may be cut off: with it or without,
    # a sum lies on the same side of the next half.
    scaled = np.ldexp(chain.bias, units)
    bias = np.where(shifts > 0, np.floor(scaled + 2.0 ** (shifts - 1)), np.rint(scaled))
    bias += np.ldexp(float(result.zero), shifts)
    bias -= zero * weights.sum(axis=(1, 2, 3), dtype=np.int64)
    residual_shift, residual_most = None, 0
    if chain.residual is not None:
        addend = grid(chain.residual, "what is added to it")
        bits = int(units[0]) - addend.exponent
        residual_shift = _check_shift(bits, _MOST_RESIDUAL_SHIFT, "what is added to it would have to be shifted left")
        residual_most = -_BYTE_MIN << residual_shift
        bias -= addend.zero << residual_shift
    products = np.abs(weights.astype(np.int64)).sum(axis=(1, 2, 3)) * -_BYTE_MIN
    largest = float((products + np.abs(bias) + residual_most).max())
    if not largest <= _MOST_SUM:
        raise UnfitError(f"its sums may reach {largest:g}, but int32 ends at {_MOST_SUM}", QUANTIZE)
    # Rounding keeps the order of numbers, so the bounds may be rounded instead of the results.
    ends = np.array([_BYTE_MIN, _BYTE_MAX], float)
    for low, high in chain.bounds:
        lower, upper = np.clip(np.rint(np.ldexp([low, high], result.exponent)) + result.zero, _BYTE_MIN, _BYTE_MAX)
        ends = np.minimum(np.maximum(ends, lower), upper)
    return Integers(shift, channel_shifts, bias.astype(np.int32), residual_shift, int(ends[0]), int(ends[1]))


def _channel_shifts(shifts: NDArray[np.int64], chain: Chain) -> NDArray[np.int32] | None:
    """Return the shifts of channels beyond the least of them; None if all are 0."""
    if not shifts.any():
        return None
    if chain.residual is not None:
        raise UnfitError("its scales differ between channels, and something is added to it", QUANTIZE)
    if shifts.max() > _MOST_CHANNEL_SHIFT:
        raise UnfitError(f"the scales of its channels are {int(shifts.max())} bits apart", QUANTIZE)
    return shifts.astype(np.int32)


def _check_shift(bits: int, limit: int, problem: str) -> int:
    if not 0 <= bits <= limit:
        raise UnfitError(f"{problem} by {bits} bits, but VTA's kernels can shift by 0 to {limit}", QUANTIZE)
    return bits
