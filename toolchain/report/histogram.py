"""A plot of how often values are how large, for one set or several below each other on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.report import figure, scale
from toolchain.report.figure import BOTTOM, RIGHT, WIDTH
from toolchain.report.parts import Part
from toolchain.report.scale import Scale

_LEFT = 56
_ROW, _GAP, _FIRST = 130, 34, 26
_FEWEST_BINS, _MOST_BINS = 8, 100


@dataclass(frozen=True)
class Group:
    name: str
    values: Sequence[float]  # those that are not finite are left out


@dataclass(frozen=True)
class Histogram(Part):
    """How often values are how large, one row for each set; outliers are named below."""

    caption: str
    across: str  # what the values are, with the unit
    groups: Sequence[Group]

    def html(self) -> str:
        groups = [Group(group.name, scale.drawable(group.values)) for group in self.groups]
        everything = [value for group in groups for value in group.values]
        if not everything:
            return figure.nothing(self.caption)
        inner = [scale.fenced(group.values) for group in groups if group.values]
        across = scale.spanning([value for values in inner for value in values], _LEFT, WIDTH - RIGHT)
        bin_count = max(bins(values, across.high - across.low) for values in inner)
        drawing = []
        for row, group in enumerate(groups):
            drawing += _row(group, across, bin_count, _FIRST + _ROW * (row + 1) + _GAP * row, figure.colour(row))
        bottom = _FIRST + _ROW * len(groups) + _GAP * (len(groups) - 1)
        drawing += figure.horizontal_axis(across, bottom, self.across)
        descriptions = []
        for group in groups:
            median = f", median {_median_of(group.values):.4g}" if group.values else ""
            descriptions.append(f"{group.name}, {len(group.values)} values{median}")
        description = f"How often {self.across} are how large: " + "; ".join(descriptions) + "."
        return figure.figure(
            self.caption, description, bottom + BOTTOM, drawing, [_beyond(everything, across, self.across)]
        )


def bins(values: Sequence[float], span: float) -> int:
    """Return the number of equal bins for a range, by the rule of Freedman and Diaconis."""
    ordered = sorted(values)
    quartiles = ordered[(3 * len(ordered)) // 4] - ordered[len(ordered) // 4]
    width = 2 * quartiles / len(ordered) ** (1 / 3)
    return min(max(math.ceil(min(span / width, _MOST_BINS)) if width > 0 else 0, _FEWEST_BINS), _MOST_BINS)


def counts(values: Sequence[float], low: float, high: float, number: int) -> list[int]:
    """Count values in equal bins of a range; those outside are not counted."""
    totals = [0] * number
    for value in values:
        if low <= value <= high:
            totals[min(int((value - low) / (high - low) * number), number - 1)] += 1
    return totals


def _row(group: Group, across: Scale, number: int, bottom: float, colour: str) -> list[str]:
    totals = counts(group.values, across.low, across.high, number)
    largest = max(totals) or 1
    width = (across.end - across.start) / number
    path = ""
    for index, count in enumerate(totals):
        if count:
            height = round(count / largest * (_ROW - 12), 1)
            path += f"M{across.start + index * width:.1f} {bottom:g}v{-height:g}h{max(width - 1, 1):.1f}v{height:g}z"
    return [
        f'<line class="axis" x1="{across.start:g}" y1="{bottom:g}" x2="{across.end:g}" y2="{bottom:g}"/>',
        f'<path class="fill {colour}" d="{path}"/>',
        *_median(group.values, across, bottom),
        figure.text(_LEFT - 8, bottom - _ROW + 16, str(largest), "end"),
        figure.text(_LEFT - 8, bottom, "0", "end"),
        figure.text(
            _LEFT, bottom - _ROW - 2, f"{figure.shortened(group.name, 400)} ({len(group.values)})", "start", "said"
        ),
    ]


def _median(values: Sequence[float], across: Scale, bottom: float) -> list[str]:
    if not values:
        return []
    middle = _median_of(values)
    x = across.at(middle)
    anchor = "end" if x > (across.start + across.end) / 2 else "start"
    label = figure.text(
        x + (-5 if anchor == "end" else 5), bottom - _ROW + 14, f"median {middle:.4g}", anchor, "said over"
    )
    return [f'<line class="middle" x1="{x:g}" y1="{bottom:g}" x2="{x:g}" y2="{bottom - _ROW + 4:g}"/>', label]


def _median_of(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _beyond(values: Sequence[float], across: Scale, unit: str) -> str:
    outside = [value for value in values if not across.holds(value)]
    if not outside:
        return ""
    return f"{len(outside)} of {len(values)} outside the plot: {min(outside):.4g} to {max(outside):.4g} ({unit})."
