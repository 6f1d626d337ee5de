"""Operators that compute each element of one or two tensors, where TVM's converters are wrong or lacking."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from toolchain.models.converters import UPSTREAM, Node, as_operator, converter


def elementwise(node: Node, function: Callable[[Any], Any], dtype: str | None = None) -> Any:
    """Apply a function to each element of the first input, computed in `dtype` if that is not the input's."""
    input_dtype = node.dtype(0)

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(
            data.shape,
            lambda *index: function(data(*index).astype(dtype or input_dtype)).astype(input_dtype),
            node.operator.lower(),
        )

    return node.compute(compute, node.inputs[0], name=node.operator.lower())


def pairwise(node: Node, function: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    """Apply a function to the elements of two tensors that are broadcast to one shape."""

    def compute(left: te.Tensor, right: te.Tensor) -> te.Tensor:
        # Only for TVM's rule of broadcasting: of any element types.
        shape = topi.add(left.astype("int8"), right.astype("int8")).shape
        return te.compute(
            shape, lambda *index: function(_element(left, index), _element(right, index)), node.operator.lower()
        )

    return node.compute(compute, first, second, name=node.operator.lower())


def _element(tensor: te.Tensor, index: tuple[Any, ...]) -> Any:
    """Return the element for an index into the broadcast shape: leading axes dropped, axes of one element at 0."""
    trailing = index[len(index) - len(tensor.shape) :]
    coordinates = zip(tensor.shape, trailing, strict=True)
    return tensor(*(0 if int(size) == 1 else coordinate for size, coordinate in coordinates))


def _wide(node: Node) -> str:
    """Return the element type in which a function of floats is computed."""
    return "float64" if node.dtype(0) == "float64" else "float32"


def is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


# TVM's ends the process for a divisor of 0, and for the least integer by -1.
@converter("Div")
def div(node: Node) -> Any:
    if not is_integer(node.dtype(0)) or (node.is_constant(0) and node.is_constant(1)):
        return as_operator(node, f"{UPSTREAM}Div", node.inputs, {})
    return _divide_integers(
        node, tirx.truncdiv, by_zero=lambda _x: tirx.const(0, node.dtype(0)), by_minus_one=lambda x: -x
    )


def _divide_integers(node: Node, divide: Any, by_zero: Callable[[Any], Any], by_minus_one: Callable[[Any], Any]) -> Any:
    """Divide, or take a remainder, with the results that Arm's instructions have where x86's raise an exception."""
    dtype = node.dtype(0)
    one = tirx.const(1, dtype)
    if node.is_constant(1):
        divisors = node.constant(1)
        if divisors is not None and (divisors == 0).any():
            raise node.refusal("it divides integers by a constant 0")
        if divisors is not None and not (divisors < 0).any():
            return pairwise(node, divide, *node.inputs)

    def element(x: Any, y: Any) -> Any:
        is_zero = tirx.EQ(y, tirx.const(0, dtype))
        if dtype.startswith("uint"):
            return tirx.Select(is_zero, by_zero(x), divide(x, tirx.Select(is_zero, one, y)))
        is_minus_one = tirx.EQ(y, tirx.const(-1, dtype))
        quotient = divide(x, tirx.Select(tirx.any(is_zero, is_minus_one), one, y))
        return tirx.Select(is_zero, by_zero(x), tirx.Select(is_minus_one, by_minus_one(x), quotient))

    return pairwise(node, element, *node.inputs)


# TVM's takes the remainder of floats by x - floor(x / y) * y, which is not exact, and NaN for infinite y.
@converter("Mod")
def mod(node: Node) -> Any:
    is_c = bool(node.attributes.get("fmod", 0))
    if is_integer(node.dtype(0)):
        remainder_of = tirx.truncmod if is_c else tirx.floormod
        return _divide_integers(
            node, remainder_of, by_zero=lambda x: x, by_minus_one=lambda _x: tirx.const(0, node.dtype(0))
        )
    wide = _wide(node)

    def remainder(x: Any, y: Any) -> Any:
        x, y = x.astype(wide), y.astype(wide)
        rest = tirx.truncmod(x, y)
        if not is_c:  # the sign is the divisor's, as Python has it
            zero = tirx.const(0, wide)
            signs_differ = tirx.any(tirx.all(rest < zero, y > zero), tirx.all(rest > zero, y < zero))
            rest = tirx.Select(signs_differ, rest + y, rest)
        return rest.astype(node.dtype(0))

    return pairwise(node, remainder, *node.inputs)


# TVM's needs two tensors of one element type, and has no integers. Small constant exponents are multiplied out: many
# networks square a tensor.
@converter("Pow")
def power(node: Node) -> Any:
    base, dtype, exponent_dtype = node.inputs[0], node.dtype(0), node.dtype(1)
    if is_integer(dtype) or dtype == "float64":
        return pairwise(node, lambda x, y: _integer_power(x, y, dtype, exponent_dtype), *node.inputs)
    exponent = node.constant(1) if node.is_constant(1) else None
    if exponent is not None and exponent.size == 1 and len(exponent.shape) <= len(node.shape(0)):
        value = float(exponent.reshape(()))
        if value in _MULTIPLIED_OUT:
            return _MULTIPLIED_OUT[value](base)
    return relax.op.power(base, node.inputs[1] if dtype == exponent_dtype else relax.op.astype(node.inputs[1], dtype))


def _square_root(x: Any) -> Any:
    """Return x to the power of 0.5: infinity for minus infinity, where a square root is NaN."""
    infinity = relax.const(float("inf"), str(x.ty.dtype))
    return relax.op.where(relax.op.equal(x, relax.op.negative(infinity)), infinity, relax.op.sqrt(x))


_MULTIPLIED_OUT: dict[float, Callable[[Any], Any]] = {
    0.5: _square_root,
    1.0: lambda x: x,
    2.0: lambda x: relax.op.multiply(x, x),
    3.0: lambda x: relax.op.multiply(relax.op.multiply(x, x), x),
}


def _integer_power(x: Any, y: Any, dtype: str, exponent_dtype: str) -> Any:
    """Return x to the power of y, of integers by squaring, so that all 64 bits are exact."""
    if not (is_integer(dtype) and is_integer(exponent_dtype)):
        return tirx.pow(x.astype("float64"), y.astype("float64")).astype(dtype)
    unit, zero = tirx.const(1, "int64"), tirx.const(0, "int64")
    factor, remaining, result = x.astype("int64"), y.astype("int64"), unit
    # ceil(log2(63)) steps: of a base other than 0, 1 and -1 every higher power overflows.
    for _ in range(_BITS_OF_AN_EXPONENT):
        result = tirx.Select(tirx.bitwise_and(remaining, unit) != zero, result * factor, result)
        factor, remaining = factor * factor, tirx.shift_right(remaining, unit)
    return result.astype(dtype)


_BITS_OF_AN_EXPONENT = 6


# TVM's Min takes NaN for the greatest number if it comes first.
@converter("Min", "Max")
def extreme(node: Node) -> Any:
    better: Callable[[Any, Any], Any] = operator.lt if node.operator == "Min" else operator.gt
    is_float = not is_integer(node.dtype(0))

    def select(x: Any, y: Any) -> Any:
        # NaN is neither more nor less than anything: it is chosen, wherever it stands.
        wins = tirx.any(better(x, y), tirx.isnan(x)) if is_float else better(x, y)
        return tirx.Select(wins, x, y)

    return functools.reduce(lambda first, second: pairwise(node, select, first, second), node.inputs)


# TVM's disregards which infinities are asked for.
@converter("IsInf")
def is_infinite(node: Node) -> Any:
    positive, negative = (node.attributes.get(f"detect_{sign}", 1) for sign in ("positive", "negative"))
    dtype = _wide(node)
    limits = [float("inf")] * bool(positive) + [float("-inf")] * bool(negative)
    if not limits:
        return relax.op.zeros(node.shape(0), "bool")

    def compute(data: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            value = data(*index).astype(dtype)
            return functools.reduce(tirx.any, [value == tirx.const(limit, dtype) for limit in limits])

        return te.compute(data.shape, element, "is_infinite")

    return node.compute(compute, node.inputs[0], name="is_infinite")


# TVM's of NaN is 0.
@converter("Sign")
def sign(node: Node) -> Any:
    zero = tirx.const(0, node.dtype(0))
    if not node.dtype(0).startswith("float"):
        return relax.op.sign(node.inputs[0])
    return elementwise(node, lambda x: tirx.Select(x > zero, zero + 1, tirx.Select(x < zero, zero - 1, x)))


# LLVM has TVM's functions for 32 and 64 bits only.
@converter("Asin", "Acos", "Atan", "Asinh", "Acosh")
def inverse(node: Node) -> Any:
    function = getattr(relax.op, node.operator.lower())
    wide = _wide(node)
    if node.dtype(0) == wide:
        return function(node.inputs[0])
    return relax.op.astype(function(node.emit(relax.op.astype(node.inputs[0], wide))), node.dtype(0))


# TVM's calls a function that the boards' libraries lack. Near 0 the two exponentials cancel.
@converter("Sinh")
def sinh(node: Node) -> Any:
    def element(x: Any) -> Any:
        square = x * x
        near = x * (1 + square * (1 / 6 + square * (1 / 120 + square * (1 / 5040))))
        half = tirx.exp(x / 2)
        far = half / 2 * half - 1 / half / 2 / half  # half * half overflows before the result does
        return tirx.Select(tirx.abs(x) < tirx.const(0.5, dtype), near, far)

    dtype = _wide(node)
    return elementwise(node, element, dtype)


# As `sinh`.
@converter("Cosh")
def cosh(node: Node) -> Any:
    def element(x: Any) -> Any:
        half = tirx.exp(x / 2)
        return half / 2 * half + 1 / half / 2 / half

    return elementwise(node, element, _wide(node))


# TVM leaves shifts by the width or more to the processor, whose results differ.
@converter("BitShift")
def bit_shift(node: Node) -> Any:
    dtype = node.dtype(0)
    bits = int(dtype.lstrip("uint"))
    is_left = node.attributes["direction"] == "LEFT"
    function = tirx.shift_left if is_left else tirx.shift_right

    def shift(x: Any, by: Any) -> Any:
        # The standard shifts by less than 0, and by the width or more, as far as it goes.
        is_beyond = by >= tirx.const(bits, dtype)
        if dtype.startswith("int"):
            is_beyond = tirx.any(is_beyond, by < tirx.const(0, dtype))
        result = function(x, tirx.Select(is_beyond, tirx.const(bits - 1, dtype), by))
        keeps_sign = not is_left and dtype.startswith("int")  # the sign, which is all that is left in the end
        return result if keeps_sign else tirx.Select(is_beyond, tirx.const(0, dtype), result)

    return pairwise(node, shift, *node.inputs)


# It only acts in training. TVM's mask has floats.
@converter("Dropout")
def dropout(node: Node) -> Any:
    training = node.input(2)
    if training is not None and bool(node.constant(2)):
        raise node.refusal("it is in training mode, so it draws random numbers")
    data = node.inputs[0]
    if node.outputs == 1:
        return data
    dtype = "bool" if node.opset >= 10 else node.dtype(0)  # noqa: PLR2004 - before, the mask was of floats
    return [data, relax.op.ones(node.shape(0), dtype)]


# TVM's stacks its operands first.
@converter("Sum")
def total(node: Node) -> Any:
    return functools.reduce(relax.op.add, node.inputs)


# As `total`.
@converter("Mean")
def mean(node: Node) -> Any:
    return relax.op.multiply(total(node), relax.const(1 / len(node.inputs), node.dtype(0)))
