"""Truths that all lanes of a vector share, in the OpenCL C that TVM writes.

`select` takes what is chosen by the highest bit of each lane's condition. What compares vectors has it, as true is -1
there; where one truth is for all lanes, TVM repeats the 1 of a scalar, `(uint4)(c, c, c, c)`, which has not: it chose
what is for false, always.
"""

from __future__ import annotations

import re

_SELECT = re.compile(r"\bselect\(")
_REPEATED = re.compile(r"\(*(?:convert_[a-z]+\d+)?\(*\(uint\d+\)\(")


def with_shared_truths(source: str) -> str:
    """Return OpenCL C in which a truth that is repeated for all lanes is -1 where `select` asks for it.

    Args:
        source: OpenCL C as TVM writes it.
    """
    pieces, position = [], 0
    while match := _SELECT.search(source, position):
        commas, end = _commas(source, match.end())
        pieces.append(source[position : match.end()])
        *values, condition = (
            with_shared_truths(source[first:last])
            for first, last in zip([match.end(), *(comma + 1 for comma in commas)], [*commas, end], strict=True)
        )
        condition = condition.strip()
        pieces.append(",".join([*values, f" -{condition}" if _is_repeated(condition) else f" {condition}"]))
        position = end
    return "".join([*pieces, source[position:]])


def _is_repeated(condition: str) -> bool:
    """Whether all of a condition is one truth for all lanes."""
    match = _REPEATED.match(condition)
    if match is None:
        return False
    _commas_within, end = _commas(condition, match.end())
    return not condition[end:].strip(") ")


def _commas(text: str, start: int) -> tuple[list[int], int]:
    """Return where the arguments of a call are separated, and where its parenthesis is closed."""
    depth = 1
    commas: list[int] = []
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if not depth:
            return commas, index
        if text[index] == "," and depth == 1:
            commas.append(index)
    raise ValueError(text[start:])
