"""Files that people write, checked strictly: each fault is told with its key and what to write instead."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from toolchain import files
from toolchain.errors import did_you_mean

# Strict: a board file that says threads = "4" has a fault, and guessing hides it.
CONFIG = ConfigDict(extra="forbid", strict=True)

# a folder on a device: it stands in shell commands unquoted, so that `~/` means what it should
DEVICE_FOLDER = r"^(~/|/)[^\s'\"\\$`]+$"

DeviceFolder = Annotated[str, Field(pattern=DEVICE_FOLDER)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")]


_LARGEST = 4 << 20


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a file, and what to write instead."""

    key: str
    message: str
    suggestion: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" + (f" ({self.suggestion})" if self.suggestion else "")


def parsed(path: Path) -> dict[str, Any]:
    """Parse a TOML file; editors of Windows put a mark before its text.

    Raises:
        OSError: It cannot be read.
        InputError: It is larger than any that a person writes.
        UnicodeDecodeError: It is no text.
        tomllib.TOMLDecodeError: It is not TOML, or nested deeper, or with longer numbers, than anybody writes.
    """
    text = files.read_limited(path, _LARGEST).decode("utf-8-sig")
    try:
        found = tomllib.loads(text)
        json.dumps(found, default=str)
    except (RecursionError, ValueError) as fault:
        raise tomllib.TOMLDecodeError(str(fault)) from fault
    return found


def validated(kind: Any, value: Any, what: str) -> tuple[Any, list[Fault]]:
    """Hold plain values against a class.

    Args:
        kind: A dataclass, or a mapping to one.
        value: What a file says.
        what: Of which there are many and each sets what is missing here, such as `board file`.

    Returns:
        An object of the class, or None; and the faults.
    """
    # Strict JSON mode takes tables for classes and arrays for tuples, but no text for a number.
    # TOML's dates and times, which JSON lacks, must not pass as text either.
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value, default=lambda moment: {"time": str(moment)})), []
    except ValidationError as fault:
        return None, [_fault(kind, error, what) for error in fault.errors()]


def _fault(kind: Any, error: Any, what: str) -> Fault:
    """Say in the terms of a TOML file what the validator found."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        known = _known_keys(kind, error["loc"][:-1])
        suggestion = did_you_mean(str(error["loc"][-1]), known) or "known keys: " + ", ".join(known)
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
    """List the keys of a table, which stands at a location under what was validated."""
    for part in location:
        kind = get_type_hints(kind).get(part, kind) if dataclasses.is_dataclass(kind) else get_args(kind)[1]
        kind = next(filter(dataclasses.is_dataclass, get_args(kind)), kind) if isinstance(kind, UnionType) else kind
    return [field.name for field in dataclasses.fields(kind) if field.name != "name"]
