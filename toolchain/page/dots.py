"""A plot of values in order, each with an interval, held against limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.page import figure, scale
from toolchain.page.figure import BOTTOM, TOP, Level
from toolchain.page.scale import Scale

_HEIGHT = 320
_ROOM = 14.0  # beside the first and the last value
_LARGE, _SMALL, _MANY = 4.0, 2.5, 100


@dataclass(frozen=True)
class Dot:
    """A value."""

    x: float  # its place in order, such as the number of a round
    y: float  # the value
    low: float | None = None  # where its interval begins; None if it has none
    high: float | None = None  # where its interval ends; None if it has none
    label: str = ""  # what is said of it where somebody points at it
    kind: int = 0  # its place among `Dots.kinds`


@dataclass(frozen=True)
class Dots:
    """Values with intervals, in order. One far beyond all others lies at the edge, as a ring, and is told of below."""

    caption: str  # its title
    across: str  # name of the horizontal axis
    up: str  # name of the vertical axis, with the unit
    dots: Sequence[Dot]  # the values
    levels: Sequence[Level] = ()  # limits, as lines across the plot
    # names of the kinds that the values are of, such as rounds of the test and of its confirmation; each has its colour
    kinds: Sequence[str] = ()

    def html(self) -> str:
        """Write it as HTML."""
        dots = [one for one in self.dots if scale.drawable([one.x, one.y]) == [one.x, one.y]]
        if not dots:
            return figure.nothing(self.caption)
        up = scale.spanning(self._spanned(dots), _HEIGHT - BOTTOM, TOP)
        left, right = figure.left_of(up.ticks()), figure.right_of(self.levels)
        across = scale.spanning([one.x for one in dots], left + _ROOM, right - _ROOM, exact=True)
        drawn = [
            *figure.vertical_axis(up, left, right, self.up),
            *figure.horizontal_axis(across, _HEIGHT - BOTTOM, self.across, whole=True),
            *(_whisker(one, across, up) for one in dots),
            *figure.levels(self.levels, up, left, right),
            *(_drawn(one, across, up, _SMALL if len(dots) > _MANY else _LARGE) for one in dots),
        ]
        said = f"{len(dots)} values of {self.up} by {self.across}, from {min(one.y for one in dots):.4g} to "
        said += f"{max(one.y for one in dots):.4g}."
        made = figure.figure(self.caption, said, _HEIGHT, drawn, [_beyond([one.y for one in dots], up)])
        return figure.keyed(made, self.kinds)

    def _spanned(self, dots: Sequence[Dot]) -> list[float]:
        ends = [end for one in dots for end in (one.low, one.high) if end is not None]
        values = scale.fenced([one.y for one in dots])
        return [*values, *scale.fenced(scale.drawable(ends)), *(level.value for level in self.levels)]


def _whisker(dot: Dot, across: Scale, up: Scale) -> str:
    if dot.low is None or dot.high is None:
        return ""
    x, low, high = across.at(dot.x), up.at(dot.low), up.at(dot.high)
    return f'<line class="whisker {figure.colour(dot.kind)}" x1="{x:g}" y1="{low:g}" x2="{x:g}" y2="{high:g}"/>'


def _drawn(dot: Dot, across: Scale, up: Scale, radius: float) -> str:
    kind = "dot fill" if up.holds(dot.y) else "hollow"
    place = f'cx="{across.at(dot.x):g}" cy="{up.at(dot.y):g}" r="{radius:g}"'
    return f'<circle class="{kind} {figure.colour(dot.kind)}" {place}>{figure.titled(dot.label)}</circle>'


def _beyond(values: Sequence[float], up: Scale) -> str:
    outside = [value for value in values if not up.holds(value)]
    if not outside:
        return ""
    return f"{len(outside)} outside the plot, shown as rings at its edge: {min(outside):.4g} to {max(outside):.4g}."
