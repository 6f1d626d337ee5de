"""Bytes that a kernel gathers into a vector, as OpenCL C has vectors.

TVM writes four bytes from four places as one integer, shifted and or-ed together, which is what CUDA's `char4` is to
it. In OpenCL C that is a number and no vector: a driver refuses the kernel, or puts the number into each lane.
"""

from __future__ import annotations

import re

from toolchain.errors import BuildError

_FIRST = "((0x000000ff << 0) & ("
_NAME = re.compile(r"\s*\(*\s*(\w+)\[")


def gathered(source: str) -> str:
    """Return OpenCL C in which vectors of gathered bytes are vectors.

    Args:
        source: OpenCL C as TVM writes it, with any number of kernels.

    Raises:
        BuildError: The bytes come from somewhere else than an array whose type the source says.
    """
    pieces, position = [], 0
    while (start := source.find(_FIRST, position)) >= 0:
        values, end = _values(source, start)
        kinds = {_kind(source[:start], value) for value in values}
        if len(kinds) != 1:
            raise BuildError("bytes of several types are gathered into one vector", details=", ".join(values))
        pieces += [source[position:start], f"(({kinds.pop()}{len(values)})({', '.join(values)}))"]
        position = end
    return "".join(pieces) + source[position:]


def _values(source: str, start: int) -> tuple[list[str], int]:
    """Return what the lanes of a vector are, from a place on, and where it ends."""
    values: list[str] = []
    while source.startswith(head := _head(len(values)), start):
        first = start + len(head)
        end = _closing(source, first)
        values.append(source[first:end].removesuffix(f" << {8 * len(values)}"))
        start = end + 2  # the second bracket closes the lane
    return values, start


def _head(lane: int) -> str:
    return f"{'|' if lane else ''}((0x000000ff << {8 * lane}) & ("


def _closing(source: str, start: int) -> int:
    """Return where the bracket is closed that was opened before a place."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(source[start], 0)
        start += 1
    return start - 1


def _kind(before: str, value: str) -> str:
    """Return the type of an array's bytes, as it was last declared."""
    name = _NAME.match(value)
    types = re.findall(rf"\b(u?char)\*?(?: restrict)? {name[1]}\b", before) if name else []
    if not types:
        raise BuildError("bytes are gathered into a vector from something that is not an array", details=value)
    return str(types[-1])
