"""The types of option values: numbers within limits, times and sizes with a unit."""

from __future__ import annotations

import math
from typing import Any

import click
from click.shell_completion import CompletionItem

from toolchain.units import duration, parse_duration, parse_size


class Limit(click.FloatRange):
    """A finite number: infinity or NaN as a limit would let everything pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number and check that it is finite."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a valid limit.", param, ctx)
        return number


class Duration(click.ParamType[float]):
    """A time with a unit, within limits in seconds."""

    name = "time"

    def __init__(self, least_s: float, longest_s: float) -> None:
        self._least_s, self._longest_s = least_s, longest_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        try:
            seconds = value if isinstance(value, float) else parse_duration(value)
        except ValueError as fault:
            self.fail(f"{fault}.", param, ctx)
        if not self._least_s <= seconds <= self._longest_s:
            limits = f"{duration(self._least_s * 1e3)} to {self._longest_s:g} s"
            self.fail(f"{value!r} is not in the range from {limits}.", param, ctx)
        return float(seconds)


class Size(click.ParamType[int]):
    """A size in bytes, as a number with a binary unit or none."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError as fault:
            self.fail(f"{fault}.", param, ctx)


class BackendName(click.ParamType[str]):
    """The name of a compiler backend; the list of them is read when it is needed."""

    name = "backend"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - of the base class
        """Return the names."""
        from toolchain import board

        return f"[{'|'.join(board.backends())}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the name."""
        from toolchain import board

        names = board.backends()
        if value not in names:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, names))}.", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - of the base class
        """Complete a name."""
        from toolchain import board

        return [CompletionItem(name) for name in board.backends() if name.startswith(incomplete)]
