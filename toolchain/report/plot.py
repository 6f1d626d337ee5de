"""A plot of layers on common axes, with lines across it for limits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.report import figure, scale
from toolchain.report.figure import BOTTOM, TOP, Level
from toolchain.report.parts import Part
from toolchain.report.scale import Scale

MOST_POINTS = 5000  # of more samples, each column of pixels keeps its smallest and its greatest value
_HEIGHT = 320
_ROOM = 14.0  # beside the first and the last value
_LARGE, _SMALL, _MANY = 4.0, 2.5, 100
# Strokes are wider where there are fewer of them: up to so many, so wide.
_WIDTHS = ((60, 6.0), (400, 4.0), (1500, 3.0))
_THIN = 2.2


@dataclass(frozen=True)
class Value:
    x: float  # such as the number of a round
    y: float
    label: str = ""  # its tooltip
    low: float | None = None  # the ends of its interval; None if it has none
    high: float | None = None


@dataclass(frozen=True)
class Layer(ABC):
    """Values that a plot draws in one colour; those that are not finite are left out."""

    points: Sequence[Value]  # in the order of their positions
    name: str = ""  # beside the caption of a plot with several layers

    def drawable(self) -> list[Value]:
        return [point for point in self.points if scale.drawable([point.x, point.y]) == [point.x, point.y]]

    def scale(self, points: Sequence[Value], levels: Sequence[float]) -> Scale:
        """Return the vertical scale of a plot of such layers: logarithmic where one value is four times another."""
        return scale.fitting([*(point.y for point in points), *levels], _HEIGHT - BOTTOM, TOP)

    @abstractmethod
    def draw(self, points: Sequence[Value], across: Scale, up: Scale, colour: str) -> list[str]: ...


class Dots(Layer):
    """Values with intervals; a far outlier is drawn as a ring at the edge, and named below the plot."""

    def scale(self, points: Sequence[Value], levels: Sequence[float]) -> Scale:
        ends = scale.drawable(end for point in points for end in (point.low, point.high) if end is not None)
        values = [*scale.fenced([point.y for point in points]), *scale.fenced(ends), *levels]
        return scale.spanning(values, _HEIGHT - BOTTOM, TOP)

    def draw(self, points: Sequence[Value], across: Scale, up: Scale, colour: str) -> list[str]:
        drawing, radius = [], _SMALL if len(points) > _MANY else _LARGE
        for point in points:
            if point.low is not None and point.high is not None:
                x, low, high = across.at(point.x), up.at(point.low), up.at(point.high)
                drawing.append(f'<line class="whisker {colour}" x1="{x:g}" y1="{low:g}" x2="{x:g}" y2="{high:g}"/>')
        for point in points:
            kind = "dot fill" if up.holds(point.y) else "hollow"
            position = f'cx="{across.at(point.x):g}" cy="{up.at(point.y):g}" r="{radius:g}"'
            drawing.append(f'<circle class="{kind} {colour}" {position}>{figure.titled(point.label)}</circle>')
        return drawing


class Strokes(Layer):
    """Many values, as strokes without a length; of very many, each column of pixels as one stroke."""

    def draw(self, points: Sequence[Value], across: Scale, up: Scale, colour: str) -> list[str]:
        if len(points) <= MOST_POINTS:
            path = "".join(f"M{across.at(point.x):g} {up.at(point.y):g}h0" for point in points)
        else:
            columns = extremes([(round(across.at(point.x)), point.y) for point in points])
            path = "".join(f"M{x} {up.at(low):g}V{up.at(high):g}" for x, low, high in columns)
        width = next((width for limit, width in _WIDTHS if len(points) <= limit), _THIN)
        return [f'<path class="points {colour}" stroke-width="{width:g}" d="{path}"/>']


class Steps(Layer):
    """Values above zero that hold from each moment on until the next, on a logarithmic scale."""

    def drawable(self) -> list[Value]:
        return [point for point in super().drawable() if point.y > 0]

    def scale(self, points: Sequence[Value], levels: Sequence[float]) -> Scale:
        return scale.logarithmic([*(point.y for point in points), *levels], _HEIGHT - BOTTOM, TOP)

    def draw(self, points: Sequence[Value], across: Scale, up: Scale, colour: str) -> list[str]:
        corners = [(across.at(point.x), up.at(point.y)) for point in points]
        path = f"M{corners[0][0]:g} {corners[0][1]:g}" + "".join(f"H{x:g}V{y:g}" for x, y in corners[1:])
        return [
            f'<path class="line {colour}" d="{path}H{across.end:g}"/>',
            f'<circle class="dot fill {colour}" cx="{corners[-1][0]:g}" cy="{corners[-1][1]:g}" r="4"/>',
            # Every step has an area with a tooltip.
            *(
                f'<circle class="area" cx="{x:g}" cy="{y:g}" r="8">{figure.titled(point.label)}</circle>'
                for (x, y), point in zip(corners, points, strict=True)
            ),
        ]


@dataclass(frozen=True)
class Plot(Part):
    """Layers of one kind on common axes."""

    caption: str
    across: str  # name of the horizontal axis, with the unit
    up: str  # name of the vertical axis, with the unit
    layers: Sequence[Layer]
    levels: Sequence[Level] = ()  # such as limits, as lines across the plot
    end: float | None = None  # of the horizontal axis, which begins at zero; None for the range of whole numbers

    def html(self) -> str:
        layers = [(layer, layer.drawable()) for layer in self.layers]
        points = [point for _layer, drawable in layers for point in drawable]
        if not points:
            return figure.nothing(self.caption)
        values = [point.y for point in points]
        up = self.layers[0].scale(points, [level.value for level in self.levels])
        left, right = figure.left_of(up.ticks()), figure.right_of(self.levels)
        if self.end is None:
            across = scale.spanning([point.x for point in points], left + _ROOM, right - _ROOM, exact=True)
        else:
            across = Scale(0.0, max(self.end, *(point.x for point in points)) or 1.0, left, right)
        drawing = [
            *figure.vertical_axis(up, left, right, f"{self.up}, logarithmic" if up.logarithmic else self.up),
            *figure.horizontal_axis(across, _HEIGHT - BOTTOM, self.across, integral=self.end is None),
        ]
        for index, (layer, drawable) in enumerate(layers):
            drawing += layer.draw(drawable, across, up, figure.colour(index)) if drawable else []
        drawing += figure.levels(self.levels, up, left, right)
        outside, remark = [value for value in values if not up.holds(value)], ""
        if outside:
            remark = f"{len(outside)} outside the plot, shown as rings at its edge: "
            remark += f"{min(outside):.4g} to {max(outside):.4g}."
        description = (
            f"{len(values)} values of {self.up} by {self.across}, from {min(values):.4g} to {max(values):.4g}."
        )
        plot = figure.figure(self.caption, description, _HEIGHT, drawing, [remark])
        return figure.keyed(plot, [layer.name for layer in self.layers])


def samples(values: Sequence[float], positions: Sequence[float] = ()) -> list[Value]:
    """Return values in the order of their measurement as points.

    Args:
        values: The values.
        positions: Where several sets took turns, the position of each value in the order of all; from 1 on if empty.
    """
    return list(map(Value, positions or range(1, len(values) + 1), values))


def extremes(points: Sequence[tuple[int, float]]) -> list[tuple[int, float, float]]:
    """Return each column of pixels with the smallest and the greatest value in it, from left to right."""
    columns: dict[int, tuple[float, float]] = {}
    for x, value in points:
        low, high = columns.get(x, (value, value))
        columns[x] = min(low, value), max(high, value)
    return [(x, *columns[x]) for x in sorted(columns)]
