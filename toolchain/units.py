"""Quantities as text."""

from __future__ import annotations

_FOUR_DIGITS = 1000.0
_MIN_MS = 0.01


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
