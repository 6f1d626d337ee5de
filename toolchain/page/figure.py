"""What all plots have: a caption with a key, a picture with its axes, and lines that values are held against."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.page.parts import escaped, wide
from toolchain.page.scale import Scale
from toolchain.tables import printable

WIDTH = 720
COLOURS = ("one", "two", "three")  # classes of the colours that sets of values have in turn
TOP, BOTTOM, RIGHT = 18, 48, 18

_LETTER = 8.0  # width of a letter in the picture, about; some fonts are wide
_LINE = 16  # height of a line of text
_BESIDE, _MOST_NAME = 6, 250  # names of levels: how far from the plot, and how wide
_NOTHING = "Nothing to draw: there are no values."


@dataclass(frozen=True)
class Level:
    """A line across a plot that its values are held against."""

    name: str  # what it is called
    value: float  # where it is


def colour(place: int) -> str:
    """Return the class of the colour of a set of values, by its place among them."""
    return COLOURS[place % len(COLOURS)]


def figure(caption: str, described: str, height: float, drawn: Sequence[str], remarks: Sequence[str] = ()) -> str:
    """Write a plot.

    Args:
        caption: Its title.
        described: What it shows, for those who do not see it.
        height: Its height; it is `WIDTH` wide.
        drawn: What is in it, as SVG.
        remarks: What is said below it.
    """
    picture = [
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escaped(caption)}">',
        f"<desc>{escaped(described)}</desc>",
        *drawn,
        "</svg>",
    ]
    lines = [
        "<figure>",
        f"<figcaption>{escaped(caption)}</figcaption>",
        '<p class="more">This plot is wider than the screen: scroll it sideways \u2194</p>',
        wide("\n".join(picture), caption),
        *(f'<p class="remark">{escaped(text)}</p>' for text in remarks if text),
        "</figure>",
    ]
    return "\n".join(lines)


def keyed(plot: str, names: Sequence[str]) -> str:
    """Put the names of several sets of values beside a plot's caption, each with its colour."""
    if len(names) <= 1:
        return plot
    keys = [f'<span><i class="key {colour(place)}"></i>{escaped(name)}</span>' for place, name in enumerate(names)]
    return plot.replace("</figcaption>", f"{''.join(keys)}</figcaption>", 1)


def nothing(caption: str) -> str:
    """Say that there is nothing to draw."""
    return f"<figure><figcaption>{escaped(caption)}</figcaption><p>{_NOTHING}</p></figure>"


def text(x: float, y: float, said: str, anchor: str = "middle", kind: str = "") -> str:
    """Write a text into a picture; its anchor is `start`, `middle` or `end`."""
    kinds = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kinds}>{escaped(said)}</text>'


def titled(said: str) -> str:
    """Write what is shown where somebody points at a thing."""
    return f"<title>{escaped(said)}</title>" if said else ""


def left_of(ticks: Sequence[float]) -> float:
    """Return how much room is left of the plot for the labels of its vertical axis, and the axis' name."""
    return round(40 + _LETTER * max((len(f"{tick:g}") for tick in ticks), default=1))


def horizontal_axis(scale: Scale, y: float, name: str, *, whole: bool = False) -> list[str]:
    """Draw an axis with its labels below it, and below them its name; `whole` leaves out fractions."""
    drawn = [f'<line class="axis" x1="{scale.start:g}" y1="{y:g}" x2="{scale.end:g}" y2="{y:g}"/>']
    for value in scale.ticks():
        if not whole or value == math.floor(value):
            x = scale.at(value)
            drawn.append(f'<line class="axis" x1="{x:g}" y1="{y:g}" x2="{x:g}" y2="{y + 4:g}"/>')
            drawn.append(text(x, y + 18, f"{value:g}"))
    return [*drawn, text((scale.start + scale.end) / 2, y + 38, name)]


def vertical_axis(scale: Scale, left: float, right: float, name: str) -> list[str]:
    """Draw lines across the plot with their labels left of it, and left of these the axis' name."""
    drawn = []
    for value in scale.ticks():
        y = scale.at(value)
        drawn.append(f'<line class="grid" x1="{left:g}" y1="{y:g}" x2="{right:g}" y2="{y:g}"/>')
        drawn.append(text(left - 8, y + 4, f"{value:g}", "end"))
    middle = round((scale.start + scale.end) / 2, 1)
    turned = f'transform="rotate(-90 14 {middle:g})"'
    return [*drawn, f'<text x="14" y="{middle:g}" text-anchor="middle" {turned}>{escaped(name)}</text>']


def right_of(found: Sequence[Level]) -> float:
    """Return where a plot ends, so that the names of its levels have room beside it and cover none of its values."""
    return WIDTH - min(_MOST_NAME, max((_BESIDE + wide_as(one.name) for one in found if one.name), default=RIGHT))


def levels(found: Sequence[Level], scale: Scale, left: float, right: float) -> list[str]:
    """Draw levels across a plot, with their names beside it."""
    drawn, free = [], math.inf
    for level in sorted(found, key=lambda one: one.value):
        y = scale.at(level.value)
        drawn.append(f'<line class="level" x1="{left:g}" y1="{y:g}" x2="{right:g}" y2="{y:g}"/>')
        free = min(y + 4, free - _LINE)
        name = shortened(level.name, WIDTH - right - _BESIDE)
        drawn.append(text(right + _BESIDE, max(free, _LINE - 2), name, "start"))
    return drawn


def wide_as(name: str) -> float:
    """Return how wide a text is in a picture, about."""
    return _LETTER * sum(map(_widths, printable(name)))


def shortened(name: str, room: float) -> str:
    """Cut a name that is wider than some room in a picture."""
    shown, width = "", 0.0
    for letter in printable(name):
        width += _LETTER * _widths(letter)
        if width > room:
            return f"{shown[:-1]}\u2026"
        shown += letter
    return shown


def _widths(letter: str) -> int:
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
