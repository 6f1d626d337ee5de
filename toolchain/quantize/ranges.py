"""What the grids of a quantized file say of the numbers on them: from where to where they go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HIGHEST = 127
"""Of int8."""
LOWEST = -40
"""Exponent of the finest scale: smaller steps tell nothing apart that a network computes with."""

_EMPTY = -7  # of a tensor of zeros: any will do
_LEAST = -128
_HALF = 0.5
_BEYOND = 1.2
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
        """Return what holds both."""
        return self if other is None else Range(min(self.low, other.low), max(self.high, other.high))

    def exponent(self) -> int:
        """Return the exponent of the finest power of two whose int8 multiples hold the range, or nearly so.

        Values that lie beyond the last one by a fifth saturate: ends of ranges are those of the rarest values, and a
        scale of twice as much costs all others a bit.
        """
        found = covering(max(self.high, -self.low))
        while found > LOWEST and self._fits(found - 1):
            found -= 1
        return found

    def _fits(self, exponent: int) -> bool:
        step = 2.0**exponent * _BEYOND
        return (_LEAST - _HALF) * step <= self.low and self.high <= (HIGHEST + _HALF) * step


def of_grid(scale: NDArray[np.float32], zero: NDArray[np.integer]) -> Range | None:
    """Return the range of a grid; None if it has several scales, or is of no byte.

    Args:
        scale: The scale.
        zero: The zero point, of the grid's type.
    """
    if scale.size != 1 or zero.size != 1 or zero.dtype not in (np.int8, np.uint8):
        return None
    limits, step, middle = np.iinfo(zero.dtype), float(scale.item()), int(zero.item())
    found = Range((limits.min - middle) * step, (limits.max - middle) * step)
    known = step > 0 and max(found.high, -found.low) <= _MOST
    return found if known else None
