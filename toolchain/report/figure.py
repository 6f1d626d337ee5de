"""What all plots share: a caption with a key, a picture with axes, and levels, which are lines across it."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.printable import printable
from toolchain.report.parts import escaped, wide
from toolchain.report.scale import Scale

WIDTH = 720
COLOURS = ("one", "two", "three")  # classes of the colours that sets of values have in turn
TOP, BOTTOM, RIGHT = 18, 48, 18

_LETTER = 8.0  # width of a letter in the picture, about; some fonts are wide
_LINE = 16  # height of a line of text
_BESIDE, _MOST_NAME = 6, 250  # names of levels: how far from the plot, and how wide
_NOTHING = "Nothing to draw: there are no values."


@dataclass(frozen=True)
class Level:
    """A line across a plot, such as a limit."""

    name: str
    value: float


def colour(index: int) -> str:
    """Return the class of the colour of the set of values with this index."""
    return COLOURS[index % len(COLOURS)]


def figure(caption: str, description: str, height: float, drawing: Sequence[str], remarks: Sequence[str] = ()) -> str:
    """Write a plot, `WIDTH` wide.

    Args:
        caption: Its title.
        description: What it shows, for screen readers.
        height: Its height.
        drawing: SVG elements.
        remarks: Lines below it.
    """
    picture = [
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escaped(caption)}">',
        f"<desc>{escaped(description)}</desc>",
        *drawing,
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
    keys = [f'<span><i class="key {colour(index)}"></i>{escaped(name)}</span>' for index, name in enumerate(names)]
    return plot.replace("</figcaption>", f"{''.join(keys)}</figcaption>", 1)


def nothing(caption: str) -> str:
    """Write what stands in the place of a plot without values."""
    return f"<figure><figcaption>{escaped(caption)}</figcaption><p>{_NOTHING}</p></figure>"


def text(x: float, y: float, content: str, anchor: str = "middle", kind: str = "") -> str:
    """Write a text into a picture; its anchor is `start`, `middle` or `end`."""
    kinds = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kinds}>{escaped(content)}</text>'


def titled(content: str) -> str:
    """Write a tooltip."""
    return f"<title>{escaped(content)}</title>" if content else ""


def left_of(ticks: Sequence[float]) -> float:
    """Return the room left of a plot for the labels of its vertical axis, and the axis' name."""
    return round(40 + _LETTER * max((len(f"{tick:g}") for tick in ticks), default=1))


def horizontal_axis(scale: Scale, y: float, name: str, *, integral: bool = False) -> list[str]:
    """Draw an axis with labels and its name below; `integral` leaves out fractions."""
    drawing = [f'<line class="axis" x1="{scale.start:g}" y1="{y:g}" x2="{scale.end:g}" y2="{y:g}"/>']
    for value in scale.ticks():
        if not integral or value == math.floor(value):
            x = scale.at(value)
            drawing.append(f'<line class="axis" x1="{x:g}" y1="{y:g}" x2="{x:g}" y2="{y + 4:g}"/>')
            drawing.append(text(x, y + 18, f"{value:g}"))
    return [*drawing, text((scale.start + scale.end) / 2, y + 38, name)]


def vertical_axis(scale: Scale, left: float, right: float, name: str) -> list[str]:
    """Draw lines across the plot with their labels and the axis' name on the left."""
    drawing = []
    for value in scale.ticks():
        y = scale.at(value)
        drawing.append(f'<line class="grid" x1="{left:g}" y1="{y:g}" x2="{right:g}" y2="{y:g}"/>')
        drawing.append(text(left - 8, y + 4, f"{value:g}", "end"))
    middle = round((scale.start + scale.end) / 2, 1)
    rotation = f'transform="rotate(-90 14 {middle:g})"'
    return [*drawing, f'<text x="14" y="{middle:g}" text-anchor="middle" {rotation}>{escaped(name)}</text>']


def right_of(lines: Sequence[Level]) -> float:
    """Return where a plot ends, so that the names of its levels have room beside it."""
    return WIDTH - min(_MOST_NAME, max((_BESIDE + wide_as(line.name) for line in lines if line.name), default=RIGHT))


def levels(lines: Sequence[Level], scale: Scale, left: float, right: float) -> list[str]:
    """Draw levels across a plot, with their names beside it."""
    drawing, free = [], math.inf
    for level in sorted(lines, key=lambda line: line.value):
        y = scale.at(level.value)
        drawing.append(f'<line class="level" x1="{left:g}" y1="{y:g}" x2="{right:g}" y2="{y:g}"/>')
        free = min(y + 4, free - _LINE)
        name = shortened(level.name, WIDTH - right - _BESIDE)
        drawing.append(text(right + _BESIDE, max(free, _LINE - 2), name, "start"))
    return drawing


def wide_as(name: str) -> float:
    """Return the approximate width of a text in a picture."""
    return _LETTER * sum(map(_widths, printable(name)))


def shortened(name: str, room: float) -> str:
    """Cut a name to a width in the picture."""
    start, width = "", 0.0
    for letter in printable(name):
        width += _LETTER * _widths(letter)
        if width > room:
            return f"{start[:-1]}\u2026"
        start += letter
    return start


def _widths(letter: str) -> int:
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
