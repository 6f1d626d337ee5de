"""Several operations that together are one: channel shuffle, sums of several tensors, activation functions.

The importer writes ONNX operators that Relax lacks as several of Relax's. Here they are found again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolchain.backends.graph.values import Block, Operation, Value

_CLOSE = 1e-6
_HARD_SWISH = (1 / 6, 0.5)  # slope and offset inside of its clip
_GREATEST = 3.4028234663852886e38  # of float32: a limit that never acts


def replace(block: Block) -> None:
    """Replace patterns by single operations."""
    for number, operation in enumerate(block.operations):
        tried = (pattern(operation) for pattern in _PATTERNS.get(operation.name, ()))
        better = next((one for one in tried if one is not None), None)
        if better is not None:
            block.operations[number] = operation.out.maker = better
    block.remove_dead()


def limits(operation: Operation) -> tuple[float, float] | None:
    """Return the least and greatest value that an operation lets through, if that is what it does."""
    if operation.name == "nn.relu":
        return 0.0, _GREATEST
    if operation.name == "clip":
        least, greatest = (float(one.value) for one in operation.call.args[1:3])
        return max(least, -_GREATEST), min(greatest, _GREATEST)
    if operation.name in {"maximum", "minimum"}:
        number = _number(operation.inputs[1])
        if number is None or math.isnan(number):
            return None
        number = min(max(number, -_GREATEST), _GREATEST)
        return (number, _GREATEST) if operation.name == "maximum" else (-_GREATEST, number)
    return None


def _number(value: Value) -> float | None:
    """Return a constant of one element."""
    if value.constant is None or value.shape is None or math.prod(value.shape) != 1:
        return None
    return float(value.array.reshape(()))


@dataclass(frozen=True)
class _Ramp:
    """The function min(max(slope * x + offset, least), greatest)."""

    slope: float = 1.0
    offset: float = 0.0
    least: float = -math.inf
    greatest: float = math.inf

    def scaled(self, factor: float, offset: float) -> _Ramp | None:
        """Return factor * f(x) + offset; None if that is no such function."""
        if factor <= 0:
            return None
        least, greatest = factor * self.least + offset, factor * self.greatest + offset
        return _Ramp(factor * self.slope, factor * self.offset + offset, least, greatest)

    def clipped(self, least: float, greatest: float) -> _Ramp:
        """Return f(x), but not below and above some limits."""
        lower, upper = (min(max(one, least), greatest) for one in (self.least, self.greatest))
        return _Ramp(self.slope, self.offset, lower, upper)

    def is_close(self, other: _Ramp) -> bool:
        """Whether two functions are the same but for rounding."""
        return all(
            math.isclose(mine, its, rel_tol=_CLOSE, abs_tol=_CLOSE)
            for mine, its in zip(self._all(), other._all(), strict=True)
        )

    def _all(self) -> tuple[float, float, float, float]:
        return self.slope, self.offset, self.least, self.greatest


def _line(operation: Operation) -> tuple[Value, float, float] | None:
    """Return x, factor and offset of an operation that is factor * x + offset."""
    if len(operation.inputs) != 2:  # noqa: PLR2004 - of two operands
        return None
    first, second = operation.inputs
    number = _number(second)
    if number is not None:
        whole = {
            "add": (1.0, number),
            "subtract": (1.0, -number),
            "multiply": (number, 0.0),
            "divide": (1 / number if number else math.nan, 0.0),
        }.get(operation.name)
        return (first, *whole) if whole and not math.isnan(whole[0]) else None
    number = _number(first)
    if number is not None and operation.name in {"add", "multiply"}:
        return (second, 1.0, number) if operation.name == "add" else (second, number, 0.0)
    return None


def _ramp(value: Value, root: Value | None = None) -> tuple[Value, _Ramp]:
    """Return how a value is made of another by a line with limits; that other is as far up as possible, or `root`."""
    maker = value.maker
    if value is root or maker is None or value.escapes or value.readers > 1:
        return value, _Ramp()
    line = _line(maker)
    if line is not None:
        source, inner = _ramp(line[0], root)
        outer = inner.scaled(*line[1:])
        return (source, outer) if outer is not None else (value, _Ramp())
    limited = limits(maker)
    if limited is None:
        return value, _Ramp()
    source, inner = _ramp(maker.inputs[0], root)
    return source, inner.clipped(*limited)


def _hard_sigmoid(operation: Operation) -> Operation | None:
    """Find clip(alpha * x + beta, 0, 1), in the steps that the importer takes."""
    line, limited = _line(operation), limits(operation)
    if limited is not None:
        source, ramp = _ramp(operation.inputs[0])
        ramp = ramp.clipped(*limited)
    elif line is not None:
        source, inner = _ramp(line[0])
        scaled = inner.scaled(*line[1:])
        if scaled is None:
            return None
        ramp = scaled
    else:
        return None
    slopes = ramp.slope != 1 or ramp.offset != 0
    if not slopes or not ramp.is_close(_Ramp(ramp.slope, ramp.offset, 0.0, 1.0)):
        return None
    return Operation("hard_sigmoid", (source,), operation.outputs, values=(ramp.slope, ramp.offset))


def _pairs(operation: Operation) -> Iterator[tuple[Value, Value]]:
    """Yield the two operands in both orders, if they are tensors of one shape."""
    if len(operation.inputs) == 2 and operation.inputs[0].shape == operation.inputs[1].shape:  # noqa: PLR2004
        yield operation.inputs
        yield operation.inputs[1], operation.inputs[0]


def _silu(operation: Operation) -> Operation | None:
    """Find x * sigmoid(x)."""
    for root, other in _pairs(operation):
        maker = other.maker
        if maker is not None and maker.name == "sigmoid" and maker.inputs[0] is root and other.is_alone:
            return Operation("nn.silu", (root,), operation.outputs)
    return None


def _gelu(operation: Operation) -> Operation | None:
    """Find x * (1 + erf(x / sqrt(2))) / 2, in whatever order it is multiplied."""
    factors, number = _factors(operation)
    if len(factors) != 2 or not math.isclose(number, 0.5, rel_tol=_CLOSE):  # noqa: PLR2004 - x and what follows it
        return None
    for root, other in (factors, factors[::-1]):
        inner = _step(other, 1.0, 1.0)
        error = None if inner is None else inner.maker
        if error is None or error.name != "erf" or not error.out.is_alone:
            continue
        if _step(error.inputs[0], math.sqrt(0.5), 0.0) is root:
            return Operation("nn.gelu", (root,), operation.outputs)
    return None


def _step(value: Value, factor: float, offset: float) -> Value | None:
    """Return what a tensor is such a multiple of, plus a number; None if it is none, or read elsewhere."""
    line = _line(value.maker) if value.maker is not None and value.is_alone else None
    if line is None or not math.isclose(line[1], factor, rel_tol=_CLOSE) or line[2] != offset:
        return None
    return line[0]


def _factors(operation: Operation) -> tuple[list[Value], float]:
    """Return the tensors that are multiplied with each other, and the product of the numbers among them."""
    found: list[Value] = []
    product = 1.0
    for value in operation.inputs:
        number, maker = _number(value), value.maker
        if number is not None:
            product *= number
        elif maker is not None and maker.name == "multiply" and value.is_alone:
            inner, more = _factors(maker)
            found, product = [*found, *inner], product * more
        else:
            found.append(value)
    return found, product


def _hard_swish(operation: Operation) -> Operation | None:
    """Find x * clip(x + 3, 0, 6), with or without a factor: `values` holds how many times hard-swish the result is."""
    for root, other in _pairs(operation):
        maker = other.maker
        if maker is not None and maker.name == "hard_sigmoid" and maker.inputs[0] is root and other.is_alone:
            slope, offset = maker.values
            source, ramp = root, _Ramp(slope, offset, 0.0, 1.0)
        else:
            source, ramp = _ramp(other, root)
        factor = ramp.greatest
        if source is not root or not 0 < factor < _GREATEST:
            continue
        normal = ramp.scaled(1 / factor, 0.0)
        if normal is not None and normal.is_close(_Ramp(*_HARD_SWISH, 0.0, 1.0)):
            return Operation("hard_swish", (root,), operation.outputs, values=(factor,))
    return None


def _sum(operation: Operation) -> Operation | None:
    """Find the sum of a stack of tensors, which is how ONNX's Sum is imported."""
    (stacked,) = operation.inputs
    stack = stacked.maker
    if stack is None or stack.name != "stack" or not stacked.is_alone:
        return None
    attributes = operation.attributes
    axes = [int(axis) for axis in attributes.axis or ()]
    same = {value.shape for value in stack.inputs} == {operation.out.shape}
    if int(stack.attributes.axis or 0) or axes != [0] or attributes.keepdims or not same:
        return None
    return Operation("add", stack.inputs, operation.outputs)


def _shuffle(operation: Operation) -> Operation | None:
    """Find [n, groups * m, h, w] taken as [n, groups, m, h, w], groups and m exchanged: `values` holds the groups."""
    swapped = operation.inputs[0]
    transpose = swapped.maker
    if transpose is None or transpose.name != "permute_dims" or not swapped.is_alone:
        return None
    split = transpose.inputs[0]
    made = split.maker
    if made is None or made.name != "reshape" or not split.is_alone:
        return None
    source, out = made.inputs[0], operation.out
    if not source.is_image or source.shape != out.shape or split.shape is None:
        return None
    batch, channels, height, width = source.image
    axes = [int(axis) for axis in transpose.attributes.axes or ()]
    groups = split.shape[1]
    if axes != [0, 2, 1, 3, 4] or split.shape != (batch, groups, channels // groups, height, width):
        return None
    return Operation("shuffle", (source,), operation.outputs, values=(groups,))


def _linear(operation: Operation) -> Operation | None:
    """Find the product with a matrix that is known as [outputs, inputs]."""
    data, weights = operation.inputs
    transpose = weights.maker
    if transpose is None or transpose.name != "permute_dims" or transpose.inputs[0].constant is None:
        return None
    is_matrix = len(weights.shape or ()) == 2  # noqa: PLR2004 - of two axes, which changed places
    return Operation("linear", (data, *transpose.inputs), operation.outputs) if is_matrix else None


def _padded(operation: Operation) -> Operation | None:
    """Find a convolution of what is padded with zeros on its own: `values` holds how much, at all four sides."""
    data, weights = operation.inputs
    pad = data.maker
    if pad is None or pad.name != "pad" or not pad.inputs[0].is_image:
        return None
    batch, channels, top, left, *after = pad.values
    if batch or channels or after[0] or after[1]:
        return None
    inputs, values = (pad.inputs[0], weights), (top, left, *after[2:])
    return Operation(operation.name, inputs, operation.outputs, operation.call, values)


_NORMALIZATION = ("power", "add", "multiply", "squeeze", "nn.avg_pool3d", "expand_dims", "multiply")


def _local_normalization(operation: Operation) -> Operation | None:
    """Find x / (bias + alpha * mean of x * x over neighbouring channels) ** beta, which is how LRN is imported."""
    source, value = operation.inputs
    inputs: tuple[Value, ...] = ()
    for name in _NORMALIZATION:
        if value.maker is None or value.maker.name != name or not value.is_alone:
            return None
        inputs = value.maker.inputs
        value = inputs[0]
    return Operation("lrn", (source,), operation.outputs) if inputs == (source, source) else None


_Pattern = Callable[[Operation], Operation | None]

_PATTERNS: dict[str, tuple[_Pattern, ...]] = {
    "clip": (_hard_sigmoid,),
    "minimum": (_hard_sigmoid,),
    "maximum": (_hard_sigmoid,),
    "nn.conv2d": (_padded,),
    "matmul": (_linear,),
    "divide": (_hard_sigmoid, _local_normalization),
    "multiply": (_silu, _gelu, _hard_swish, _hard_sigmoid),
    "sum": (_sum,),
    "reshape": (_shuffle,),
}
