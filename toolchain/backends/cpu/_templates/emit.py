"""Small parts that the templates write TIR with, through TVM's own script builder.

Loops are real loops or unrolled here in Python; everything in between is straight-line code on vectors of the
machine's width. Accumulators are local buffers that are indexed by constants only: LLVM keeps those in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu._layers import Activation, Step

Expr = Any
Buffer = Any

_LEAST_SHARED = 32768  # vector operations, about 4 us: less is done sooner than other threads are told about it
_FAIR = 0.95  # how busy the cores must be on average

_LONG = {"sigmoid", "silu", "tanh"}  # steps of some twenty operations

_EXP_RANGE = (-87.33654, 88.72283)  # where the result is a normal number
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the product of the first and a small whole number is exact
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1, 1)

# As a fraction of polynomials, from Eigen (MathFunctionsImpl.h): 4e-7 of the result, also near zero.
_TANH_MOST = 7.90531110763549805
_TANH_ABOVE = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel: name, shape, element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


def kernel(arguments: Sequence[Argument], body: Callable[..., None], attributes: Mapping[str, Any]) -> tirx.PrimFunc:
    """Write a kernel.

    Args:
        arguments: Its arguments, the result last.
        body: Called with one flat buffer for each argument; writes the statements.
        attributes: Attributes of the function.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True, **attributes})
        shaped = [T.arg(one.name, T.buffer(one.shape, one.dtype)) for one in arguments]
        body(*(flat(one) for one in shaped))
    return builder.get()


def flat(buffer: Buffer) -> Buffer:
    """Return a one-dimensional view of a buffer."""
    size = 1
    for extent in buffer.shape:
        size *= int(extent)
    return T.decl_buffer((size,), buffer.dtype, data=buffer.data)


def shared(extent: int, operations: float) -> Any:
    """Return a loop that the cores share if that pays.

    Args:
        extent: Iterations.
        operations: Vector operations of the whole loop.
    """
    return T.parallel(0, extent) if extent > 1 and operations >= _LEAST_SHARED else T.serial(0, extent)


def sharing(operations: float, cores: int) -> int:
    """Return how many of the cores work on a loop of `shared` with so many vector operations."""
    return cores if operations >= _LEAST_SHARED else 1


def parts(groups: int, most: int, cores: int) -> int:
    """Return in how many parts each of some groups of work is cut, so that the cores get nearly equal shares.

    Args:
        groups: Groups, which take equally long.
        most: The most parts that a group can be cut into.
        cores: Cores that share the work.
    """

    def fairness(count: int) -> float:
        work = groups * count
        return work / (-(-work // cores) * cores)

    return next((count for count in range(1, most + 1) if fairness(count) >= _FAIR), most)


class Registers:
    """Vectors that LLVM keeps in registers; each is named by a number that is known here.

    Each is a buffer of its own: TVM puts less than 1 KiB of global scope on the stack, where LLVM finds it, and
    anything else into a workspace on the heap. It is used through a view, since a pass of TVM looks at each use of an
    allocated buffer for long.
    """

    def __init__(self, count: int, lanes: int, dtype: str = "float32") -> None:
        self._buffers = [flat(T.alloc_buffer((1,), _wide(dtype, lanes))) for _ in range(count)]

    def __getitem__(self, number: int) -> Expr:
        return self._buffers[number][0]

    def __setitem__(self, number: int, value: Expr) -> None:
        T.buffer_store(self._buffers[number], value, [0])


def on_stack(count: int, lanes: int) -> Buffer:
    """Return a small buffer of vectors, which may be indexed by variables; up to 1 KiB of it is on the stack."""
    return flat(T.alloc_buffer((count,), _wide("float32", lanes)))


def ramp(base: Expr, lanes: int) -> Expr:
    """Return the indices of a vector that lies together."""
    return tirx.Ramp(base, 1, lanes) if lanes > 1 else base


def splat(value: Expr | float, lanes: int, dtype: str = "float32") -> Expr:
    """Return a vector with the same value in each lane."""
    scalar = tirx.const(value, dtype) if isinstance(value, (int, float)) else value
    return tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar


def offset(place: Activation, image: Expr, block: Expr, row: Expr, column: Expr) -> Expr:
    """Return where the first lane of one pixel of one block lies in the flat buffer; `block` counts in the part."""
    held = place.held or place.blocks
    return (((image * held + place.first + block) * place.height + row) * place.width + column) * place.lanes


def arguments_of(steps: Sequence[Step], out: Activation) -> list[Argument]:
    """List the arguments that steps take on a blocked result."""
    found = []
    for number, step in enumerate(steps):
        if step.other is not None:
            found.append(Argument(f"step{number}", step.other.shape, step.other.dtype))
        elif step.takes_argument:
            found.append(Argument(f"step{number}", (out.blocks, out.lanes)))
    return found


def applied(  # noqa: PLR0913, PLR0917 - a place has that many coordinates
    value: Expr,
    steps: Sequence[Step],
    buffers: Sequence[Buffer],
    image: Expr,
    block: Expr,
    row: Expr,
    column: Expr,
    lanes: int,
) -> Expr:
    """Return the steps done to one vector of a blocked result.

    The tensor of an `add` or `mul` that is a single pixel goes with every pixel.

    Args:
        value: The vector.
        steps: What is done.
        buffers: The flat buffers of the steps that take an argument, in order.
        image: Image that the vector is of.
        block: Its block in the part.
        row: Its row.
        column: Its column.
        lanes: Its lanes.
    """
    given = iter(buffers)
    for step in steps:
        operand = None
        if step.other is not None:
            pixel = (0, 0) if step.other.height == step.other.width == 1 else (row, column)
            operand = next(given)[ramp(offset(step.other, image, block, *pixel), lanes)]
        elif step.takes_argument:
            operand = next(given)[ramp(block * lanes, lanes)]
        value = T.Bind(stepped(step, value, operand, lanes))
    return value


def finish(  # noqa: PLR0913, PLR0917 - a place has that many coordinates
    values: Sequence[Expr],
    steps: Sequence[Step],
    buffers: Sequence[Buffer],
    out: Buffer,
    place: Activation,
    image: Expr,
    block: Expr,
    row: Expr,
    column: Expr,
) -> None:
    """Do steps to neighbouring pixels of a row, and store them.

    Args:
        values: One vector for each pixel.
        steps: What is done.
        buffers: The flat buffers of the steps that take an argument, in order.
        out: Flat buffer of the result.
        place: Where the result lies in it.
        image: Image that the pixels are of.
        block: Their block in the part.
        row: Their row.
        column: Column of the first.
    """

    def pixel(value: Expr, number: Expr) -> None:
        at = (image, block, row, column + number)
        value = applied(value, steps, buffers, *at, place.lanes)
        T.buffer_store(out, value, [ramp(offset(place, *at), place.lanes)])

    if len(values) == 1 or not is_long(steps):
        for number, value in enumerate(values):
            pixel(value, number)
        return
    # A loop, since many copies of such code take seconds to compile; it is long enough to hide the memory between.
    held = on_stack(len(values), place.lanes)
    for number, value in enumerate(values):
        T.buffer_store(held, value, [number])
    with T.serial(0, len(values)) as number:
        pixel(held[number], number)


def is_long(steps: Sequence[Step]) -> bool:
    """Whether steps are so much code that many copies of it would take seconds to compile."""
    return any(step.kind in _LONG for step in steps)


def stepped(step: Step, value: Expr, operand: Expr, lanes: int) -> Expr:
    """Return one step done to a vector; `operand` is what it takes, if it takes something."""
    if step.kind in {"add", "shift"}:
        return value + operand
    if step.kind in {"mul", "scale"}:
        return value * operand
    return activation(step, value, lanes)


@dataclass(frozen=True)
class _Vectors:
    """Writes arithmetic on vectors of some width."""

    lanes: int

    def number(self, value: float) -> Expr:
        """Return a vector of one number."""
        return splat(float(value), self.lanes)

    def clipped(self, x: Expr, least: float, greatest: float) -> Expr:
        return tirx.min(tirx.max(x, self.number(least)), self.number(greatest))

    def polynomial(self, x: Expr, coefficients: Sequence[float]) -> Expr:
        """Return a polynomial by Horner's rule, the highest power's coefficient first."""
        first, *others = coefficients
        value = self.number(first)
        for coefficient in others:
            value = value * x + self.number(coefficient)
        return value

    def exp(self, x: Expr) -> Expr:
        floats, ints = _wide("float32", self.lanes), _wide("int32", self.lanes)
        x = T.Bind(self.clipped(x, *_EXP_RANGE))
        # Adding 1.5 * 2**23 rounds to a whole number and leaves it in the low bits. Subtracting it again as a float
        # would do to get it back, but the simplifier takes the two for nothing.
        rounded = tirx.reinterpret(ints, x * self.number(math.log2(math.e)) + self.number(1.5 * 2**23))
        power = T.Bind(rounded - splat(0x4B400000, self.lanes, "int32"))
        count = T.Bind(tirx.Cast(floats, power))
        rest = T.Bind(x - count * self.number(_LN2_HIGH) - count * self.number(_LN2_LOW))
        fraction = self.polynomial(rest, _EXP)
        exponent = tirx.shift_left(power, splat(23, self.lanes, "int32"))
        return T.Bind(tirx.reinterpret(floats, tirx.reinterpret(ints, fraction) + exponent))

    def sigmoid(self, x: Expr) -> Expr:
        return T.Bind(self.number(1.0) / (self.number(1.0) + self.exp(self.number(0.0) - x)))

    def tanh(self, x: Expr) -> Expr:
        x = T.Bind(self.clipped(x, -_TANH_MOST, _TANH_MOST))
        square = T.Bind(x * x)
        return x * self.polynomial(square, _TANH_ABOVE) / self.polynomial(square, _TANH_BELOW)


_Function = Callable[[_Vectors, Expr, tuple[float, ...]], Expr]

_FUNCTIONS: dict[str, _Function] = {
    "relu": lambda v, x, _: tirx.max(x, v.number(0.0)),
    "clip": lambda v, x, limits: v.clipped(x, *limits),
    "leaky_relu": lambda v, x, slope: tirx.max(x, v.number(0.0)) + tirx.min(x, v.number(0.0)) * v.number(*slope),
    "sigmoid": lambda v, x, _: v.sigmoid(x),
    "silu": lambda v, x, _: x * v.sigmoid(x),
    "tanh": lambda v, x, _: v.tanh(x),
    "hard_sigmoid": lambda v, x, line: v.clipped(x * v.number(line[0]) + v.number(line[1]), 0.0, 1.0),
    "hard_swish": lambda v, x, _: x * v.clipped(x * v.number(1 / 6) + v.number(0.5), 0.0, 1.0),
}


def activation(step: Step, x: Expr, lanes: int) -> Expr:
    """Return an activation function of a vector, as ONNX defines it."""
    return _FUNCTIONS[step.kind](_Vectors(lanes), x, step.values)


def exp(x: Expr, lanes: int) -> Expr:
    """Return the exponential of a vector, in vector code; beyond the range of normal numbers it stays at its ends.

    The error is below 1e-7 of the result, by the method and coefficients of expf in Cephes
    (https://www.netlib.org/cephes/).
    """
    return _Vectors(lanes).exp(x)


def _wide(dtype: str, lanes: int) -> str:
    return f"{dtype}x{lanes}" if lanes > 1 else dtype
