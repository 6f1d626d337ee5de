"""A plot of every run in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.page import figure, scale
from toolchain.page.figure import BOTTOM, TOP, Level
from toolchain.page.scale import Scale

MOST_POINTS = 5000  # of a longer series, each column of pixels keeps its smallest and its greatest value
_HEIGHT = 300
_ROOM = 8.0
# Points are wider where there are fewer of them: up to so many, so wide.
_WIDTHS = ((60, 6.0), (400, 4.0), (1500, 3.0))
_THIN = 2.2


@dataclass(frozen=True)
class Run:
    """Values in the order of their measurement."""

    name: str
    values: Sequence[float]  # those that are not finite are left out
    # where several runs took turns, the position of each value in the order of all of them; from 1 on if empty
    positions: Sequence[float] = ()

    def points(self) -> list[tuple[float, float]]:
        """Return the positions and values that can be drawn."""
        positions = self.positions or range(1, len(self.values) + 1)
        pairs = zip(positions, self.values, strict=True)
        return [(float(position), value) for position, value in pairs if scale.drawable([value])]


@dataclass(frozen=True)
class Series:
    """Runs of values in order; the scale is logarithmic where one value is four times another."""

    caption: str
    across: str  # name of the horizontal axis
    up: str  # name of the vertical axis, with the unit
    runs: Sequence[Run]
    levels: Sequence[Level] = ()  # such as a median

    def html(self) -> str:
        runs = [run.points() for run in self.runs]
        everything = [point for points in runs for point in points]
        if not everything:
            return figure.nothing(self.caption)
        values = [value for _, value in everything]
        up = scale.fitting([*values, *(level.value for level in self.levels)], _HEIGHT - BOTTOM, TOP)
        left, right = figure.left_of(up.ticks()), figure.right_of(self.levels)
        across = scale.spanning([position for position, _ in everything], left + _ROOM, right - _ROOM, exact=True)
        drawing = [
            *figure.vertical_axis(up, left, right, f"{self.up}, logarithmic" if up.logarithmic else self.up),
            *figure.horizontal_axis(across, _HEIGHT - BOTTOM, self.across, integral=True),
            *(_draw(points, across, up, figure.colour(index)) for index, points in enumerate(runs) if points),
            *figure.levels(self.levels, up, left, right),
        ]
        description = f"{len(values)} values of {self.up} in order, from {min(values):.4g} to {max(values):.4g}."
        plot = figure.figure(self.caption, description, _HEIGHT, drawing)
        return figure.keyed(plot, [run.name for run in self.runs])


def _draw(points: Sequence[tuple[float, float]], across: Scale, up: Scale, colour: str) -> str:
    """Draw points as strokes without a length; of many, each column of pixels as one stroke."""
    if len(points) <= MOST_POINTS:
        path = "".join(f"M{across.at(position):g} {up.at(value):g}h0" for position, value in points)
    else:
        columns = extremes([(round(across.at(position)), value) for position, value in points])
        path = "".join(f"M{x} {up.at(low):g}V{up.at(high):g}" for x, low, high in columns)
    width = next((width for limit, width in _WIDTHS if len(points) <= limit), _THIN)
    return f'<path class="points {colour}" stroke-width="{width:g}" d="{path}"/>'


def extremes(points: Sequence[tuple[int, float]]) -> list[tuple[int, float, float]]:
    """Return each column of pixels with the smallest and the greatest value in it, from left to right."""
    columns: dict[int, tuple[float, float]] = {}
    for x, value in points:
        low, high = columns.get(x, (value, value))
        columns[x] = min(low, value), max(high, value)
    return [(x, *columns[x]) for x in sorted(columns)]
