"""What is shown to people: tables as data, and text in which nothing steers a terminal.

Who prints them knows how wide the reader's screen is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text."""

    rows: Sequence[Sequence[str]]  # the rows, each as long as the others
    head: Sequence[str] = ()  # names of the columns; empty if the first cell of each row is its name
    numbers: Sequence[int] = ()  # places of the columns that hold numbers, which are aligned to the right
    # places of the columns that a narrow screen can do without, the most dispensable one first
    spare: Sequence[int] = ()

    @property
    def lines(self) -> list[Sequence[str]]:
        """The rows, below the head if there is one."""
        return [self.head, *self.rows] if self.head else list(self.rows)

    def without(self, place: int) -> Table:
        """Return the table without one of its columns."""

        def cut(row: Sequence[str]) -> tuple[str, ...]:
            return (*row[:place], *row[place + 1 :])

        def moved(places: Sequence[int]) -> tuple[int, ...]:
            return tuple(one - (one > place) for one in places if one != place)

        return Table([cut(row) for row in self.rows], cut(self.head), moved(self.numbers), moved(self.spare))

    def printable(self) -> Table:
        """Return the table as `printable` does a text."""
        rows = [[printable(cell) for cell in row] for row in self.rows]
        return Table(rows, [printable(name) for name in self.head], self.numbers, self.spare)

    def __str__(self) -> str:
        """Align the cells in columns, two spaces apart, as wide as they are."""
        widths = [max(map(len, column)) for column in zip(*self.lines, strict=True)]
        return "\n".join("  ".join(self._aligned(line, widths)).rstrip() for line in self.lines)

    def _aligned(self, line: Sequence[str], widths: Sequence[int]) -> list[str]:
        pairs = enumerate(zip(line, widths, strict=True))
        return [cell.rjust(width) if place in self.numbers else cell.ljust(width) for place, (cell, width) in pairs]


# what a person is shown: lines, a table, or several of them below each other
Shown = str | Table | Sequence[str | Table]


def parts(shown: Shown) -> list[str | Table]:
    """Return the texts and tables that something consists of; nothing in them steers a terminal."""
    found = [shown] if isinstance(shown, str | Table) else list(shown)
    return [part.printable() if isinstance(part, Table) else printable(part) for part in found]


def plain(shown: Shown) -> str:
    """Write it for a file or a pipe, whatever its width."""
    return "\n".join(map(str, parts(shown)))


def printable(text: str) -> str:
    r"""Show as text what would steer a terminal, or turn letters around: it comes from devices, packages and compilers.

    Line ends and tabs stay; all else that is no letter to be seen is written as in Python, as \x1b.
    """
    return "".join(one if one.isprintable() or one in "\n\t" else _escaped(one) for one in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode()
