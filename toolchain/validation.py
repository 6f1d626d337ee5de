"""Strict checks of files that people write: each fault is reported with its key and a suggestion.

Untrusted documents are read with limits: how many keys are read, and how many faults are kept. Each fault costs
hundreds of bytes of memory, and a document has room for one in every second byte.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import BeforeValidator, ConfigDict, FailFast, Field, TypeAdapter, ValidationError

from toolchain import files
from toolchain.errors import did_you_mean

# Strict: a board file that says threads = "4" has a fault, and guessing hides it.
CONFIG = ConfigDict(extra="forbid", strict=True)

# A folder on a device. It is not quoted in shell commands, so that `~/` is expanded.
DEVICE_FOLDER = r"^(~/|/)[^\s'\"\\$`]+$"

# The name of a slot of a device's store, which is that of a folder and a word of shell scripts.
SLOT = r"^[a-z0-9][a-z0-9_-]{0,31}$"

DeviceFolder = Annotated[str, Field(pattern=DEVICE_FOLDER)]
SlotName = Annotated[str, Field(pattern=SLOT)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")]

_LARGEST = 4 << 20

_MAX_KEYS = 1000
_LONGEST_LINE = 300
FIRST_FAULT = FailFast()  # annotates a list: it ends with its first fault


@dataclass(frozen=True)
class Fault:
    key: str
    message: str
    suggestion: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" + (f" ({self.suggestion})" if self.suggestion else "")


def parse_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file, with or without the byte order mark of Windows editors.

    Raises:
        OSError: It cannot be read.
        InputError: It is too large.
        UnicodeDecodeError: It is not text.
        tomllib.TOMLDecodeError: It is not TOML, or is nested too deeply, or has too long numbers.
    """
    text = files.read_limited(path, _LARGEST).decode("utf-8-sig")
    try:
        table = tomllib.loads(text)
        json.dumps(table, default=str)
    except (RecursionError, ValueError) as fault:
        raise tomllib.TOMLDecodeError(str(fault)) from fault
    return table


def validate(kind: Any, value: Any, what: str) -> tuple[Any, list[Fault]]:
    """Convert plain values to a dataclass, or a mapping of dataclasses; return None with the faults if there are any.

    `what` is the kind of thing that must have the missing keys, such as `board file`.
    """
    # Strict JSON mode takes tables for classes and arrays for tuples, but no text for a number.
    # TOML's dates and times, which JSON lacks, must not pass as text either.
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value, default=lambda moment: {"time": str(moment)})), []
    except ValidationError as fault:
        return None, [_fault(kind, error, what) for error in fault.errors()]


def _fault(kind: Any, error: Any, what: str) -> Fault:
    """Describe a validation error in terms of a TOML file."""
    key = ".".join(str(item) for item in error["loc"])
    if error["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        keys = _known_keys(kind, error["loc"][:-1])
        suggestion = did_you_mean(str(error["loc"][-1]), keys) or "known keys: " + ", ".join(keys)
        return Fault(key, "unknown key", suggestion)
    if error["type"] in {"missing", "missing_argument"}:
        return Fault(key, "is missing", f"every {what} must set it")
    if error["type"] == "value_error":  # of a check of our own: the words are meant for users
        return Fault(key, str(error["ctx"]["error"]), "")
    message = re.sub(r"^(Input|String) should", "should", error["msg"])
    value = error["input"]
    choices = re.findall(r"'([^']+)'", error["msg"]) if error["type"] == "literal_error" else []
    suggestion = did_you_mean(str(value), choices) if choices else ""
    return Fault(key, f"{value!r} {message}", suggestion)


def _known_keys(kind: Any, location: tuple[Any, ...]) -> list[str]:
    """Return the keys of the table at a location within `kind`."""
    for item in location:
        kind = get_type_hints(kind).get(item, kind) if dataclasses.is_dataclass(kind) else get_args(kind)[1]
        kind = next(filter(dataclasses.is_dataclass, get_args(kind)), kind) if isinstance(kind, UnionType) else kind
    return [field.name for field in dataclasses.fields(kind) if field.name != "name"]


def _with_few_keys(table: Any) -> Any:
    if isinstance(table, Mapping) and len(table) > _MAX_KEYS:
        raise ValueError(f"should have at most {_MAX_KEYS} keys, and has {len(table)}")
    return table


FEW_KEYS = BeforeValidator(_with_few_keys)  # annotates a table, whose values are all looked at


def words(fault: ValidationError, limit: int = 1) -> str:
    """Return the first faults of a document, each in a line of its own."""
    errors = fault.errors(include_url=False, include_context=False, include_input=False)[:limit]
    lines = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}".removeprefix(": ") for error in errors]
    return "\n".join(line[:_LONGEST_LINE] for line in lines)
