"""Weights that kernels read as images: through the texture unit, which has a path and a cache of its own.

What loads and stores is the busiest unit of most kernels, and nearly half of what a convolution loads are weights. A
constant of a network is laid out as rows of texels, four numbers each, and its argument gets a name that says so, as
the source is all that what writes OpenCL C gets. A kernel whose loads of it are all vectors of four reads it by macros.
What they stand for is decided where the kernel is compiled: the runtime defines EDGE_IMAGES on a device that has such
views of buffers (`// edge-image:` tells it their shape), and everywhere else they are the loads that they replace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

MARK = "edge_texels"
"""What names of arguments that may be read as images have, and no others."""

SWITCH = "EDGE_IMAGES"
"""What is defined where they are."""

_LANES = 4
_NARROWEST, _WIDEST = 64, 8192  # texels of a row: rows of 64 are what every known driver takes
_HIGHEST = 16384  # rows: what every device with such views has
_TYPES = {"float32": "float", "float16": "half"}
_CALLS = {"relax.call_tir", "relax.call_tir_inplace"}
_SCHEDULED = "tirx.is_scheduled"
_HEAD = re.compile(r"^__kernel void (\w+)\(([^)]*)\)( ?[{;])", re.MULTILINE)
_POINTER = re.compile(rf"__global const (float|half)\* restrict (\w+_{MARK}_(\d+)x(\d+)_ptr)")
_BODY_END = "\n}"
_PRODUCT = re.compile(r"(.*\S) \* (\d+)", re.DOTALL)
_LITERAL = re.compile(r"\d+")

# Mesa's compiler ends unexpectedly at read_imageh; halves are the same numbers as floats.
_PREAMBLE = f"""\
#ifdef {SWITCH}
__constant sampler_t edge_plain = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;
#define EDGE_TEXELS(type, name) __read_only image2d_t name
#define EDGE_TEXEL_float(name, index, x, y) read_imagef(name, edge_plain, (int2)((int)(x), (int)(y)))
#define EDGE_TEXEL_half(name, index, x, y) convert_half4(EDGE_TEXEL_float(name, index, x, y))
#else
#define EDGE_TEXELS(type, name) __global const type* restrict name
#define EDGE_TEXEL_float(name, index, x, y) (*(__global const float4*)(name + (index)))
#define EDGE_TEXEL_half(name, index, x, y) (*(__global const half4*)(name + (index)))
#endif
"""


# --- which arguments -------------------------------------------------------------------------------------------------


def marked(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose kernels have names for the arguments that may be read as images.

    Those are constants in each call. Kernels that are written as they are to run stay so. Names are nothing that
    records of a kernel depend on.

    Args:
        module: Calls of kernels, with their weights as constants.
    """
    constant = _constant_arguments(module)
    functions = dict(module.functions_items())
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and _SCHEDULED not in (function.attrs or {}):
            functions[variable] = _named(function, constant.get(str(variable.name_hint), set()))
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def _constant_arguments(module: tvm.IRModule) -> dict[str, set[int]]:
    """Return by kernel the numbers of the arguments that are constants in each of its calls."""
    by_kernel: dict[str, set[int]] = {}

    def visit(call: Any) -> None:
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") not in _CALLS:
            return
        arguments = list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else []
        constants = {number for number, argument in enumerate(arguments) if isinstance(argument, tvm.ir.GenericConst)}
        name = str(call.args[0].name_hint)
        by_kernel[name] = by_kernel.get(name, constants) & constants

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return by_kernel


def _named(function: tirx.PrimFunc, numbers: set[int]) -> tirx.PrimFunc:
    renamed = {}
    for number in numbers:
        parameter = function.params[number]
        texels = texels_of([_extent(size) for size in parameter.ty.shape], str(parameter.dtype))
        if texels is not None:
            renamed[parameter] = tirx.Var(f"{parameter.name}_{MARK}_{texels[0]}x{texels[1]}", parameter.ty)
    if not renamed:
        return function
    return tvm_ffi.structural_map(function, (tirx.Var, lambda variable: renamed.get(variable, variable)))


def _extent(size: Any) -> int:
    return int(size) if isinstance(size, (int, tirx.IntImm)) else 0


def texels_of(shape: list[int], dtype: str) -> tuple[int, int] | None:
    """Return the width and height of a constant as an image; None for what is none, such as one number a channel.

    Those are matrices: of layers with windows, nobody has asked the model yet whether registers suffice.

    Rows are as long as those of the constant, if that is a power of two: a step to the next row of the one is then a
    step to the next of the other.
    """
    if len(shape) < 2 or dtype not in _TYPES or shape[-1] % _LANES:  # noqa: PLR2004
        return None
    if math.prod(shape) == shape[-1] or math.prod(shape[:-2]) != 1:
        return None
    total, row = math.prod(shape) // _LANES, shape[-1] // _LANES
    width = min(max(row & -row, _NARROWEST), _WIDEST)
    fits = total and total % width == 0 and total // width <= _HIGHEST
    return (width, total // width) if fits else None


# --- how they are read -----------------------------------------------------------------------------------------------


def imaged(source: str) -> str:
    """Return OpenCL C whose kernels read the arguments that are marked by macros, where all loads are vectors of four.

    Args:
        source: OpenCL C with any number of kernels, whose vectors are accessed as such and whose pointers are const
            where they are only read.
    """
    pieces, position, changed = [], 0, set()
    for head in _HEAD.finditer(source):
        names = {match[2]: match for match in _POINTER.finditer(head[2])}
        if not names:
            continue
        if head[3].endswith(";"):
            continue  # the runtime drops declarations
        end = source.find(_BODY_END, head.end())
        body, read = source[head.end() : end], {}
        for name, pointer in names.items():
            rewritten = _read(body, name, pointer[1], int(pointer[3]))
            if rewritten is not None:
                body, read[name] = rewritten, pointer
        if read and end >= 0:
            pieces += [source[position : head.start()], _marks(head, read), _head(head, read), body]
            position = end
            changed.add(head[1])
    result = "".join([*pieces, source[position:]])
    return _PREAMBLE + _without_declarations(result, changed) if changed else source


def _without_declarations(source: str, names: set[str]) -> str:
    """Drop the declarations of kernels, whose arguments are now other ones; a definition needs none."""
    return _HEAD.sub(lambda head: "" if head[3].endswith(";") and head[1] in names else head[0], source)


def _marks(head: re.Match[str], read: dict[str, re.Match[str]]) -> str:
    numbers = {argument.split()[-1]: number for number, argument in enumerate(head[2].split(","))}
    return "".join(f"// edge-image: {numbers[name]} {pointer[1]} {pointer[3]} {pointer[4]}\n" for name, pointer in read.items())


def _head(head: re.Match[str], read: dict[str, re.Match[str]]) -> str:
    arguments = _POINTER.sub(lambda pointer: f"EDGE_TEXELS({pointer[1]}, {pointer[2]})" if pointer[2] in read else pointer[0], head[2])
    return f"__kernel void {head[1]}({arguments}){head[3]}"


def _read(body: str, name: str, kind: str, width: int) -> str | None:
    """Write the loads of an argument as texels; None if one is no vector of four."""
    opening = f"(*(__global {kind}{_LANES}*)({name} + "
    if not body.count(name) or body.count(opening) != len(re.findall(rf"\b{name}\b", body)):
        return None
    pieces, position = [], 0
    while (start := body.find(opening, position)) >= 0:
        first = start + len(opening)
        last = _closing(body, first)
        pieces += [body[position:start], f"EDGE_TEXEL_{kind}({name}, {_texel(body[first:last], width)})"]
        position = last + 2  # behind the brackets of the pointer and of the access
    return "".join([*pieces, body[position:]])


def _closing(text: str, start: int) -> int:
    """Return where the bracket is closed that was opened before a place."""
    depth = 1
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if not depth:
            return index
    raise ValueError(text[start:])


def _texel(index: str, width: int) -> str:
    """Write the arguments of a macro: an index of numbers, and where that is in the image.

    What is a multiple of a row goes into the row alone, so that the column stays the same in a loop over rows.
    """
    rows: list[str] = []
    rest: list[str] = []
    size = _LANES * width
    for term in _terms(index):
        quotient = _divided(term, size)
        (rest if quotient is None else rows).append(term if quotient is None else quotient)
    columns, shift = f"({' + '.join(rest)})" if rest else "0", size.bit_length() - 1
    row = " + ".join([*rows, *([f"({columns} >> {shift})"] if rest else [])])
    return f"({index}), (({columns} >> 2) & {width - 1}), ({row})"


def _terms(expression: str) -> Iterator[str]:
    """Yield what a sum is made of."""
    text = expression.strip()
    while text.startswith("(") and _closing(text, 1) == len(text) - 1:
        text = text[1:-1].strip()
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if not depth and text[index - 1 : index + 2] == " + ":
            yield from _terms(text[: index - 1])
            yield from _terms(text[index + 2 :])
            return
    yield f"({text})"


def _divided(term: str, by: int) -> str | None:
    """Write a term divided by a number; None if it is not plainly a multiple."""
    text = term[1:-1]
    if _LITERAL.fullmatch(text):
        return str(int(text) // by) if int(text) % by == 0 else None
    product = _PRODUCT.fullmatch(text)
    if product is None or int(product[2]) % by or not _is_one(product[1]):
        return None
    return f"({product[1]} * {int(product[2]) // by})"


def _is_one(text: str) -> bool:
    """Whether a factor is a name, or something in brackets."""
    return text.isidentifier() or (text.startswith("(") and _closing(text, 1) == len(text) - 1)
