"""Small parts that the templates write TIR with, through TVM's own script builder.

Loops are real loops or unrolled here in Python; everything in between is straight-line code on vectors of the
machine's width. Accumulators are local buffers that are indexed by constants only: LLVM keeps those in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.layers import BFLOAT16, FLOAT16, Activation, PostOp
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.math import Functions
from toolchain.backends.cpu.math import splat as splat  # noqa: PLC0414 - templates take it from here
from toolchain.backends.cpu.math import wide as wide  # noqa: PLC0414

Expr = Any
Buffer = Any
Coordinates = tuple[Expr, Expr, Expr, Expr]
"""Image, block (counted in the slice), row and column of a pixel."""

LINE = 64
"""Bytes of a line of the caches."""

ROUND_PAIRS, WIDEN_PAIRS = "toolchain_bfloat16_round", "toolchain_bfloat16_widen"
"""The functions that `round_pairs` and `load` call; `bfloat16.emit.with_definitions` defines them."""

GREATEST_HALF = 65504.0
"""The greatest number of float16."""

_LEAST_SHARED = 32768  # vector operations, about 4 us: less is done sooner than other threads are told about it
_FAIR = 0.95  # how busy the cores must be on average

_LONG = {"sigmoid", "silu", "tanh", "gelu", "gelu_tanh"}  # post-ops of some twenty operations


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel: name, shape, element type."""

    name: str
    shape: tuple[Any, ...]
    dtype: str = "float32"


def kernel(
    arguments: Sequence[Argument],
    body: Callable[..., None],
    attributes: Mapping[str, Any],
    size: tirx.Var | None = None,
) -> tirx.PrimFunc:
    """Write a kernel.

    Args:
        arguments: Its arguments, the result last.
        body: Called with one flat buffer for each argument; writes the statements.
        attributes: Attributes of the function.
        size: What shapes of the arguments depend on, if they do; the last parameter.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True, **attributes})
        # `noalias`: LLVM may keep loads of one argument in registers across stores to another.
        shaped = [T.arg(argument.name, T.buffer(argument.shape, argument.dtype)) for argument in arguments]
        if size is not None:
            T.arg(size.name, size)
        body(*(flat(argument) for argument in shaped))
    return builder.get()


def flat(buffer: Buffer) -> Buffer:
    """Return a one-dimensional view of a buffer."""
    size: Any = 1
    for extent in buffer.shape:
        size = size * (int(extent) if isinstance(extent, tirx.IntImm) else extent)
    return T.decl_buffer((size,), buffer.dtype, data=buffer.data)


def shared(extent: int, operations: float) -> Any:
    """Return a loop that the cores share if that pays.

    Args:
        extent: Iterations.
        operations: Vector operations of the whole loop.
    """
    return T.parallel(0, extent) if extent > 1 and operations >= _LEAST_SHARED else T.serial(0, extent)


def worker_count(operations: float, cores: int) -> int:
    """Return how many of the cores work on a loop of `shared` with so many vector operations."""
    return cores if operations >= _LEAST_SHARED else 1


def count_shares(groups: int, limit: int, cores: int) -> int:
    """Return in how many parts each of some groups of work is cut, so that the cores get nearly equal shares.

    Args:
        groups: Groups, which take equally long.
        limit: The most parts that a group can be cut into.
        cores: Cores that share the work.
    """

    def fairness(count: int) -> float:
        work = groups * count
        return work / (-(-work // cores) * cores)

    return next((count for count in range(1, limit + 1) if fairness(count) >= _FAIR), limit)


class Registers:
    """Vectors that LLVM keeps in registers; each is named by a number that is known here.

    Each is a buffer of its own: TVM puts less than 1 KiB of global scope on the stack, where LLVM finds it, and
    anything else into a workspace on the heap. It is used through a view, since a pass of TVM looks at each use of an
    allocated buffer for long.
    """

    def __init__(self, count: int, lanes: int, dtype: str = "float32") -> None:
        self._buffers = [flat(T.alloc_buffer((1,), wide(dtype, lanes))) for _ in range(count)]

    def __getitem__(self, number: int) -> Expr:
        return self._buffers[number][0]

    def __setitem__(self, number: int, value: Expr) -> None:
        T.buffer_store(self._buffers[number], value, [0])


def on_stack(count: int, lanes: int, dtype: str = "float32") -> Buffer:
    """Return a small buffer of vectors, which may be indexed by variables; up to 1 KiB of it is on the stack."""
    return flat(T.alloc_buffer((count,), wide(dtype, lanes)))


def numbers_on_stack(count: int) -> Buffer:
    """Return a small buffer of floats on the stack, which may be read one by one.

    It has a scope of its own: TVM would share the memory of registers with it, and take both for vectors.
    """
    return flat(T.alloc_buffer((count,), "float32", scope="local"))


def element_type(value: Expr) -> str:
    """Return the element type of a vector, or the type of a number."""
    return str(value.ty.dtype).partition("x")[0]


def in_type(value: Expr, dtype: str, lanes: int) -> Expr:
    """Return a vector with elements of another type, or the same if they are of that."""
    return value if element_type(value) == dtype else tirx.Cast(wide(dtype, lanes), value)


def ramp(base: Expr, lanes: int) -> Expr:
    """Return the indices of a vector that lies together."""
    return tirx.Ramp(base, 1, lanes) if lanes > 1 else base


def fetch(element: Expr, cache: int) -> None:
    """Bring the line of memory that holds an element into the first or second cache, since it will be read soon."""
    # To be read, how near, data and not code.
    settings = (tirx.const(setting, "int32") for setting in (0, 4 - cache, 1))
    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(element), *settings))


def transpose(rows: Sequence[Expr]) -> list[Expr]:
    """Return the columns of a square of vectors; their number is a power of two."""
    rows, size = list(rows), len(rows)
    half = size // 2
    while half:
        # Swap the off-diagonal halves of each square of twice this size.
        for first in (row for row in range(size) if not row & half):
            pair = [rows[first], rows[first + half]]
            upper = [lane + size - half if lane & half else lane for lane in range(size)]
            lower = [lane + size if lane & half else lane + half for lane in range(size)]
            rows[first], rows[first + half] = (T.Bind(tirx.Shuffle(pair, lanes)) for lanes in (upper, lower))
        half //= 2
    return rows


def offset(activation: Activation, image: Expr, block: Expr, row: Expr, column: Expr) -> Expr:
    """Return where the first lane of one pixel of one block lies in the flat buffer; `block` counts in the part."""
    blocks = activation.held or activation.blocks
    return (
        ((image * blocks + activation.first + block) * activation.height + row) * activation.width + column
    ) * activation.stored_lanes


def arguments_of(epilogue: Sequence[PostOp], out: Activation) -> list[Argument]:
    """List the arguments that an epilogue takes on a blocked result."""
    arguments = []
    for number, op in enumerate(epilogue):
        if op.other is not None:
            arguments.append(Argument(f"operand{number}", op.other.shape, op.other.stored_dtype))
        elif op.takes_argument:
            arguments.append(Argument(f"operand{number}", (out.blocks, out.lanes)))
    return arguments


def apply_epilogue(
    value: Expr, epilogue: Sequence[PostOp], buffers: Sequence[Buffer], coordinates: Coordinates, lanes: int
) -> Expr:
    """Return the epilogue done to one vector of a blocked result.

    The tensor of an `add` or `mul` that is a single pixel goes with every pixel.

    Args:
        value: The vector.
        epilogue: What is done.
        buffers: The flat buffers of the post-ops that take an argument, in order.
        coordinates: Where the vector lies in the result.
    """
    operands, (image, block, row, column) = iter(buffers), coordinates
    for op in epilogue:
        operand = None
        if op.other is not None:
            pixel = (0, 0) if op.other.height == op.other.width == 1 else (row, column)
            operand = load(next(operands), op.other, offset(op.other, image, block, *pixel))
        elif op.takes_argument:
            operand = next(operands)[ramp(block * lanes, lanes)]
        value = T.Bind(apply_post_op(op, value, operand, lanes))
    return value


def load(data: Buffer, activation: Activation, start: Expr) -> Expr:
    """Return the vector of one pixel and block, which lies from `start` on; numbers in bfloat16 become float32."""
    vector = data[ramp(start, activation.stored_lanes)]
    if activation.dtype != BFLOAT16:
        return vector
    return tirx.call_pure_extern(wide("float32", activation.lanes), WIDEN_PAIRS, vector)


def store(value: Expr, out: Buffer, activation: Activation, coordinates: Coordinates) -> None:
    """Store the vector of one pixel and block, in the type of the result."""
    if activation.dtype == BFLOAT16:
        value = round_pairs(value, activation.lanes)
    else:
        value = in_type(value, activation.dtype, activation.lanes)
    T.buffer_store(out, value, [ramp(offset(activation, *coordinates), activation.stored_lanes)])


def round_pairs(numbers: Expr, lanes: int) -> Expr:
    """Return a vector of float32, rounded to bfloat16, as half as many int32; see `bfloat16.emit`."""
    return tirx.call_pure_extern(wide("int32", lanes // 2), ROUND_PAIRS, numbers)


def store_pixels(
    values: Sequence[Expr],
    epilogue: Sequence[PostOp],
    buffers: Sequence[Buffer],
    out: Buffer,
    activation: Activation,
    first: Coordinates,
) -> None:
    """Do the epilogue to neighbouring pixels of a row, and store them.

    Args:
        values: One vector for each pixel.
        epilogue: What is done.
        buffers: The flat buffers of the post-ops that take an argument, in order.
        out: Flat buffer of the result.
        activation: Where the result lies in it.
        first: Where the first pixel lies in the result.
    """
    image, block, row, column = first

    def pixel(value: Expr, number: Expr) -> None:
        coordinates = (image, block, row, column + number)
        store(apply_epilogue(value, epilogue, buffers, coordinates, activation.lanes), out, activation, coordinates)

    if len(values) == 1 or not is_long(epilogue):
        for number, value in enumerate(values):
            pixel(value, number)
        return
    # A loop, since many copies of such code take seconds to compile; it is long enough to hide the memory between.
    stored = on_stack(len(values), activation.lanes, element_type(values[0]))
    for number, value in enumerate(values):
        T.buffer_store(stored, value, [number])
    with T.serial(0, len(values)) as number:
        pixel(stored[number], number)


def is_long(epilogue: Sequence[PostOp]) -> bool:
    """Whether an epilogue is so much code that many copies of it would take seconds to compile."""
    return any(op.kind in _LONG for op in epilogue)


def apply_post_op(op: PostOp, value: Expr, operand: Expr, lanes: int) -> Expr:
    """Return one post-op done to a vector; `operand` is what it takes, if it takes something.

    On float16, only what is a few operations there is done in it; what takes more is done in float32.
    """
    dtype = element_type(value)
    if dtype == FLOAT16 and not _stays_half(op, operand):
        operand = None if operand is None else in_type(operand, "float32", lanes)
        result = apply_post_op(op, T.Bind(in_type(value, "float32", lanes)), operand, lanes)
        return in_type(result, FLOAT16, lanes)
    if operand is not None:
        operand = in_type(operand, dtype, lanes)
    if op.kind in {"add", "shift"}:
        return value + operand
    if op.kind in {"mul", "scale"}:
        return value * operand
    return activation(op, value, lanes)


def _stays_half(op: PostOp, operand: Expr) -> bool:
    """Whether a post-op is done in float16: its numbers are float16, or nearly."""
    if op.kind in {"add", "mul"}:
        return element_type(operand) == FLOAT16
    return op.kind in {"relu", "clip", "leaky_relu"} and all(abs(limit) <= GREATEST_HALF for limit in op.values)


def _half(v: Functions, x: Expr) -> Expr:
    return x * v.number(0.5)


def _gelu(v: Functions, x: Expr) -> Expr:
    """Return x * (1 + erf(x / sqrt(2))) / 2; far below zero the sum is not exactly 0, and x would show that."""
    value = _half(v, x) * (v.number(1.0) + v.erf(x * v.number(math.sqrt(0.5))))
    return prim.Select(x < v.number(-6.0), v.number(0.0), value)


def _cubic(v: Functions, x: Expr) -> Expr:
    """Return sqrt(2 / pi) * (x + 0.044715 * x^3), of which gelu takes the hyperbolic tangent for an error function."""
    factor = math.sqrt(2 / math.pi)
    return x * (v.number(factor) + v.number(0.044715 * factor) * (x * x))


_Activation = Callable[[Functions, Expr, tuple[float, ...]], Expr]

_ACTIVATIONS: dict[str, _Activation] = {
    "relu": lambda v, x, _: tirx.max(x, v.number(0.0)),
    "clip": lambda v, x, limits: v.clipped(x, *limits),
    "leaky_relu": lambda v, x, slope: tirx.max(x, v.number(0.0)) + tirx.min(x, v.number(0.0)) * v.number(*slope),
    "sigmoid": lambda v, x, _: v.sigmoid(x),
    "silu": lambda v, x, _: x * v.sigmoid(x),
    "gelu": lambda v, x, _: _gelu(v, x),
    "gelu_tanh": lambda v, x, _: _half(v, x) * (v.number(1.0) + v.tanh(_cubic(v, x))),
    "tanh": lambda v, x, _: v.tanh(x),
    "hard_sigmoid": lambda v, x, line: v.clipped(x * v.number(line[0]) + v.number(line[1]), 0.0, 1.0),
    "hard_swish": lambda v, x, _: x * v.clipped(x * v.number(1 / 6) + v.number(0.5), 0.0, 1.0),
}


def activation(op: PostOp, x: Expr, lanes: int) -> Expr:
    """Return an activation function of a vector, as ONNX defines it."""
    return _ACTIVATIONS[op.kind](Functions(T.Bind, lanes, element_type(x)), x, op.values)


def functions(lanes: int) -> Functions:
    """Return what writes functions of vectors."""
    return Functions(T.Bind, lanes)


# --- functions in LLVM's own language --------------------------------------------------------------------------------

LLVM_TEXT = "pragma_import_llvm"
"""The attribute of a statement whose calls of functions are defined in a text of LLVM's language."""


_PORTABLE = "toolchain.portable"  # a kernel's attribute: its texts, and those that any processor can run


def with_llvm(function: tirx.PrimFunc, text: str, portable: str | None = None) -> tirx.PrimFunc:
    """Return a kernel together with the definitions of functions that it calls; LLVM inlines them.

    Args:
        function: The kernel.
        text: The definitions.
        portable: Others without special instructions: see `portable`.
    """
    if portable is not None:
        texts = dict(function.attrs.get(_PORTABLE, {})) if function.attrs else {}
        function = function.with_attr(_PORTABLE, {**texts, text: portable})
    return function.with_body(tirx.AttrStmt(tirx.const(0, "int32"), LLVM_TEXT, tvm.ir.StringImm(text), function.body))


def portable(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel with the portable definitions that `with_llvm` got, if it got some."""
    texts = {str(text): str(other) for text, other in ((function.attrs or {}).get(_PORTABLE) or {}).items()}

    def replaced(statement: tirx.AttrStmt) -> tirx.AttrStmt:
        if statement.attr_key != LLVM_TEXT or str(statement.value.value) not in texts:
            return statement
        text = texts[str(statement.value.value)]
        return tirx.AttrStmt(statement.node, statement.attr_key, tvm.ir.StringImm(text), statement.body)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.AttrStmt, replaced)))


def has_assembly(function: tirx.PrimFunc) -> bool:
    """Whether a kernel's definitions have instructions as text, which end LLVM's process on another processor."""
    texts: list[str] = []

    def note(statement: tirx.AttrStmt) -> None:
        if statement.attr_key == LLVM_TEXT:
            texts.append(str(statement.value.value))

    tvm_ffi.structural_walk(function.body, (tirx.AttrStmt, note))
    return any(" asm " in text for text in texts)


# --- multiplications whose product is added --------------------------------------------------------------------------

# 32-bit Arm cores have `vmla.f32`, which rounds the product and the sum. TVM allows LLVM to fuse the two into one
# rounding, and LLVM then takes this instruction for none: it writes `vmul.f32` and `vadd.f32`, at half the rate. It
# also moves all of a tile's loads to the front of the loop, which 16 registers do not hold. So the instruction comes
# in functions of LLVM's own language, which are inlined; being marked as having effects, they stay in their order.

_LANES = 4
_NAME = "toolchain_multiply_add"
_VECTOR = "<4 x float>"


def multiply_add(machine: Machine, total: Any, vector: Any, factors: Any, element: int | None = None) -> Any:
    """Return total + vector * factors, for vectors of the machine's width.

    Args:
        machine: The processor.
        total: The sum so far.
        vector: The one factor.
        factors: The other one.
        element: Lane of `factors` that is taken for all lanes.
    """
    if machine.vmla:
        name = _NAME if element is None else f"{_NAME}_{element}"
        return tirx.call_pure_extern(f"float32x{_LANES}", name, total, vector, factors)
    if element is not None:
        lane = tirx.Shuffle([factors], [tirx.const(element, "int32")])
        factors = tirx.Broadcast(lane, machine.lanes)
    return total + vector * factors


def with_definitions(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Return a kernel together with what its calls of `multiply_add` call."""
    if not machine.vmla:
        return function
    halves = [f"${{3:{half}}}[{lane}]" for half in "ef" for lane in range(2)]
    by_element = [_definition(f"{_NAME}_{lane}", operand, "t") for lane, operand in enumerate(halves)]
    return with_llvm(function, "".join([_definition(_NAME, "${3:q}", "w"), *by_element]))


def _definition(name: str, operand: str, registers: str) -> str:
    """Write one; only the first half of the registers (`t`) can be taken by element."""
    code = f"vmla.f32 ${{0:q}}, ${{2:q}}, {operand}"
    return (
        f"define {_VECTOR} @{name}({_VECTOR} %total, {_VECTOR} %vector, {_VECTOR} %factors) alwaysinline nounwind {{\n"
        f'  %sum = call {_VECTOR} asm sideeffect "{code}", "=w,0,w,{registers}"'
        f"({_VECTOR} %total, {_VECTOR} %vector, {_VECTOR} %factors) nounwind readnone\n"
        f"  ret {_VECTOR} %sum\n}}\n"
    )
