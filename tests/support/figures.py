"""Whether the numbers of a document are among those that a person reads on its page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

# What a page may make of a number: seconds are shown in milliseconds or minutes, shares in percent, KiB in MiB.
_SCALES = (1.0, 1e3, 1e-3, 1e-6, 1e6, 100.0, 1 / 60, 1024.0, 1 / 1024, 1 / 1024**2, 1 / 1024**3)
_NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?(\d[\d,]*\d|\d)(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)
_FEWEST_DIGITS = 2


def numbers(document: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Name every number of a document, such as `latency_ms.median` or `tasks[].id`."""
    if isinstance(document, bool):
        return
    if isinstance(document, int | float):
        yield path, document
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from numbers(value, f"{path}.{name}" if path else str(name))
    elif isinstance(document, list | tuple):
        for value in document:
            yield from numbers(value, f"{path}[]")


def missing(document: Any, text: str, unseen: Sequence[str]) -> list[str]:
    """Say which numbers of a document are not in a text, as they are or rounded.

    Args:
        document: As JSON has it.
        text: What a person reads.
        unseen: Names of the fields that are not shown, with wildcards.
    """
    read = list(_read(text))
    return [
        f"{path} {value:g}"
        for path, value in numbers(document)
        if not any(fnmatchcase(path.replace("[]", ""), pattern) for pattern in unseen) and not _is_read(value, read)
    ]


def _read(text: str) -> Iterator[tuple[float, float, int]]:
    """Yield the numbers of a text, each with half of its last digit's worth and its digits."""
    for match in _NUMBER.finditer(text):
        integer, fraction, power = match[1].replace(",", ""), match[2] or "", match[3] or ""
        value = float(f"{integer}{fraction}{power}")
        unit = 10.0 ** (int(power[1:] or 0) - max(len(fraction) - 1, 0))
        yield value, unit / 2, len((integer + fraction[1:]).lstrip("0"))


def _is_read(value: float, read: Sequence[tuple[float, float, int]]) -> bool:
    """Say whether a number is read somewhere: as it is, or rounded to two digits or more."""
    for scale in _SCALES:
        magnitude = abs(value * scale)
        for number, half, digits in read:
            same = math.isclose(number, magnitude, rel_tol=1e-9, abs_tol=1e-12)
            if same or (digits >= _FEWEST_DIGITS and abs(number - magnitude) <= half * (1 + 1e-6)):
                return True
    return False
