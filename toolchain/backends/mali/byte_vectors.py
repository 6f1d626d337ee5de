"""Bytes that a kernel gathers into a vector, as OpenCL C has vectors.

TVM writes four bytes from four addresses as one integer, shifted and or-ed together, which is what CUDA's `char4` is to
it. In OpenCL C that is a number and not a vector: a driver refuses the kernel, or puts the number into each lane.
"""

from __future__ import annotations

import re

from toolchain.backends.mali import brackets
from toolchain.errors import BuildError

_NAME = re.compile(r"\s*\(*\s*(\w+)\[")


def write_byte_vectors(source: str) -> str:
    """Return OpenCL C in which vectors of gathered bytes are vectors.

    Args:
        source: OpenCL C as TVM writes it, with any number of kernels.

    Raises:
        BuildError: The bytes come from somewhere else than an array whose type the source declares.
    """
    pieces, position = [], 0
    while (start := source.find(_opening(0), position)) >= 0:
        values, end = _lanes(source, start)
        types = {_byte_type(source[:start], value) for value in values}
        if len(types) != 1:
            raise BuildError("bytes of several types are gathered into one vector", details=", ".join(values))
        pieces += [source[position:start], f"(({types.pop()}{len(values)})({', '.join(values)}))"]
        position = end
    return "".join(pieces) + source[position:]


def _opening(lane: int) -> str:
    return f"{'|' if lane else ''}((0x000000ff << {8 * lane}) & ("


def _lanes(source: str, start: int) -> tuple[list[str], int]:
    """Return the values of the lanes of the vector that begins at `start`, and where it ends."""
    values: list[str] = []
    while source.startswith(opening := _opening(len(values)), start):
        first = start + len(opening)
        end = brackets.closing(source, first)
        values.append(source[first:end].removesuffix(f" << {8 * len(values)}"))
        start = end + 2  # the second bracket closes the lane
    return values, start


def _byte_type(before: str, value: str) -> str:
    """Return the type of the array that a byte is read from, as it was last declared."""
    name = _NAME.match(value)
    types = re.findall(rf"\b(u?char)\*?(?: restrict)? {name[1]}\b", before) if name else []
    if not types:
        raise BuildError("bytes are gathered into a vector from something that is not an array", details=value)
    return str(types[-1])
