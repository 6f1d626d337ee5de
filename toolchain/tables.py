"""Output for people: tables as data, quantities, and text without control characters.

The caller knows the width of the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_FOUR_DIGITS = 1000.0
_MIN_MS = 0.01


@dataclass(frozen=True)
class Table:
    """Rows of text; `str` aligns them in columns, two spaces apart."""

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()  # empty if the first cell of each row is its name
    numbers: Sequence[int] = ()  # indices of the columns of numbers, which are aligned to the right
    spare: Sequence[int] = ()  # indices of the columns that a narrow screen can omit, the first one first

    @property
    def lines(self) -> list[Sequence[str]]:
        return [self.head, *self.rows] if self.head else list(self.rows)

    def without(self, column: int) -> Table:
        def cut(row: Sequence[str]) -> tuple[str, ...]:
            return (*row[:column], *row[column + 1 :])

        def moved(columns: Sequence[int]) -> tuple[int, ...]:
            return tuple(index - (index > column) for index in columns if index != column)

        return Table([cut(row) for row in self.rows], cut(self.head), moved(self.numbers), moved(self.spare))

    def printable(self) -> Table:
        rows = [[printable(cell) for cell in row] for row in self.rows]
        return Table(rows, [printable(name) for name in self.head], self.numbers, self.spare)

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.lines, strict=True)]

        def align(cell: str, column: int) -> str:
            return cell.rjust(widths[column]) if column in self.numbers else cell.ljust(widths[column])

        return "\n".join(
            "  ".join(align(cell, column) for column, cell in enumerate(line)).rstrip() for line in self.lines
        )


# the output of a command: lines, a table, or several of them below each other
Shown = str | Table | Sequence[str | Table]


def parts(output: Shown) -> list[str | Table]:
    """Return the texts and tables of an output, without control characters."""
    items = [output] if isinstance(output, str | Table) else list(output)
    return [item.printable() if isinstance(item, Table) else printable(item) for item in items]


def plain(output: Shown) -> str:
    """Return an output as text for a file or a pipe."""
    return "\n".join(map(str, parts(output)))


def printable(text: str) -> str:
    r"""Escape what would control a terminal, or reverse letters: text comes from devices, packages and compilers.

    Line ends and tabs stay; other characters that are not visible are written as in Python, as \x1b.
    """
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else letter.encode("unicode_escape", "backslashreplace").decode()
        for letter in text
    )


def duration(milliseconds: float, *, signed: bool = False) -> str:
    """Write a time with its unit, microseconds below 0.01 ms; `signed` for a difference of two times."""
    is_short = 0 < abs(milliseconds) < _MIN_MS
    return f"{digits(milliseconds * 1e3 if is_short else milliseconds, signed=signed)} {'µs' if is_short else 'ms'}"


def digits(value: float, *, signed: bool = False) -> str:
    """Write a number with four digits, and no fewer before the point."""
    sign = "+" if signed else ""
    if value == 0:
        return "0"
    return f"{value:{sign}.0f}" if abs(value) >= _FOUR_DIGITS else f"{value:{sign}#.4g}".rstrip(".")
