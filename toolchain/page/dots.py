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
    x: float  # its position in order, such as the number of a round
    y: float
    low: float | None = None  # the ends of its interval; None if it has none
    high: float | None = None
    label: str = ""  # its tooltip
    kind: int = 0  # index in `Dots.kinds`


@dataclass(frozen=True)
class Dots:
    """Values with intervals, in order; a far outlier is drawn as a ring at the edge, and named below the plot."""

    caption: str
    across: str  # name of the horizontal axis
    up: str  # name of the vertical axis, with the unit
    dots: Sequence[Dot]
    levels: Sequence[Level] = ()  # limits, as lines across the plot
    kinds: Sequence[str] = ()  # such as rounds of a test and of its confirmation; each has its colour

    def html(self) -> str:
        dots = [dot for dot in self.dots if scale.drawable([dot.x, dot.y]) == [dot.x, dot.y]]
        if not dots:
            return figure.nothing(self.caption)
        ends = [end for dot in dots for end in (dot.low, dot.high) if end is not None]
        spanned = [*scale.fenced([dot.y for dot in dots]), *scale.fenced(scale.drawable(ends))]
        up = scale.spanning([*spanned, *(level.value for level in self.levels)], _HEIGHT - BOTTOM, TOP)
        left, right = figure.left_of(up.ticks()), figure.right_of(self.levels)
        across = scale.spanning([dot.x for dot in dots], left + _ROOM, right - _ROOM, exact=True)
        drawing = [
            *figure.vertical_axis(up, left, right, self.up),
            *figure.horizontal_axis(across, _HEIGHT - BOTTOM, self.across, integral=True),
            *(_whisker(dot, across, up) for dot in dots),
            *figure.levels(self.levels, up, left, right),
            *(_draw(dot, across, up, _SMALL if len(dots) > _MANY else _LARGE) for dot in dots),
        ]
        values = [dot.y for dot in dots]
        outside, remark = [value for value in values if not up.holds(value)], ""
        if outside:
            remark = f"{len(outside)} outside the plot, shown as rings at its edge: "
            remark += f"{min(outside):.4g} to {max(outside):.4g}."
        description = f"{len(dots)} values of {self.up} by {self.across}, from {min(values):.4g} to {max(values):.4g}."
        plot = figure.figure(self.caption, description, _HEIGHT, drawing, [remark])
        return figure.keyed(plot, self.kinds)


def _whisker(dot: Dot, across: Scale, up: Scale) -> str:
    if dot.low is None or dot.high is None:
        return ""
    x, low, high = across.at(dot.x), up.at(dot.low), up.at(dot.high)
    return f'<line class="whisker {figure.colour(dot.kind)}" x1="{x:g}" y1="{low:g}" x2="{x:g}" y2="{high:g}"/>'


def _draw(dot: Dot, across: Scale, up: Scale, radius: float) -> str:
    kind = "dot fill" if up.holds(dot.y) else "hollow"
    position = f'cx="{across.at(dot.x):g}" cy="{up.at(dot.y):g}" r="{radius:g}"'
    return f'<circle class="{kind} {figure.colour(dot.kind)}" {position}>{figure.titled(dot.label)}</circle>'
