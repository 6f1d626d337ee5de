"""Brackets in OpenCL C, which the rewrites of TVM's text look for."""

from __future__ import annotations


def closing(text: str, start: int) -> int:
    """Return where the bracket closes that was opened just before `start`.

    Raises:
        ValueError: It never does.
    """
    depth = 1
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if not depth:
            return index
    raise ValueError(text[start:])


def arguments(text: str, start: int) -> tuple[list[str], int]:
    """Return the arguments of a call whose bracket was opened just before `start`, and where that closes."""
    end, depth, first = closing(text, start), 0, start
    values = []
    for index in range(start, end):
        depth += (text[index] == "(") - (text[index] == ")")
        if text[index] == "," and not depth:
            values.append(text[first:index])
            first = index + 1
    return [*values, text[first:end]], end
