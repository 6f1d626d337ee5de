"""Quantities as text."""

from __future__ import annotations

import re

_FOUR_DIGITS = 1000.0
_MIN_MS = 0.01
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMG]?)(?:i?B)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(us|ms|s|m|h)")


def duration(milliseconds: float, *, signed: bool = False) -> str:
    """Write a time with its unit, microseconds below 0.01 ms; `signed` for a difference of two times."""
    is_short = 0 < abs(milliseconds) < _MIN_MS
    return f"{digits(milliseconds * 1e3 if is_short else milliseconds, signed=signed)} {'µs' if is_short else 'ms'}"


def digits(value: float, *, signed: bool = False) -> str:
    """Write a number with four digits, and no fewer before the point."""
    sign = "+" if signed else ""
    if value == 0:
        return "0"
    return f"{value:{sign}.0f}" if abs(value) >= _FOUR_DIGITS else f"{value:{sign}#.4g}".rstrip(".")


def parse_duration(text: str) -> float:
    """Return the seconds of a time with a unit, such as `33ms`, `1.5s` or `10m`.

    Raises:
        ValueError: It is not of that form.
    """
    match = _DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a time with a unit (us, ms, s, m or h), such as 33ms or 10m")
    return round(float(match[1]) * _SECONDS[match[2]], 9)  # 100us is 0.0001 s, not a bit less


def parse_size(text: str) -> int:
    """Return the bytes of a size, such as `64M`, `1.5G`, `500KiB` or `65536`; units are powers of 1024.

    Raises:
        ValueError: It is not of that form, or 0.
    """
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " ")) if match else 0
    if not size:
        raise ValueError(f"{text!r} is not a size, such as 64M or 1.5G")
    return size
