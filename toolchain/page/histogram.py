"""A plot of how often values are how large, for one set or several below each other on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.page import figure, scale
from toolchain.page.figure import BOTTOM, RIGHT, WIDTH
from toolchain.page.scale import Scale

_LEFT = 56
_ROW, _GAP, _FIRST = 130, 34, 26
_FEWEST_BINS, _MOST_BINS = 8, 100


@dataclass(frozen=True)
class Group:
    """A set of values."""

    name: str  # what it is called
    values: Sequence[float]  # the values; those that are no finite numbers are left out


@dataclass(frozen=True)
class Histogram:
    """Sets of values, counted by size; those far beyond all others are told of below it."""

    caption: str  # its title
    across: str  # what the values are, with the unit
    groups: Sequence[Group]  # the sets, each with a row of its own

    def html(self) -> str:
        """Write it as HTML."""
        groups = [Group(one.name, scale.drawable(one.values)) for one in self.groups]
        everything = [value for one in groups for value in one.values]
        if not everything:
            return figure.nothing(self.caption)
        kept = [scale.fenced(one.values) for one in groups if one.values]
        across = scale.spanning([value for one in kept for value in one], _LEFT, WIDTH - RIGHT)
        number = max(bins(one, across.high - across.low) for one in kept)
        drawn = []
        for place, one in enumerate(groups):
            drawn += _row(one, across, number, _FIRST + _ROW * (place + 1) + _GAP * place, figure.colour(place))
        bottom = _FIRST + _ROW * len(groups) + _GAP * (len(groups) - 1)
        drawn += figure.horizontal_axis(across, bottom, self.across)
        said = f"How often {self.across} are how large: " + "; ".join(map(_described, groups)) + "."
        return figure.figure(self.caption, said, bottom + BOTTOM, drawn, [_beyond(everything, across, self.across)])


def bins(values: Sequence[float], span: float) -> int:
    """Return into how many equal parts a range is cut, by the quartiles of values in it (Freedman, Diaconis)."""
    ordered = sorted(values)
    quartiles = ordered[(3 * len(ordered)) // 4] - ordered[len(ordered) // 4]
    width = 2 * quartiles / len(ordered) ** (1 / 3)
    return min(max(math.ceil(min(span / width, _MOST_BINS)) if width > 0 else 0, _FEWEST_BINS), _MOST_BINS)


def counts(values: Sequence[float], low: float, high: float, number: int) -> list[int]:
    """Count values in equal parts of a range; those outside are not counted."""
    found = [0] * number
    for value in values:
        if low <= value <= high:
            found[min(int((value - low) / (high - low) * number), number - 1)] += 1
    return found


def _row(group: Group, across: Scale, number: int, bottom: float, colour: str) -> list[str]:
    found = counts(group.values, across.low, across.high, number)
    most = max(found) or 1
    width = (across.end - across.start) / number
    path = ""
    for place, count in enumerate(found):
        if count:
            height = round(count / most * (_ROW - 12), 1)
            path += f"M{across.start + place * width:.1f} {bottom:g}v{-height:g}h{max(width - 1, 1):.1f}v{height:g}z"
    return [
        f'<line class="axis" x1="{across.start:g}" y1="{bottom:g}" x2="{across.end:g}" y2="{bottom:g}"/>',
        f'<path class="fill {colour}" d="{path}"/>',
        *_median(group.values, across, bottom),
        figure.text(_LEFT - 8, bottom - _ROW + 16, str(most), "end"),
        figure.text(_LEFT - 8, bottom, "0", "end"),
        figure.text(
            _LEFT, bottom - _ROW - 2, f"{figure.shortened(group.name, 400)} ({len(group.values)})", "start", "said"
        ),
    ]


def _median(values: Sequence[float], across: Scale, bottom: float) -> list[str]:
    if not values:
        return []
    middle = _middle(values)
    x = across.at(middle)
    anchor = "end" if x > (across.start + across.end) / 2 else "start"
    said = figure.text(
        x + (-5 if anchor == "end" else 5), bottom - _ROW + 14, f"median {middle:.4g}", anchor, "said over"
    )
    return [f'<line class="middle" x1="{x:g}" y1="{bottom:g}" x2="{x:g}" y2="{bottom - _ROW + 4:g}"/>', said]


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _described(group: Group) -> str:
    median = f", median {_middle(group.values):.4g}" if group.values else ""
    return f"{group.name}, {len(group.values)} values{median}"


def _beyond(values: Sequence[float], across: Scale, unit: str) -> str:
    outside = [value for value in values if not across.holds(value)]
    if not outside:
        return ""
    return f"{len(outside)} of {len(values)} outside the plot: {min(outside):.4g} to {max(outside):.4g} ({unit})."
