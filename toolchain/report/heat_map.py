"""A plot of how values are spread over time: darker where more of them are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.report import figure, scale
from toolchain.report.figure import BOTTOM, TOP, Level
from toolchain.report.parts import Part
from toolchain.report.scale import Scale

_HEIGHT = 300
_SHADES = 6
_LIGHTEST = 0.2


@dataclass(frozen=True)
class Cell:
    """How many values of a column are between two others."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class HeatMap(Part):
    """Columns of equal width from left to right; the values are on a logarithmic scale."""

    caption: str
    across: str
    up: str
    columns: Sequence[Sequence[Cell]]
    width: float  # of a column, in units of `across`
    level: Level

    def html(self) -> str:
        cells = [cell for column in self.columns for cell in column if cell.low > 0]
        if not cells:
            return figure.nothing(self.caption)
        ends = [end for cell in cells for end in (cell.low, cell.high)]
        upward = scale.logarithmic([*ends, self.level.value], TOP + _HEIGHT, TOP)
        left, right = figure.left_of(upward.ticks()), figure.right_of([self.level])
        across = Scale(0.0, self.width * len(self.columns), left, right)
        drawing = figure.vertical_axis(upward, left, right, self.up)
        most = max(cell.count for cell in cells)
        shades = self._shades(across, upward, most)
        for shade in sorted(shades):
            opacity = _LIGHTEST + (1 - _LIGHTEST) * shade / (_SHADES - 1)
            drawing.append(f'<path class="fill {figure.colour(0)}" fill-opacity="{opacity:.2f}" d="{shades[shade]}"/>')
        drawing += figure.horizontal_axis(across, TOP + _HEIGHT, self.across)
        drawing += figure.levels([self.level], upward, left, right)
        total = sum(cell.count for cell in cells)
        description = f"{total} values ({self.up}) over {self.across}; the darkest field has {most} of them."
        return figure.figure(self.caption, description, TOP + _HEIGHT + BOTTOM, drawing)

    def _shades(self, across: Scale, upward: Scale, most: int) -> dict[int, str]:
        """Return the path of the fields of each shade; a field has a shade more for each doubling of its count."""
        paths: dict[int, str] = defaultdict(str)
        for number, column in enumerate(self.columns):
            x, end = across.at(number * self.width), across.at((number + 1) * self.width)
            for cell in column:
                if cell.low > 0:
                    y, bottom = upward.at(cell.high), upward.at(cell.low)
                    shade = max(_SHADES - (most // cell.count).bit_length(), 0)
                    paths[shade] += f"M{x:g} {y:g}H{end:g}V{bottom:g}H{x:g}z"
        return paths
