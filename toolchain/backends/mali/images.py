"""Weights that kernels read as images: through the texture unit, which has a path and a cache of its own.

The load-store unit is the busiest of most kernels, and nearly half of what a convolution loads are weights. A constant
of a network is laid out as rows of texels, four numbers each, and its argument gets a name that says so: the rewrite of
OpenCL C sees nothing but the text. A kernel whose loads of it are all vectors of four reads it by macros. What these
are is decided where the kernel is compiled: the runtime defines EDGE_IMAGES on a device that has such views of buffers
(`// edge-image:` gives their shape), and everywhere else the macros are the loads that they replace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax, tirx

from toolchain.backends.mali.opencl_vectors import closing_bracket
from toolchain.backends.mali.rewrite import map_kernels, substitute

MARK = "edge_texels"
"""Part of the names of arguments that may be read as images, and of no other name."""

SWITCH = "EDGE_IMAGES"
"""The macro that is defined where they are."""

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


def mark_arguments(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose kernels have names for the arguments that may be read as images.

    Those are constants in each call. Kernels that are written by hand stay as they are. Tuning records do not depend on
    names.

    Args:
        module: Calls of kernels, with their weights as constants.
    """
    constants: dict[str, set[int]] = {}  # by kernel, the arguments that are constant in each of its calls

    def visit(call: Any) -> None:
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") not in _CALLS:
            return
        arguments = list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else []
        numbers = {number for number, argument in enumerate(arguments) if isinstance(argument, tvm.ir.GenericConst)}
        name = str(call.args[0].name_hint)
        constants[name] = constants.get(name, numbers) & numbers

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)

    def mark(name: str, function: tirx.PrimFunc) -> tirx.PrimFunc:
        if _SCHEDULED in (function.attrs or {}):
            return function
        renamed = {}
        for number in constants.get(name, set()):
            parameter = function.params[number]
            shape = [int(size) if isinstance(size, (int, tirx.IntImm)) else 0 for size in parameter.ty.shape]
            if (size := image_size(shape, str(parameter.dtype))) is not None:
                renamed[parameter] = tirx.Var(f"{parameter.name}_{MARK}_{size[0]}x{size[1]}", parameter.ty)
        return substitute(function, renamed) if renamed else function

    return map_kernels(module, mark)


def image_size(shape: list[int], dtype: str) -> tuple[int, int] | None:
    """Return the width and height of a constant as an image, in texels; None if it is not read as one.

    Only matrices are: of weights with windows, it is not known whether registers suffice. One number for each channel
    is too little.

    Rows are as long as those of the constant if that is a power of two: a step to the next row of the matrix is then a
    step to the next row of the image.
    """
    if len(shape) < 2 or dtype not in _TYPES or shape[-1] % _LANES:  # noqa: PLR2004
        return None
    if math.prod(shape) == shape[-1] or math.prod(shape[:-2]) != 1:
        return None
    total, row = math.prod(shape) // _LANES, shape[-1] // _LANES
    width = min(max(row & -row, _NARROWEST), _WIDEST)  # the greatest power of two that divides a row
    fits = total and total % width == 0 and total // width <= _HIGHEST
    return (width, total // width) if fits else None


# --- how they are read -----------------------------------------------------------------------------------------------


def read_images(source: str) -> str:
    """Return OpenCL C whose kernels read the marked arguments by macros, where all loads are vectors of four.

    Args:
        source: OpenCL C with any number of kernels, whose vectors are accessed as such and whose pointers are const
            where they are only read.
    """
    pieces, position, changed = [], 0, set()
    for head in _HEAD.finditer(source):
        pointers = {match[2]: match for match in _POINTER.finditer(head[2])}
        if not pointers or head[3].endswith(";"):  # the runtime drops declarations
            continue
        end = source.find(_BODY_END, head.end())
        body, images = source[head.end() : end], {}
        for name, pointer in pointers.items():
            rewritten = _read_texels(body, name, pointer[1], int(pointer[3]))
            if rewritten is not None:
                body, images[name] = rewritten, pointer
        if images and end >= 0:
            pieces += [source[position : head.start()], _image_head(head, images), body]
            position = end
            changed.add(head[1])
    if not changed:
        return source
    result = "".join([*pieces, source[position:]])
    # Declarations of these kernels have the former arguments now, and a definition needs none.
    return _PREAMBLE + _HEAD.sub(lambda head: "" if head[3].endswith(";") and head[1] in changed else head[0], result)


def _image_head(head: re.Match[str], images: dict[str, re.Match[str]]) -> str:
    """Write the head of a kernel with images, after the lines that give the runtime their shapes."""
    numbers = {argument.split()[-1]: number for number, argument in enumerate(head[2].split(","))}
    shapes = [f"// edge-image: {numbers[name]} {image[1]} {image[3]} {image[4]}\n" for name, image in images.items()]
    arguments = _POINTER.sub(
        lambda pointer: f"EDGE_TEXELS({pointer[1]}, {pointer[2]})" if pointer[2] in images else pointer[0], head[2]
    )
    return f"{''.join(shapes)}__kernel void {head[1]}({arguments}){head[3]}"


def _read_texels(body: str, name: str, kind: str, width: int) -> str | None:
    """Write the loads of an argument as texels; None unless all of its uses are loads of a vector of four."""
    opening = f"(*(__global {kind}{_LANES}*)({name} + "
    if not body.count(name) or body.count(opening) != len(re.findall(rf"\b{name}\b", body)):
        return None
    pieces, position = [], 0
    while (start := body.find(opening, position)) >= 0:
        first = start + len(opening)
        last = closing_bracket(body, first)
        pieces += [body[position:start], f"EDGE_TEXEL_{kind}({name}, {_texel(body[first:last], width)})"]
        position = last + 2  # behind the brackets of the pointer and of the access
    return "".join([*pieces, body[position:]])


def _texel(index: str, width: int) -> str:
    """Write the arguments of a macro: an index of numbers, and the column and row of that in the image.

    A term that is a multiple of a row counts in the row alone, so that the column stays the same in a loop over rows.
    """
    rows: list[str] = []
    rest: list[str] = []
    size = _LANES * width
    for term in _terms(index):
        quotient = _divide(term, size)
        (rest if quotient is None else rows).append(term if quotient is None else quotient)
    columns, shift = f"({' + '.join(rest)})" if rest else "0", size.bit_length() - 1
    row = " + ".join([*rows, *([f"({columns} >> {shift})"] if rest else [])])
    return f"({index}), (({columns} >> 2) & {width - 1}), ({row})"


def _terms(expression: str) -> Iterator[str]:
    """Yield the terms of a sum, each in brackets."""
    text = expression.strip()
    while _is_bracketed(text):
        text = text[1:-1].strip()
    depth = 0
    # Sums are written from the left: the last `+` outside of brackets is the outermost.
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if not depth and text[index - 1 : index + 2] == " + ":
            yield from _terms(text[: index - 1])
            yield from _terms(text[index + 2 :])
            return
    yield f"({text})"


def _divide(term: str, divisor: int) -> str | None:
    """Write a term divided by a number; None if it is not clearly a multiple."""
    text = term[1:-1]
    if _LITERAL.fullmatch(text):
        return str(int(text) // divisor) if int(text) % divisor == 0 else None
    product = _PRODUCT.fullmatch(text)
    if product is None or int(product[2]) % divisor:
        return None
    factor = product[1]
    is_single = factor.isidentifier() or _is_bracketed(factor)  # and not a sum, of which only a part is multiplied
    return f"({factor} * {int(product[2]) // divisor})" if is_single else None


def _is_bracketed(text: str) -> bool:
    return text.startswith("(") and closing_bracket(text, 1) == len(text) - 1
