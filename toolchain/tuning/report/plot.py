"""A step line over time with a logarithmic scale, as SVG that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 480, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 20, 48
_MOST_TICKS = 8
# Values that a decade of the scale is labelled at: the coarsest with enough of them in sight is taken.
_MANTISSAS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
_FEWEST_TICKS = 3
_MARGIN = 1.08


@dataclass(frozen=True)
class Step:
    """A value that holds from a moment on.

    Attributes:
        x: The moment.
        y: The value, above zero.
        label: What is said of it.
    """

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class _Scale:
    """Where values are in the picture."""

    x_end: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return round(_LEFT + value / self.x_end * (_WIDTH - _LEFT - _RIGHT), 2)

    def y(self, value: float) -> float:
        part = math.log(self.y_high / value) / math.log(self.y_high / self.y_low)
        return round(_TOP + part * (_HEIGHT - _TOP - _BOTTOM), 2)


def svg(steps: Sequence[Step], end: float, axes: tuple[str, str], level: tuple[str, float | None] = ("", None)) -> str:
    """Draw a step line.

    Args:
        steps: At least one, in the order of their moments.
        end: Where the horizontal axis ends; it begins at zero.
        axes: Names of the horizontal and the vertical axis, as XML text.
        level: Name of a value to hold the line against, and the value; None if there is none.
    """
    values = [*(step.y for step in steps), *([] if level[1] is None else [level[1]])]
    scale = _Scale(max(end, steps[-1].x) or 1.0, min(values) / _MARGIN, max(values) * _MARGIN)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{axes[1]} over {axes[0]}">',
        *_horizontal_axis(scale, axes[0]),
        *_vertical_axis(scale, axes[1]),
        *([] if level[1] is None else _level(scale, level[0], level[1])),
        _line(scale, steps),
        *_dots(scale, steps),
        "</svg>",
    ]
    return "\n".join(parts)


def _horizontal_axis(scale: _Scale, name: str) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    lines = [f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - _RIGHT}" y2="{bottom}"/>']
    for value in linear_ticks(0.0, scale.x_end):
        x = scale.x(value)
        lines.append(f'<line class="axis" x1="{x}" y1="{bottom}" x2="{x}" y2="{bottom + 4}"/>')
        lines.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text class="name" x="{middle:g}" y="{_HEIGHT - 8}" text-anchor="middle">{name}</text>')
    return lines


def _vertical_axis(scale: _Scale, name: str) -> list[str]:
    lines = []
    for value in logarithmic_ticks(scale.y_low, scale.y_high):
        y = scale.y(value)
        lines.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:g}" text-anchor="end">{value:g}</text>')
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle:g})"'
    lines.append(f'<text class="name" x="14" y="{middle:g}" text-anchor="middle" {turned}>{name}</text>')
    return lines


def _level(scale: _Scale, name: str, value: float) -> list[str]:
    y = scale.y(value)
    return [
        f'<line class="level" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>',
        f'<text x="{_WIDTH - _RIGHT}" y="{y - 5:g}" text-anchor="end">{name}, {value:.4g}</text>',
    ]


def _line(scale: _Scale, steps: Sequence[Step]) -> str:
    first, *others = steps
    path = f"M{scale.x(first.x)} {scale.y(first.y)}"
    path += "".join(f"H{scale.x(step.x)}V{scale.y(step.y)}" for step in others)
    return f'<path class="line" d="{path}H{scale.x(scale.x_end)}"/>'


def _dots(scale: _Scale, steps: Sequence[Step]) -> list[str]:
    """Give the steps areas to point at, with what is said of them; the last one is also seen."""
    last = steps[-1]
    seen = f'<circle class="last" cx="{scale.x(last.x)}" cy="{scale.y(last.y)}" r="4"/>'
    areas = [
        f'<circle class="area" cx="{scale.x(step.x)}" cy="{scale.y(step.y)}" r="8"><title>{step.label}</title></circle>'
        for step in steps
    ]
    return [seen, *areas]


def linear_ticks(low: float, high: float) -> list[float]:
    """Choose round values between two others, at most eight."""
    rough = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def logarithmic_ticks(low: float, high: float) -> list[float]:
    """Choose round values between two others, both above zero, for a logarithmic scale."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in _MANTISSAS:
        ticks = [value for power in powers for value in _decade(power, mantissas) if low <= value <= high]
        if len(ticks) >= _FEWEST_TICKS:
            return ticks
    return linear_ticks(low, high)


def _decade(power: int, mantissas: Sequence[float]) -> list[float]:
    return [float(f"{mantissa}e{power}") for mantissa in mantissas]
