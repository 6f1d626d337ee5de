"""Conditions that all lanes of a vector share, in the OpenCL C that TVM writes.

`select` takes what is chosen by the highest bit of each lane's condition. A comparison of vectors has it, as true is -1
there. Where all lanes share one condition, TVM repeats the 1 of a scalar, `(uint4)(c, c, c, c)`, which has not:
`select` would always choose the value for false.
"""

from __future__ import annotations

import re

from toolchain.backends.mali import brackets

_SELECT = re.compile(r"\bselect\(")
_REPEATED = re.compile(r"\(*(?:convert_[a-z]+\d+)?\(*\(uint\d+\)\(")


def negate_shared_conditions(source: str) -> str:
    """Return OpenCL C in which a condition that all lanes share is -1 for true where `select` reads it.

    Args:
        source: OpenCL C as TVM writes it.
    """
    pieces, position = [], 0
    while match := _SELECT.search(source, position):
        arguments, end = brackets.arguments(source, match.end())
        # Calls of `select` within a value or a condition are rewritten first.
        *values, condition = map(negate_shared_conditions, arguments)
        condition = condition.strip()
        negated = f" -{condition}" if _is_repeated(condition) else f" {condition}"
        pieces += [source[position : match.end()], ",".join([*values, negated])]
        position = end
    return "".join([*pieces, source[position:]])


def _is_repeated(condition: str) -> bool:
    """Whether a condition is nothing else than one scalar, repeated for all lanes."""
    match = _REPEATED.match(condition)
    return match is not None and not condition[brackets.closing(condition, match.end()) :].strip(") ")
