"""A plot of bars, one below the other, such as shares of a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.page import figure, scale
from toolchain.page.figure import BOTTOM, WIDTH
from toolchain.page.scale import Scale

_ROW, _THICK, _FIRST = 24, 14, 10
_NAMES, _SAID = 264, 200  # most room for names on the left, and for what is said of each bar on the right


@dataclass(frozen=True)
class Bar:
    """A bar."""

    name: str  # what it stands for; a long one is cut in the picture, and whole where somebody points at it
    value: float  # its length; below zero it goes to the left
    said: str = ""  # what is written beside it; the value if that is empty
    label: str = ""  # what is said of it where somebody points at it, beside its name
    low: float | None = None  # where its interval begins; None if it has none
    high: float | None = None  # where its interval ends; None if it has none
    kind: int = 0  # its place among `Bars.kinds`


@dataclass(frozen=True)
class Bars:
    """Bars below each other, in the order that they are given in."""

    caption: str  # its title
    across: str  # what the lengths are, with the unit
    bars: Sequence[Bar]  # the bars
    kinds: Sequence[str] = ()  # names of the kinds that the bars are of; each has its colour

    def html(self) -> str:
        """Write it as HTML."""
        bars = [one for one in self.bars if scale.drawable([one.value])]
        if not bars:
            return figure.nothing(self.caption)
        ends = [end for one in bars for end in (one.value, one.low, one.high) if end is not None]
        ends = [0.0, *scale.drawable(ends)]
        left = min(_NAMES, 16 + max(figure.wide_as(one.name) for one in bars))
        right = WIDTH - min(_SAID, 12 + max(figure.wide_as(_said(one)) for one in bars))
        across = scale.spanning(ends, left, right, exact=True) if any(ends) else Scale(0.0, 1.0, left, right)
        bottom = _FIRST + _ROW * len(bars)
        zero = across.at(0.0)
        drawn = [f'<line class="axis" x1="{zero:g}" y1="{_FIRST:g}" x2="{zero:g}" y2="{bottom:g}"/>']
        for place, one in enumerate(bars):
            drawn += _name(one, left, _FIRST + _ROW * place + _ROW / 2)
            drawn += _drawn(one, across, _FIRST + _ROW * place + _ROW / 2)
        drawn += figure.horizontal_axis(across, bottom, self.across)
        largest = max(bars, key=lambda one: abs(one.value))
        said = f"{len(bars)} bars of {self.across}; the longest is {largest.name}, {_said(largest)}."
        return figure.keyed(figure.figure(self.caption, said, bottom + BOTTOM, drawn), self.kinds)


def _said(bar: Bar) -> str:
    return bar.said or f"{bar.value:.4g}"


def _name(bar: Bar, room: float, middle: float) -> list[str]:
    """Draw a bar's name, and an area as wide as the plot that tells all of it; the bar's own end closes it."""
    title = figure.titled(": ".join(filter(None, [bar.name, bar.label or _said(bar)])))
    return [
        f"<g>{title}",
        f'<rect class="area" x="0" y="{middle - _ROW / 2:g}" width="{WIDTH}" height="{_ROW}"/>',
        figure.text(room - 8, middle + 4, figure.shortened(bar.name, room - 12), "end", "said"),
    ]


def _drawn(bar: Bar, across: Scale, middle: float) -> list[str]:
    colour = figure.colour(bar.kind)
    zero, end = across.at(0.0), across.at(bar.value)
    left, width, furthest = min(zero, end), round(abs(end - zero), 1), max(end, zero)
    top = middle - _THICK / 2
    drawn = [f'<rect class="fill {colour}" x="{left:g}" y="{top:g}" width="{width:g}" height="{_THICK}"/>']
    if bar.low is not None and bar.high is not None:
        low, high = across.at(bar.low), across.at(bar.high)
        drawn.append(f'<line class="error" x1="{low:g}" y1="{middle:g}" x2="{high:g}" y2="{middle:g}"/>')
        furthest = max(furthest, low, high)
    said = figure.shortened(_said(bar), _SAID - 12)
    return [*drawn, figure.text(furthest + 6, middle + 4, said, "start", "said"), "</g>"]
