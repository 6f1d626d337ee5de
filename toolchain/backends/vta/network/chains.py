"""What follows a layer of a quantized network up to its int8 result, as arithmetic on whole numbers.

A scale of 2^-e is the exponent e. Sums of products have the exponents of data and weights added up; a result with a
smaller exponent is those sums, shifted right. Where another byte than 0 stands for 0, what that makes of the sums, and
what it is to be added to the result, is the same for all pixels of a channel: it goes into the bias.
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

_LEAST, _GREATEST = -128, 127
_MOST_SHIFT, _MOST_RESIDUAL_SHIFT = 30, 15
_MOST_CHANNEL_SHIFT = 15  # of five bits with their sign
_MOST_SUM = 2**31 - 1
_HALF = 0.5

Readers = dict[Value, list[Operation]]
"""By value, the operations that read it."""


class UnfitError(Exception):
    """A layer that VTA cannot compute.

    Args:
        cause: Why.
        hint: What helps.
    """

    def __init__(self, cause: str, hint: str = STAYS) -> None:
        super().__init__(cause)
        self.cause, self.hint = cause, hint


@dataclass
class Chain:
    """What is done to the sums of a layer.

    Attributes:
        end: The operation that makes int8 of them.
        bias: What is added to each output channel.
        residual: The operation that makes numbers of the int8 tensor that is added; None if there is none.
        bounds: Least and greatest value of each activation, in order.
    """

    end: Operation
    bias: NDArray[np.float64]
    residual: Operation | None = None
    bounds: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Grid:
    """What the bytes of an activation stand for: (byte - zero) * 2^-exponent.

    Attributes:
        exponent: Of the scale.
        zero: The byte that stands for 0.
    """

    exponent: int
    zero: int = 0


def is_dequantize(operation: Operation | None) -> bool:
    """Whether an operation makes float32 of whole numbers, on a grid that is known ahead of time."""
    return _is_rounding(operation, "dequantize")


def is_quantize(operation: Operation | None) -> bool:
    """Whether an operation makes whole numbers of float32, on a grid that is known ahead of time."""
    return _is_rounding(operation, "quantize")


def _is_rounding(operation: Operation | None, name: str) -> bool:
    return operation is not None and operation.name == name and _on_constants(operation)


def _on_constants(operation: Operation) -> bool:
    return all(one.constant is not None for one in operation.inputs[1:])


def grid(operation: Operation, what: str) -> Grid:
    """Return what a `quantize` or `dequantize` says of an activation.

    Args:
        operation: The operation.
        what: Names its tensor in the refusal.

    Raises:
        UnfitError: The tensor is not int8 with one power of two as its scale, and one zero point.
    """
    found, zeros = np.unique(_powers(operation, what)), np.unique(operation.inputs[2].array)
    for several, name in ((found, "scales"), (zeros, "zero points")):
        if several.size != 1:
            raise UnfitError(f"the {name} of {what} differ between channels", QUANTIZE)
    return Grid(int(found[0]), int(zeros[0]))


def exponents(operation: Operation, what: str) -> NDArray[np.int64]:
    """Return the exponents of weights, one or one for each channel; see `grid`. Their zero points must be 0."""
    found = _powers(operation, what)
    if operation.inputs[2].array.any():
        raise UnfitError(f"the zero point of {what} is not 0", QUANTIZE)
    return found


def _powers(operation: Operation, what: str) -> NDArray[np.int64]:
    source, scale, _ = operation.inputs
    dtype = operation.out.dtype if operation.name == "quantize" else source.dtype
    if dtype != "int8":
        raise UnfitError(f"the type of {what} is {dtype}, not int8", QUANTIZE)
    mantissas, powers = np.frexp(scale.array.reshape(-1))
    odd = scale.array.reshape(-1)[mantissas != _HALF]
    if odd.size:
        raise UnfitError(f"the scale of {what}, {float(odd[0]):g}, is not a power of two", QUANTIZE)
    return np.asarray(1 - powers, np.int64)


def follow(value: Value, channels: int, readers: Readers) -> Chain:
    """Return what is done to the sums of a layer.

    Args:
        value: The sums.
        channels: Output channels of the layer.
        readers: Who reads what.

    Raises:
        UnfitError: They do not become int8, or something is done to them that VTA cannot do.
    """
    bias, residual, bounds = np.zeros(channels), None, list[tuple[float, float]]()
    while True:
        reader = _only_reader(value, readers)
        if _is_rounding(reader, "quantize"):
            return Chain(reader, bias, residual, bounds)
        limited, other = limits(reader), _other(reader, value)
        if limited is not None:
            bounds.append(limited)
        elif other is None or bounds:
            raise UnfitError(f"{reader.name or 'an operation'} follows it before its result is int8")
        elif (numbers := constant_of(other)) is not None:
            bias = bias + _along_channels(numbers, channels, len(value.shape or ()))
        elif residual is None:
            residual = _addend(other, value)
        else:
            raise UnfitError("more than one tensor is added to it")
        value = reader.out


def _only_reader(value: Value, readers: Readers) -> Operation:
    if value.readers != 1 or value.escapes:
        raise UnfitError("its result is read as floats: it is not quantized in the file", QUANTIZE)
    return readers[value][0]


def _other(reader: Operation, value: Value) -> Value | None:
    """Return what is added to a value; None if the operation is no sum."""
    if reader.name != "add":
        return None
    first, second = reader.inputs
    return second if first is value else first


def _along_channels(numbers: NDArray[np.float64], channels: int, rank: int) -> NDArray[np.float64]:
    shape = (1,) * (rank - numbers.ndim) + numbers.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        raise UnfitError("the constant that is added to it differs within a channel")
    return np.broadcast_to(numbers.reshape(-1), (channels,))


def _addend(other: Value, value: Value) -> Operation:
    maker = other.maker
    if maker is None or not is_dequantize(maker):
        raise UnfitError("what is added to it is not int8: it is not quantized in the file", QUANTIZE)
    if other.shape != value.shape:
        raise UnfitError("what is added to it has another shape")
    return maker


@dataclass(frozen=True)
class Integers:
    """A chain as whole numbers.

    Attributes:
        shift: Right shift of the sums.
        channel_shifts: By how much more those of each channel are shifted; None if by nothing.
        bias: One number for each channel, with half a step, as a shift rounds down, and with what zero points add.
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
    """Return a chain as whole numbers.

    Args:
        chain: The chain.
        weights: OIHW.
        sums: Exponent of the sums of products, or one for each channel.
        zero: The byte of the layer's input that stands for 0.

    Raises:
        UnfitError: A shift is out of range, or a sum may be.
    """
    result = grid(chain.end, "its result")
    own = np.broadcast_to(sums, chain.bias.shape)
    shifts = own - result.exponent
    for bits in (shifts.max(), shifts.min()):
        least = _shift(int(bits), _MOST_SHIFT, "its sums would have to be shifted right")
    more = _more(shifts - least, chain)
    bias = _whole(chain.bias, own, shifts) + np.ldexp(float(result.zero), shifts)
    bias -= zero * weights.sum(axis=(1, 2, 3), dtype=np.int64)
    residual_shift = None
    if chain.residual is not None:
        added = grid(chain.residual, "what is added to it")
        bits = int(own[0]) - added.exponent
        residual_shift = _shift(bits, _MOST_RESIDUAL_SHIFT, "what is added to it would have to be shifted left")
        bias -= added.zero << residual_shift
    _check_sums(weights, bias, residual_shift)
    return Integers(least, more, bias.astype(np.int32), residual_shift, *_bounds(chain, result))


def _more(shifts: NDArray[np.int64], chain: Chain) -> NDArray[np.int32] | None:
    """Return what channels are shifted by beyond the least of them; None if by nothing."""
    if not shifts.any():
        return None
    if chain.residual is not None:
        raise UnfitError("its scales differ between channels, and something is added to it", QUANTIZE)
    if shifts.max() > _MOST_CHANNEL_SHIFT:
        raise UnfitError(f"the scales of its channels are {int(shifts.max())} bits apart", QUANTIZE)
    return shifts.astype(np.int32)


def _shift(bits: int, most: int, what: str) -> int:
    if not 0 <= bits <= most:
        raise UnfitError(f"{what} by {bits} bits, but VTA's kernels can shift by 0 to {most}", QUANTIZE)
    return bits


def _whole(bias: NDArray[np.float64], sums: NDArray[np.int64], shifts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a bias in units of the sums, with half a step of the result.

    All that is below a unit may be cut off: with it or without, a sum lies on the same side of the next half.
    """
    units = np.ldexp(bias, sums)
    return np.where(shifts > 0, np.floor(units + 2.0 ** (shifts - 1)), np.rint(units))


def _check_sums(weights: NDArray[np.int8], bias: NDArray[np.float64], residual_shift: int | None) -> None:
    products = np.abs(weights.astype(np.int64)).sum(axis=(1, 2, 3)) * -_LEAST
    added = 0 if residual_shift is None else -_LEAST << residual_shift
    largest = float((products + np.abs(bias) + added).max())
    if not largest <= _MOST_SUM:
        raise UnfitError(f"its sums may reach {largest:g}, but int32 ends at {_MOST_SUM}", QUANTIZE)


def _bounds(chain: Chain, result: Grid) -> tuple[int, int]:
    """Return the least and greatest result: rounding keeps the order, so bounds may be rounded instead of numbers."""
    ends = np.array([_LEAST, _GREATEST], float)
    for least, greatest in chain.bounds:
        whole = np.rint(np.ldexp([least, greatest], result.exponent)) + result.zero
        lower, upper = np.clip(whole, _LEAST, _GREATEST)
        ends = np.minimum(np.maximum(ends, lower), upper)
    low, high = ends
    return int(low), int(high)
