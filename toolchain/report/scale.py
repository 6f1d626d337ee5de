"""Where values lie in a picture, and the round values that its axes are labelled with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MOST_TICKS = 8
# Values that a decade of a scale is labelled at: the coarsest with enough of them in sight is taken.
_MANTISSAS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
_FEWEST_TICKS = 3
_MARGIN = 0.06
_SAME = 1e-9  # values closer together than this, by their size, are one value to the eye
_WIDE = 4.0
_DRAWABLE = 1e100
_FENCE = 6.0  # quartile ranges beyond the quartiles: values further out would squeeze the others
_FEWEST_FENCED = 8


@dataclass(frozen=True)
class Scale:
    """Where values between two others lie in a picture."""

    low: float
    high: float
    start: float  # where the smaller one lies
    end: float  # where the greater one lies
    logarithmic: bool = False  # whether equal factors are equally far apart; both values are above zero then

    def at(self, value: float) -> float:
        """Return where a value lies; one outside the scale lies at the edge."""
        inside = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self) -> list[float]:
        """Return round values for labels."""
        return logarithmic_ticks(self.low, self.high) if self.logarithmic else linear_ticks(self.low, self.high)


def drawable(values: Iterable[float]) -> list[float]:
    """Leave out values that are not finite, or far beyond any scale."""
    return [value for value in values if abs(value) < _DRAWABLE]


def spanning(values: Sequence[float], start: float, end: float, *, exact: bool = False) -> Scale:
    """Return a linear scale from `start` to `end` that spans some values, with a margin unless `exact`."""
    low, high = min(values), max(values)
    if high - low <= _SAME * max(abs(low), abs(high)):
        spread = abs(low) * 0.05 or 1.0
        return Scale(low - spread, high + spread, start, end)
    margin = 0.0 if exact else _MARGIN * (high - low)
    floor = 0.0 if low >= 0 and low - margin < 0 else low - margin
    return Scale(floor, high + margin, start, end)


def fitting(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a scale as `spanning` does, but a logarithmic one where one value is four times another."""
    low, high = min(values), max(values)
    if low > 0 and high / low > _WIDE:
        return logarithmic(values, start, end)
    return spanning(values, start, end)


def logarithmic(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a logarithmic scale that spans some values above zero, with a margin."""
    return Scale(min(values) / (1 + _MARGIN), max(values) * (1 + _MARGIN), start, end, logarithmic=True)


def fenced(values: Sequence[float]) -> list[float]:
    """Leave out outliers so far away that the other values would be squeezed into a line."""
    if len(values) < _FEWEST_FENCED:
        return list(values)
    ordered = sorted(values)
    first, third = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    reach = _FENCE * max(third - first, 0.01 * abs(third))
    return [value for value in values if first - reach <= value <= third + reach]


def linear_ticks(low: float, high: float) -> list[float]:
    """Return at most nine round values between two others."""
    rough = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def logarithmic_ticks(low: float, high: float) -> list[float]:
    """Return round values between two others, both above zero, for a logarithmic scale."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = range(first, last + 1, max(1, math.ceil((last - first) / _MOST_TICKS)))
    for mantissas in _MANTISSAS:
        values = (float(f"{mantissa}e{power}") for power in powers for mantissa in mantissas)
        ticks = [value for value in values if low <= value <= high]
        if len(ticks) >= _FEWEST_TICKS:
            return ticks
    return linear_ticks(low, high)
