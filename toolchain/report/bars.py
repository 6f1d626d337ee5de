"""A plot of bars, one below the other, such as shares of a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.report import figure, scale
from toolchain.report.figure import BOTTOM, WIDTH
from toolchain.report.parts import Part
from toolchain.report.scale import Scale

_ROW, _THICK, _FIRST = 24, 14, 10
_NAMES, _LABELS = 264, 200  # most room for names on the left, and for labels on the right


@dataclass(frozen=True)
class Bar:
    name: str  # a long one is cut in the picture, and complete in the tooltip
    value: float  # below zero the bar goes to the left
    text: str = ""  # what is written beside it; the value if that is empty
    label: str = ""  # the tooltip, after the name
    low: float | None = None  # the ends of its interval; None if it has none
    high: float | None = None
    kind: int = 0  # index in `Bars.kinds`


@dataclass(frozen=True)
class Bars(Part):
    """Bars below each other, in the order that they are given in."""

    caption: str
    across: str  # what the lengths are, with the unit
    bars: Sequence[Bar]
    kinds: Sequence[str] = ()  # each has its colour

    def html(self) -> str:
        bars = [bar for bar in self.bars if scale.drawable([bar.value])]
        if not bars:
            return figure.nothing(self.caption)
        ends = [end for bar in bars for end in (bar.value, bar.low, bar.high) if end is not None]
        ends = [0.0, *scale.drawable(ends)]
        left = min(_NAMES, 16 + max(figure.wide_as(bar.name) for bar in bars))
        right = WIDTH - min(_LABELS, 12 + max(figure.wide_as(_label(bar)) for bar in bars))
        across = scale.spanning(ends, left, right, exact=True) if any(ends) else Scale(0.0, 1.0, left, right)
        bottom = _FIRST + _ROW * len(bars)
        zero = across.at(0.0)
        drawing = [f'<line class="axis" x1="{zero:g}" y1="{_FIRST:g}" x2="{zero:g}" y2="{bottom:g}"/>']
        for row, bar in enumerate(bars):
            drawing += _draw(bar, across, _FIRST + _ROW * row + _ROW / 2, left)
        drawing += figure.horizontal_axis(across, bottom, self.across)
        largest = max(bars, key=lambda bar: abs(bar.value))
        description = f"{len(bars)} bars of {self.across}; the longest is {largest.name}, {_label(largest)}."
        return figure.keyed(figure.figure(self.caption, description, bottom + BOTTOM, drawing), self.kinds)


def _label(bar: Bar) -> str:
    return bar.text or f"{bar.value:.4g}"


def _draw(bar: Bar, across: Scale, middle: float, room: float) -> list[str]:
    colour = figure.colour(bar.kind)
    zero, end = across.at(0.0), across.at(bar.value)
    left, width, furthest = min(zero, end), round(abs(end - zero), 1), max(end, zero)
    drawing = [
        f"<g>{figure.titled(': '.join(filter(None, [bar.name, bar.label or _label(bar)])))}",
        # The tooltip appears anywhere in the row.
        f'<rect class="area" x="0" y="{middle - _ROW / 2:g}" width="{WIDTH}" height="{_ROW}"/>',
        figure.text(room - 8, middle + 4, figure.shortened(bar.name, room - 12), "end", "said"),
        f'<rect class="fill {colour}" x="{left:g}" y="{middle - _THICK / 2:g}" width="{width:g}" height="{_THICK}"/>',
    ]
    if bar.low is not None and bar.high is not None:
        low, high = across.at(bar.low), across.at(bar.high)
        drawing.append(f'<line class="error" x1="{low:g}" y1="{middle:g}" x2="{high:g}" y2="{middle:g}"/>')
        furthest = max(furthest, low, high)
    label = figure.shortened(_label(bar), _LABELS - 12)
    return [*drawing, figure.text(furthest + 6, middle + 4, label, "start", "said"), "</g>"]
