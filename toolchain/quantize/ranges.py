"""From where to where numbers go, as samples or the grids of a quantized file say, and grids of bytes that hold them.

A grid is 256 multiples of a power of two. Where 0 lies among them is free: numbers that all have one sign gain a bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HIGHEST = 127
"""Of int8."""
LOWEST = -40
"""Exponent of the finest scale: smaller steps tell nothing apart that a network computes with."""

_EMPTY = -7  # of a tensor of zeros: any will do
_BYTE_MIN = -128
_HALF = 0.5
BEYOND = math.sqrt(2)
"""A range may be wider than its grid by that: so of two powers of two, the nearer one is taken."""
_MOST = 2.0**126  # beyond it, a power of two that holds it may be infinite in float32


def covering(limit: float) -> int:
    """Return the lowest exponent e with 127 * 2^e >= limit."""
    if limit == 0:
        return _EMPTY
    mantissa, exponent = np.frexp(limit / HIGHEST)
    return max(int(exponent) - int(mantissa == 0.5), LOWEST)  # noqa: PLR2004 - of a power of two


@dataclass(frozen=True)
class Range:
    """The numbers of an activation.

    Attributes:
        low: The least.
        high: The greatest.
    """

    low: float
    high: float

    def union(self, other: Range | None) -> Range:
        """Return the smallest range that contains both."""
        return self if other is None else Range(min(self.low, other.low), max(self.high, other.high))

    def exponent(self) -> int:
        """Return the exponent of the finest power of two whose int8 multiples hold the range, or nearly so.

        What lies beyond the last one saturates: ends of ranges are those of the rarest values, and a scale of twice as
        much costs all others a bit.
        """
        exponent = covering(max(self.high, -self.low))
        while exponent > LOWEST:
            step = 2.0 ** (exponent - 1) * BEYOND
            if (_BYTE_MIN - _HALF) * step > self.low or self.high > (HIGHEST + _HALF) * step:
                break
            exponent -= 1
        return exponent

    def within(self, other: Range | None) -> Range:
        """Return the intersection; 0 is in each range."""
        return self if other is None else Range(max(self.low, other.low), min(self.high, other.high))

    def symmetric(self) -> Range:
        """Return the least range about 0 that holds this one."""
        limit = max(self.high, -self.low)
        return Range(-limit, limit)

    def is_held(self, exponent: int, beyond: float = 1.0) -> bool:
        """Whether 256 multiples of 2^exponent hold the range, wherever 0 is among them.

        `beyond` is how far values may lie beyond the last multiple, as a factor.
        """
        low, high = self._zeros(2.0**exponent * beyond)
        return low <= high

    def zero(self, exponent: int) -> int:
        """Return the zero point for a scale: 0 where that holds the range as well as any.

        Else the end next to 0 is one of the grid, too, as a ReLU's is: what room there is, or is not, is at the other.
        """
        lower, upper = self._zeros(2.0**exponent)
        if min(lower, upper) <= 0 <= max(lower, upper):
            return 0
        return lower if lower < 0 else upper

    def _zeros(self, step: float) -> tuple[int, int]:
        """Return the least zero point with which the low end does not saturate, and the greatest for the high end."""
        return math.ceil(_BYTE_MIN - _HALF - self.low / step), math.floor(HIGHEST + _HALF - self.high / step)

    def grid(self) -> Grid:
        """Return the finest grid that holds the range, or nearly so; with a zero point only where that gains a bit."""
        symmetric_exponent = exponent = self.exponent()
        while exponent > LOWEST and self.is_held(exponent - 1, BEYOND):
            exponent -= 1
        return (self if exponent < symmetric_exponent else self.symmetric()).on(exponent)

    def on(self, exponent: int) -> Grid:
        """Return the grid of a scale for this range, without what saturates on it."""
        zero, step = self.zero(exponent), 2.0**exponent
        return Grid(exponent, Range(max(self.low, (_BYTE_MIN - zero) * step), min(self.high, (HIGHEST - zero) * step)))


@dataclass(frozen=True)
class Grid:
    """The numbers that int8 stands for: (byte - zero) * 2^exponent.

    Attributes:
        exponent: Of the scale.
        range: The range that it is for.
    """

    exponent: int
    range: Range

    @classmethod
    def about(cls, exponent: int) -> Grid:
        """Return a grid whose zero point is 0."""
        return cls(exponent, Range(math.ldexp(_BYTE_MIN, exponent), math.ldexp(HIGHEST, exponent)))

    @property
    def zero(self) -> int:
        """The byte that stands for 0."""
        return self.range.zero(self.exponent)

    def at_least(self, exponent: int) -> Grid:
        """Return a grid for the same numbers whose exponent is no lower than some."""
        return self if self.exponent >= exponent else self.range.on(exponent)


def of_grid(scale: NDArray[np.float32], zero: NDArray[np.integer]) -> Range | None:
    """Return the range of a grid; None if it has several scales, or is of no byte.

    The zero point has the grid's type.
    """
    if scale.size != 1 or zero.size != 1 or zero.dtype not in (np.int8, np.uint8):
        return None
    limits, step, middle = np.iinfo(zero.dtype), float(scale.item()), int(zero.item())
    interval = Range((limits.min - middle) * step, (limits.max - middle) * step)
    is_usable = step > 0 and max(interval.high, -interval.low) <= _MOST
    return interval if is_usable else None
