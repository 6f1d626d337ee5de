"""What follows a layer on bytes in its own kernel, where bytes are what comes of it: bias, activation, rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te, tirx

from toolchain.backends.graph import quantization
from toolchain.backends.graph.values import Operation, Value
from toolchain.backends.mali.int8.layers import BYTE, FOUR

_LEAST, _GREATEST = -128, 127
_FOLDED: Mapping[str, Callable[..., NDArray[Any]]] = {
    "reshape": lambda array: array,
    "isnan": np.isnan,
    "where": np.where,
}
_LAST = 24  # bits above a byte that is to be the sign's
_IMAGE = 4
_EXPONENT = 100  # of powers of two whose inverse single precision has, too


@dataclass(frozen=True)
class Limits:
    """Numbers below the least become it, and above the greatest that."""

    lower: float
    upper: float

    def of(self, number: Any) -> Any:
        """Return what a number becomes."""
        if np.isfinite(self.upper):
            number = te.min(number, _single(self.upper))
        return te.max(number, _single(self.lower)) if np.isfinite(self.lower) else number


@dataclass(frozen=True, eq=False)
class OtherImage:
    """Another image that is added, each of its elements to one.

    Attributes:
        value: What the network calls it, NCHW: bytes, or numbers that another layer computes.
        grid: What its bytes say, as int8; None if it is numbers.
        channels: How many it has.
    """

    value: Value
    grid: quantization.Grid | None
    channels: int

    def at(self, tensor: te.Tensor) -> Callable[..., Any]:
        """Return what computes the number at a place: of image, row, column and channel.

        Args:
            tensor: The bytes four to an int32, or the numbers, NHWC.
        """

        def number(image: Any, row: Any, column: Any, channel: Any) -> Any:
            if self.grid is not None:
                return self.value_of(byte_of(tensor, image, row, column, channel))
            value = tensor(image, row, column, channel)
            return value if self.channels % FOUR == 0 else tirx.if_then_else(channel < self.channels, value, _single(0))

        return number

    def value_of(self, byte: Any) -> Any:
        """Return the number that one of its bytes says, as int32."""
        assert self.grid is not None  # noqa: S101 - only bytes have a value
        return (byte - self.grid.zero).astype("float32") * _single(self.grid.scale)


def byte_of(words: te.Tensor, image: Any, row: Any, column: Any, channel: Any) -> Any:
    """Return the byte at a place as an int32, of int32 that hold four channels each, NHWC."""
    return lane(words(image, row, column, channel // FOUR), channel)


Step = NDArray[np.float32] | Limits | OtherImage
"""What is done to numbers: something is added to each channel, or they are limited, or another image is added."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """What is done to the numbers of a layer, one after the other, before they are rounded to bytes.

    Attributes:
        steps: What is added to each channel, float32, limits, or other images.
        grid: What the bytes say, as int8.
        out: What the network calls the bytes.
        inner: What it calls all that is between.
    """

    steps: tuple[Step, ...]
    grid: quantization.Grid
    out: Value
    inner: tuple[Value, ...] = field(default=())

    @property
    def added(self) -> list[NDArray[np.float32] | OtherImage]:
        """What is added, in order."""
        return [step for step in self.steps if not isinstance(step, Limits)]

    def byte(self, number: Any, position: Sequence[Any], added: Sequence[te.Tensor]) -> Any:
        """Return the byte of a number as an int32.

        Args:
            number: What the layer computes, float32.
            position: Of which image, row, column and output channel.
            added: Tensors of what `added` lists.
        """
        remaining = list(added)
        for step in self.steps:
            if isinstance(step, Limits):
                number = step.of(number)
            elif isinstance(step, OtherImage):
                number = number + step.at(remaining.pop(0))(*position)
            else:
                number = number + remaining.pop(0)(position[-1])
        return round_to_byte(number, self.grid)


def round_to_byte(number: Any, grid: quantization.Grid) -> Any:
    """Return the byte of a number as an int32, rounded as `quantize` does it."""
    mantissa, exponent = np.frexp(grid.scale)
    # A power of two is multiplied by, which is exact and takes less.
    is_power = mantissa == 0.5 and abs(exponent) < _EXPONENT  # noqa: PLR2004 - what frexp returns for a power of two
    scaled = number * _single(1 / grid.scale) if is_power else number / _single(grid.scale)
    level = te.round(scaled) + _single(grid.zero)
    return te.max(te.min(level, _single(_GREATEST)), _single(_LEAST)).astype("int32")


def lane(word: Any, channel: Any) -> Any:
    """Return the byte of a channel, with its sign.

    Indices get 64 bits later, and so does what is computed with them: without a sign, the byte's place does not.
    """
    shift = (channel % FOUR * 8).astype("uint32")
    return ((word.astype("uint32") >> shift).astype("int32") << _LAST) >> _LAST


def _single(number: float) -> Any:
    return tirx.const(number, "float32")


def readers(operations: Sequence[Operation]) -> dict[int, list[Operation]]:
    """Return by identity of a value the operations that read it."""
    by_value: dict[int, list[Operation]] = {}
    for operation in operations:
        for value in operation.inputs:
            by_value.setdefault(id(value), []).append(operation)
    return by_value


def epilogue_of(layer: Operation, by_value: Mapping[int, list[Operation]]) -> Epilogue | None:
    """Return what is done to a layer's numbers until they are bytes; None if something else reads them before.

    Args:
        by_value: What `readers` returned.
    """
    value, steps, inner = layer.out, list[Step](), list[Value]()
    channels = (value.shape or ())[1]
    while value.is_alone:
        (reader,) = by_value[id(value)]
        inner.append(value)
        if quantization.is_quantize(reader) and reader.inputs[0] is value:
            grid = quantization.grid_of(reader, BYTE)
            return None if grid is None else Epilogue(tuple(steps), grid, reader.out, tuple(inner))
        step = step_of(reader, value, channels)
        if step is None:
            return None
        steps.append(step)
        value = reader.out
    return None


def step_of(reader: Operation, value: Value, channels: int) -> Step | None:
    """Return what an operation does to a value, if it can be done in the kernel of that.

    Args:
        value: One of what it reads.
        channels: How many channels that has.
    """
    if reader.name == "nn.relu":
        return Limits(0.0, np.inf)
    if reader.name == "clip":
        lower, upper = (float(argument.value) for argument in reader.call.args[1:])
        return Limits(lower, upper)
    if reader.name not in {"add", "maximum", "minimum"} or reader.out.shape != value.shape:
        return None
    (other,) = [operand for operand in reader.inputs if operand is not value] or [value]
    numbers = _constant(other)
    if numbers is None or other.shape is None:
        return _other(other, value) if reader.name == "add" else None
    if reader.name == "add":
        return _added(numbers, (1,) * (len(value.shape or ()) - len(other.shape)) + other.shape, channels)
    return _limit(reader.name, numbers)


def _other(other: Value, value: Value) -> OtherImage | None:
    """Return an image that is added to a value."""
    shape = other.shape or ()
    if other is value or shape != value.shape or len(shape) != _IMAGE or other.dtype != "float32":
        return None
    return dequantized_image(other) or (None if other.variable is None else OtherImage(other, None, shape[1]))


def dequantized_image(value: Value) -> OtherImage | None:
    """Return the bytes that an image says, if it does."""
    if not quantization.is_dequantize(value.maker) or len(value.shape or ()) != _IMAGE:
        return None
    assert value.maker is not None  # noqa: S101 - `is_dequantize` says so
    grid, bytes_ = quantization.grid_of(value.maker, BYTE), value.maker.inputs[0]
    if grid is None or bytes_.variable is None or bytes_.constant is not None:
        return None
    return OtherImage(bytes_, grid, (value.shape or ())[1])


def _added(numbers: NDArray[Any], shape: tuple[int, ...], channels: int) -> NDArray[np.float32] | None:
    """Return what is added to each channel; None if it differs from pixel to pixel."""
    if numbers.size not in {1, channels} or any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    return np.broadcast_to(numbers.reshape(-1), channels).astype(np.float32)


def _limit(name: str, numbers: NDArray[Any]) -> Limits | None:
    """Return the limit that a maximum or a minimum with one number sets."""
    if numbers.size != 1 or np.isnan(numbers).any():
        return None
    limit = float(numbers.reshape(()))
    return Limits(limit, np.inf) if name == "maximum" else Limits(-np.inf, limit)


def _constant(value: Value) -> NDArray[Any] | None:
    """Return what a value is if it follows from constants as the importer writes biases and limits."""
    maker = value.maker
    if value.constant is not None:
        return value.array
    if maker is None or maker.name not in _FOLDED:
        return quantization.constant_of(value)
    inner = [_constant(operand) for operand in maker.inputs]
    return None if any(array is None for array in inner) else _FOLDED[maker.name](*inner)
