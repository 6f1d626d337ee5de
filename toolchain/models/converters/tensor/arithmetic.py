"""Operators that compute each element of one or two tensors, where TVM's converters are wrong or lacking."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from toolchain.models.converters import converter
from toolchain.models.converters.node import Node


def elementwise(node: Node, function: Callable[[Any], Any], dtype: str | None = None) -> Any:
    """Return a function of each element of the first input.

    Args:
        node: The node.
        function: From one element to another.
        dtype: Element type that it computes in, and is converted from afterwards; that of the input by default.
    """
    own = node.dtype(0)

    def all_of_them(data: te.Tensor) -> te.Tensor:
        return te.compute(
            data.shape, lambda *at: function(data(*at).astype(dtype or own)).astype(own), node.operator.lower()
        )

    return node.compute(all_of_them, node.inputs[0], name=node.operator.lower())


def pairwise(node: Node, function: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    """Return a function of the elements of two tensors, which are spread to one shape."""

    def all_of_them(left: te.Tensor, right: te.Tensor) -> te.Tensor:
        shape = topi.add(left.astype("int8"), right.astype("int8")).shape
        return te.compute(shape, lambda *at: function(_element(left, at), _element(right, at)), node.operator.lower())

    return node.compute(all_of_them, first, second, name=node.operator.lower())


def _element(tensor: te.Tensor, at: tuple[Any, ...]) -> Any:
    """Return the element that belongs to a place of a tensor of more axes, or longer ones."""
    own = at[len(at) - len(tensor.shape) :]
    return tensor(*(0 if int(size) == 1 else index for size, index in zip(tensor.shape, own, strict=True)))


def _wide(node: Node) -> str:
    """Return the element type that a function of floats is computed in."""
    return "float64" if node.dtype(0) == "float64" else "float32"


def is_integer(dtype: str) -> bool:
    """Whether an element type is one of integers."""
    return dtype.startswith(("int", "uint"))


@converter("Mod")
def mod(node: Node) -> Any:
    """Convert Mod.

    TVM's takes the remainder of floats by x - floor(x / y) * y, which is not exact, and NaN for infinite y.
    """
    is_c = bool(node.attributes.get("fmod", 0))
    if is_integer(node.dtype(0)):
        return pairwise(node, tirx.truncmod if is_c else tirx.floormod, *node.inputs)
    wide = _wide(node)

    def remainder(x: Any, y: Any) -> Any:
        x, y = x.astype(wide), y.astype(wide)
        rest = tirx.truncmod(x, y)
        if not is_c:  # the sign is the divisor's, as Python has it
            zero = tirx.const(0, wide)
            other = tirx.any(tirx.all(rest < zero, y > zero), tirx.all(rest > zero, y < zero))
            rest = tirx.Select(other, rest + y, rest)
        return rest.astype(node.dtype(0))

    return pairwise(node, remainder, *node.inputs)


@converter("Pow")
def power(node: Node) -> Any:
    """Convert Pow. TVM's wants two tensors of one element type, and has no integers.

    What is small and constant is multiplied out: the square of a tensor is on the way of many networks.
    """
    base, own, other = node.inputs[0], node.dtype(0), node.dtype(1)
    if is_integer(own) or own == "float64":
        return pairwise(node, lambda x, y: _integer_power(x, y, own, other), *node.inputs)
    exponent = node.constant(1) if node.is_constant(1) else None
    if exponent is not None and exponent.size == 1 and len(exponent.shape) <= len(node.shape(0)):
        value = float(exponent.reshape(()))
        if value in _SIMPLE:
            return _SIMPLE[value](base)
    return relax.op.power(base, node.inputs[1] if own == other else relax.op.astype(node.inputs[1], own))


def _square_root(x: Any) -> Any:
    """Return x to the power of a half: of minus infinity that is infinity, and not the NaN of a square root."""
    infinity = relax.const(float("inf"), str(x.ty.dtype))
    return relax.op.where(relax.op.equal(x, relax.op.negative(infinity)), infinity, relax.op.sqrt(x))


_SIMPLE: dict[float, Callable[[Any], Any]] = {
    0.5: _square_root,
    1.0: lambda x: x,
    2.0: lambda x: relax.op.multiply(x, x),
    3.0: lambda x: relax.op.multiply(relax.op.multiply(x, x), x),
}


def _integer_power(x: Any, y: Any, own: str, other: str) -> Any:
    """Return a power of integers: of integers by squaring, so that all of 64 bits are right."""
    if not (is_integer(own) and is_integer(other)):
        return tirx.pow(x.astype("float64"), y.astype("float64")).astype(own)
    one, zero = tirx.const(1, "int64"), tirx.const(0, "int64")
    factor, left, result = x.astype("int64"), y.astype("int64"), one
    # ceil(log2(63)) steps: of a base other than 0, 1 and -1 every higher power overflows.
    for _ in range(_BITS_OF_AN_EXPONENT):
        result = tirx.Select(tirx.bitwise_and(left, one) != zero, result * factor, result)
        factor, left = factor * factor, tirx.shift_right(left, one)
    return result.astype(own)


_BITS_OF_AN_EXPONENT = 6


@converter("Min")
def least(node: Node) -> Any:
    """Convert Min. TVM's takes NaN for the greatest number, if it comes first."""
    return _best(node, lambda x, y: x < y)


@converter("Max")
def greatest(node: Node) -> Any:
    """Convert Max; as `least`."""
    return _best(node, lambda x, y: x > y)


def _best(node: Node, better: Callable[[Any, Any], Any]) -> Any:
    is_float = not is_integer(node.dtype(0))

    def chosen(x: Any, y: Any) -> Any:
        # Not a number is neither more nor less than anything: it is chosen, wherever it stands.
        wins = tirx.any(better(x, y), tirx.isnan(x)) if is_float else better(x, y)
        return tirx.Select(wins, x, y)

    return functools.reduce(lambda first, second: pairwise(node, chosen, first, second), node.inputs)


@converter("IsInf")
def is_infinite(node: Node) -> Any:
    """Convert IsInf. TVM's disregards which infinities are asked for."""
    positive, negative = (node.attributes.get(f"detect_{sign}", 1) for sign in ("positive", "negative"))
    dtype = _wide(node)
    limits = [float("inf")] * bool(positive) + [float("-inf")] * bool(negative)
    if not limits:
        return relax.op.zeros(node.shape(0), "bool")

    def all_of_them(data: te.Tensor) -> te.Tensor:
        def one(*at: Any) -> Any:
            value = data(*at).astype(dtype)
            return functools.reduce(tirx.any, [value == tirx.const(limit, dtype) for limit in limits])

        return te.compute(data.shape, one, "is_infinite")

    return node.compute(all_of_them, node.inputs[0], name="is_infinite")


@converter("Sign")
def sign(node: Node) -> Any:
    """Convert Sign; TVM's of NaN is 0."""
    zero = tirx.const(0, node.dtype(0))
    if not node.dtype(0).startswith("float"):
        return relax.op.sign(node.inputs[0])
    return elementwise(node, lambda x: tirx.Select(x > zero, zero + 1, tirx.Select(x < zero, zero - 1, x)))


@converter("Asin", "Acos", "Atan", "Asinh", "Acosh")
def inverse(node: Node) -> Any:
    """Convert the inverse of a trigonometric or hyperbolic function; LLVM has those of TVM for 32 and 64 bits alone."""
    function = getattr(relax.op, node.operator.lower())
    wide = _wide(node)
    if node.dtype(0) == wide:
        return function(node.inputs[0])
    return relax.op.astype(function(node.emit(relax.op.astype(node.inputs[0], wide))), node.dtype(0))


@converter("Sinh")
def sinh(node: Node) -> Any:
    """Convert Sinh. TVM's calls a function that no library on a board has. Near 0 the two exponentials cancel."""

    def one(x: Any) -> Any:
        square = x * x
        near = x * (1 + square * (1 / 6 + square * (1 / 120 + square * (1 / 5040))))
        half = tirx.exp(x / 2)
        far = half / 2 * half - 1 / half / 2 / half  # half * half overflows before the result does
        return tirx.Select(tirx.abs(x) < tirx.const(0.5, dtype), near, far)

    dtype = _wide(node)
    return elementwise(node, one, dtype)


@converter("Cosh")
def cosh(node: Node) -> Any:
    """Convert Cosh; as `sinh`."""

    def one(x: Any) -> Any:
        half = tirx.exp(x / 2)
        return half / 2 * half + 1 / half / 2 / half

    return elementwise(node, one, _wide(node))


@converter("BitShift")
def bit_shift(node: Node) -> Any:
    """Convert BitShift. By more than there are bits, TVM's shifts by what the processor makes of that."""
    dtype = node.dtype(0)
    bits = int(dtype.lstrip("uint"))
    to_the_left = node.attributes["direction"] == "LEFT"
    function = tirx.shift_left if to_the_left else tirx.shift_right

    def shifted(x: Any, by: Any) -> Any:
        by = by.astype("int32")
        result = function(x, tirx.min(by, tirx.const(bits - 1, "int32")).astype(dtype))
        is_kept = not to_the_left and dtype.startswith("int")  # the sign, which is all that is left in the end
        return result if is_kept else tirx.Select(by < bits, result, tirx.const(0, dtype))

    return pairwise(node, shifted, *node.inputs)


@converter("Dropout")
def dropout(node: Node) -> Any:
    """Convert Dropout, which does nothing but in training. TVM's mask is of floats."""
    training = node.input(2)
    if training is not None and bool(node.constant(2)):
        raise node.refusal("it is in training mode, so it draws random numbers")
    data = node.inputs[0]
    if node.outputs == 1:
        return data
    dtype = "bool" if node.opset >= 10 else node.dtype(0)  # noqa: PLR2004 - before, the mask was of floats
    return [data, relax.op.ones(node.shape(0), dtype)]


@converter("Sum")
def total(node: Node) -> Any:
    """Convert Sum: TVM's stacks its operands before it adds them up."""
    return functools.reduce(relax.op.add, node.inputs)


@converter("Mean")
def mean(node: Node) -> Any:
    """Convert Mean; as `total`."""
    return relax.op.multiply(total(node), relax.const(1 / len(node.inputs), node.dtype(0)))
