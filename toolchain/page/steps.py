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
    """A value from a moment on."""

    x: float
    y: float  # the value, above zero
    label: str = ""  # its tooltip


@dataclass(frozen=True)
class Steps:
    """A step line over time."""

    caption: str
    across: str  # name of the horizontal axis, with the unit
    up: str  # name of the vertical axis, with the unit
    steps: Sequence[Step]  # the steps in the order of their moments; those that are not above zero are left out
    end: float  # where the horizontal axis ends; it begins at zero
    levels: Sequence[Level] = ()  # above zero

    def html(self) -> str:
        steps = [step for step in self.steps if step.y > 0 and scale.drawable([step.x, step.y]) == [step.x, step.y]]
        if not steps:
            return figure.nothing(self.caption)
        values = [*(step.y for step in steps), *(level.value for level in self.levels)]
        up = scale.logarithmic(values, _HEIGHT - BOTTOM, TOP)
        left, right = figure.left_of(up.ticks()), figure.right_of(self.levels)
        across = Scale(0.0, max(self.end, steps[-1].x) or 1.0, left, right)
        points = [(across.at(step.x), up.at(step.y), step.label) for step in steps]
        path = f"M{points[0][0]:g} {points[0][1]:g}" + "".join(f"H{x:g}V{y:g}" for x, y, _label in points[1:])
        drawing = [
            *figure.vertical_axis(up, left, right, self.up),
            *figure.horizontal_axis(across, _HEIGHT - BOTTOM, self.across),
            *figure.levels(self.levels, up, left, right),
            f'<path class="line one" d="{path}H{across.end:g}"/>',
            f'<circle class="dot fill one" cx="{points[-1][0]:g}" cy="{points[-1][1]:g}" r="4"/>',
            # Every step has an area with a tooltip.
            *(
                f'<circle class="area" cx="{x:g}" cy="{y:g}" r="8">{figure.titled(label)}</circle>'
                for x, y, label in points
            ),
        ]
        description = f"A step line of {self.up} over {self.across}, from {steps[0].y:.4g} to {steps[-1].y:.4g}."
        return figure.figure(self.caption, description, _HEIGHT, drawing)
