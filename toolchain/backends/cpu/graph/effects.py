"""What is done to each element of a layer's result before it is stored: operations become its epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu.layers import PostOp, PostOpKind
from toolchain.backends.graph import patterns
from toolchain.backends.graph.quantization import Grid, constant_of
from toolchain.backends.graph.values import Operation, Value

_GREATEST = 3.4028234663852886e38  # the greatest float32: ONNX's default limit of Clip


@dataclass(frozen=True, eq=False)
class Affine:
    """x * scale + shift, in double precision: one number for each channel, or one for all."""

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]

    def then(self, other: Affine) -> Affine:
        """Return the two in a row as one."""
        return Affine(self.scale * other.scale, self.shift * other.scale + other.shift)


@dataclass(frozen=True)
class Function:
    """An activation function."""

    kind: PostOpKind
    values: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Operand:
    """The sum or product with another tensor; its grid, if it is in bytes."""

    kind: Literal["add", "mul"]
    value: Value
    grid: Grid | None = None


@dataclass(frozen=True)
class Rounding:
    """The nearest number that a byte can say."""

    grid: Grid


Effect = Affine | Function | Operand | Rounding


def effects(operation: Operation, main: Value, axis: int) -> list[Effect] | None:
    """Return what an operation does to one of its inputs, whose shape the result has.

    Args:
        main: The input.
        axis: Axis of the channels.

    Returns:
        The effects in order; None if no post-op can express them.
    """
    if operation.out.shape != main.shape or operation.out.dtype != "float32":
        return None
    limits = patterns.limits(operation) if operation.inputs[0] is main else None
    if limits is not None:
        return [Function("clip", limits)]
    if operation.name in _FUNCTIONS:
        return _FUNCTIONS[operation.name](operation)
    if operation.name in _ARITHMETIC:
        return _arithmetic(operation, main, axis)
    return None


def _single_slope(operation: Operation) -> list[Effect] | None:
    """Return PRelu with one slope for all channels, which is ONNX's LeakyRelu."""
    slope = operation.inputs[1]
    is_single = slope.constant is not None and slope.array.size == 1
    return [Function("leaky_relu", (float(slope.array.reshape(())),))] if is_single else None


_FUNCTIONS: dict[str, Callable[[Operation], list[Effect] | None]] = {
    "sigmoid": lambda _: [Function("sigmoid")],
    "tanh": lambda _: [Function("tanh")],
    "nn.silu": lambda _: [Function("silu")],
    "nn.gelu": lambda _: [Function("gelu")],
    "nn.gelu_tanh": lambda _: [Function("gelu_tanh")],
    "nn.leakyrelu": lambda operation: [Function("leaky_relu", (float(operation.attributes.alpha),))],
    "nn.prelu": _single_slope,
    "hard_sigmoid": lambda operation: [Function("hard_sigmoid", operation.values)],
    "hard_swish": lambda operation: [Function("hard_swish"), _times(operation.values[0])],
    "negative": lambda _: [_times(-1.0)],
}

_ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide"})


def _times(factor: float) -> Affine:
    return Affine(np.array(factor), np.array(0.0))


def _arithmetic(operation: Operation, main: Value, axis: int) -> list[Effect] | None:
    # x + x has two operands that are the main input: one of them stays here as the other tensor.
    others = list(operation.inputs)
    others.remove(main)
    effects: list[Effect] = []
    for other in others:
        effect: Effect | None
        # Constants become factors and sums per channel; anything else is a tensor of its own.
        constant = constant_of(other) if other.dtype == "float32" else None
        if constant is not None:
            numbers = _per_channel(constant, main, axis)
            effect = None if numbers is None else _affine(operation, main, numbers)
        else:
            effect = _operand(operation, main, other)
        if effect is None:
            return None
        effects.append(effect)
    return effects


def _affine(operation: Operation, main: Value, numbers: NDArray[np.float64]) -> Affine | None:
    unit, zero = np.array(1.0), np.array(0.0)
    first = operation.inputs[0] is main
    if operation.name == "add":
        return Affine(unit, numbers)
    if operation.name == "multiply":
        return Affine(numbers, zero)
    if operation.name == "subtract":
        return Affine(unit, -numbers) if first else Affine(-unit, numbers)
    return Affine(1 / numbers, zero) if first and numbers.all() else None


def _per_channel(constant: NDArray[np.float64], main: Value, axis: int) -> NDArray[np.float64] | None:
    """Return a constant as one number for each channel, or for all; None if it differs along other axes."""
    shape = main.shape or ()
    if constant.size == 1:
        return constant.reshape(())
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    # NumPy's broadcasting: leading axes may be missing.
    missing = len(shape) - constant.ndim
    if missing < 0 or [1] * missing + list(constant.shape) != sizes:
        return None
    return constant.reshape(-1)


def _operand(operation: Operation, main: Value, other: Value) -> Operand | None:
    """Return the effect of another tensor: one of the same shape, or one pixel that goes with all."""
    kind: Literal["add", "mul"] | None = {"add": "add", "multiply": "mul"}.get(operation.name)  # type: ignore[assignment]
    if kind is None or other.dtype != "float32" or main.shape is None:
        return None
    pixel = (*main.shape[:2], 1, 1) if main.is_image else None
    return Operand(kind, other) if other.shape in {main.shape, pixel} else None


def merge(effects: Sequence[Effect]) -> list[Effect]:
    """Return effects with neighbours made one where that is possible, without those that do nothing."""
    result: list[Effect] = []
    for effect in effects:
        last = result[-1] if result else None
        if isinstance(last, Affine) and isinstance(effect, Affine):
            result[-1] = last.then(effect)
        elif _is_clip(last) and _is_clip(effect):
            low, high = effect.values
            result[-1] = Function("clip", tuple(min(max(limit, low), high) for limit in last.values))
        else:
            result.append(effect)
    return [effect for effect in result if not _does_nothing(effect)]


def _is_clip(effect: Effect | None) -> TypeGuard[Function]:
    return isinstance(effect, Function) and effect.kind == "clip"


def _does_nothing(effect: Effect) -> bool:
    if isinstance(effect, Affine):
        return bool((effect.scale == 1).all() and (effect.shift == 0).all())
    return isinstance(effect, Function) and effect == Function("clip", (-_GREATEST, _GREATEST))


@dataclass(frozen=True, eq=False)
class BoundPostOp:
    """A post-op, and what the kernel is given for it.

    Attributes:
        op: The post-op, without the place of another tensor.
        numbers: One number for each channel, for a post-op that takes them.
        value: The other tensor, for a post-op that takes one.
        grid: Grid of `quantize`, or of the other tensor's bytes.
    """

    op: PostOp
    numbers: NDArray[np.float64] | None = None
    value: Value | None = None
    grid: Grid | None = None


def epilogue(effects: Sequence[Effect], channels: int) -> list[BoundPostOp]:
    """Return effects as post-ops."""
    result = []
    for effect in effects:
        if isinstance(effect, Operand):
            result.append(BoundPostOp(PostOp(effect.kind), value=effect.value, grid=effect.grid))
        elif isinstance(effect, Rounding):
            result.append(BoundPostOp(PostOp("quantize"), grid=effect.grid))
        elif isinstance(effect, Function):
            is_relu = effect == Function("clip", (0.0, _GREATEST))
            result.append(BoundPostOp(PostOp("relu") if is_relu else PostOp(effect.kind, effect.values)))
        else:
            # A factor of one, or a sum of zero, is no work.
            if (effect.scale != 1).any():
                result.append(BoundPostOp(PostOp("scale"), np.broadcast_to(effect.scale, (channels,))))
            if (effect.shift != 0).any():
                result.append(BoundPostOp(PostOp("shift"), np.broadcast_to(effect.shift, (channels,))))
    return result
