"""Documents from elsewhere, of which no more faults are kept than it takes to refuse them.

Each costs hundreds of bytes of memory, and a document has room for one in every second byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator, FailFast, ValidationError

_MOST_KEYS = 1000
_LONGEST_LINE = 300


def _with_few_keys(table: Any) -> Any:
    if isinstance(table, Mapping) and len(table) > _MOST_KEYS:
        raise ValueError(f"should have at most {_MOST_KEYS} keys, and has {len(table)}")
    return table


FIRST_FAULT = FailFast()  # annotates a list: it ends with its first fault
FEW_KEYS = BeforeValidator(_with_few_keys)  # annotates a table, whose values are all looked at


def words(fault: ValidationError, most: int = 1) -> str:
    """Return what is wrong with a document: its first faults, each in a line of its own."""
    found = fault.errors(include_url=False, include_context=False, include_input=False)[:most]
    lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in found]
    return "\n".join(line[:_LONGEST_LINE] for line in lines)
