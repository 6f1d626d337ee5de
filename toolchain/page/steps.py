"""A plot of a value that holds from each moment on until the next, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.page import figure, scale
from toolchain.page.figure import BOTTOM, TOP, Level
from toolchain.page.scale import Scale

_HEIGHT = 320


@dataclass(frozen=True)
class Step:
    """A value that holds from a moment on."""

    x: float  # the moment
    y: float  # the value, above zero
    label: str = ""  # what is said of it where somebody points at it


@dataclass(frozen=True)
class Steps:
    """A step line over time."""

    caption: str  # its title
    across: str  # name of the horizontal axis, with the unit
    up: str  # name of the vertical axis, with the unit
    steps: Sequence[Step]  # the steps in the order of their moments; those that are not above zero are left out
    end: float  # where the horizontal axis ends; it begins at zero
    levels: Sequence[Level] = ()  # values to hold the line against, above zero

    def html(self) -> str:
        """Write it as HTML."""
        steps = [one for one in self.steps if one.y > 0 and scale.drawable([one.x, one.y]) == [one.x, one.y]]
        if not steps:
            return figure.nothing(self.caption)
        values = [*(one.y for one in steps), *(level.value for level in self.levels)]
        up = scale.logarithmic(values, _HEIGHT - BOTTOM, TOP)
        left, right = figure.left_of(up.ticks()), figure.right_of(self.levels)
        across = Scale(0.0, max(self.end, steps[-1].x) or 1.0, left, right)
        drawn = [
            *figure.vertical_axis(up, left, right, self.up),
            *figure.horizontal_axis(across, _HEIGHT - BOTTOM, self.across),
            *figure.levels(self.levels, up, left, right),
            _line(across, up, steps),
            *_points(across, up, steps),
        ]
        said = f"A step line of {self.up} over {self.across}, from {steps[0].y:.4g} to {steps[-1].y:.4g}."
        return figure.figure(self.caption, said, _HEIGHT, drawn)


def _line(across: Scale, up: Scale, steps: Sequence[Step]) -> str:
    first, *others = steps
    path = f"M{across.at(first.x):g} {up.at(first.y):g}"
    path += "".join(f"H{across.at(step.x):g}V{up.at(step.y):g}" for step in others)
    return f'<path class="line one" d="{path}H{across.end:g}"/>'


def _points(across: Scale, up: Scale, steps: Sequence[Step]) -> list[str]:
    """Give the steps areas to point at, with what is said of them; the last one is also seen."""
    places = [(across.at(step.x), up.at(step.y), step.label) for step in steps]
    x, y, _ = places[-1]
    seen = f'<circle class="dot fill one" cx="{x:g}" cy="{y:g}" r="4"/>'
    areas = [
        f'<circle class="area" cx="{x:g}" cy="{y:g}" r="8">{figure.titled(label)}</circle>' for x, y, label in places
    ]
    return [seen, *areas]
