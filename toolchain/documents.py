"""Limits for parsing untrusted documents: how many keys are read, and how many faults are kept.

Each fault costs hundreds of bytes of memory, and a document has room for one in every second byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator, FailFast, ValidationError

_MAX_KEYS = 1000
_LONGEST_LINE = 300


def _with_few_keys(table: Any) -> Any:
    if isinstance(table, Mapping) and len(table) > _MAX_KEYS:
        raise ValueError(f"should have at most {_MAX_KEYS} keys, and has {len(table)}")
    return table


FIRST_FAULT = FailFast()  # annotates a list: it ends with its first fault
FEW_KEYS = BeforeValidator(_with_few_keys)  # annotates a table, whose values are all looked at


def words(fault: ValidationError, limit: int = 1) -> str:
    """Return the first faults of a document, each in a line of its own."""
    errors = fault.errors(include_url=False, include_context=False, include_input=False)[:limit]
    lines = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}".removeprefix(": ") for error in errors]
    return "\n".join(line[:_LONGEST_LINE] for line in lines)
