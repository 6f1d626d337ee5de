"""Tables and facts, as text and as HTML, and the output of a command, which consists of them and of lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolchain.printable import printable
from toolchain.report.parts import Part, Tone, classes, escaped, wide

_CAPITALS = re.compile("[A-Z]{2}")
_ROOM = 20  # letters of the longest texts in a column that stand in a line at least


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is more than its text."""

    text: str
    share: float | None = None  # from 0 to 1: the length of a bar beside the text; None for no bar
    tone: Tone = "plain"
    brief: str = ""  # what a terminal shows instead

    def __str__(self) -> str:
        return self.brief or self.text


@dataclass(frozen=True)
class Table(Part):
    """Rows below a head; the first cell of a row is its name.

    As text, columns are aligned, two spaces apart. On a page, a narrow screen shows each row as a block, with the names
    of the columns beside the cells.
    """

    rows: Sequence[Sequence[str | Cell]]  # each as long as the head
    head: Sequence[str] = ()  # in capital letters as text; empty if the first cell of each row is its name
    numbers: Sequence[int] = ()  # indices of the columns of numbers, which are aligned to the right
    spare: Sequence[int] = ()  # indices of the columns that a narrow terminal can omit, the first one first
    details: Sequence[int] = ()  # indices of the columns that only a page has
    name: str = "table"  # for screen readers; others read the section's title

    @property
    def lines(self) -> list[list[str]]:
        head = [list(map(_capitals, self.head))] if self.head else []
        return head + [list(map(str, row)) for row in self.rows]

    def without(self, column: int) -> Table:
        def moved(columns: Sequence[int]) -> tuple[int, ...]:
            return tuple(index - (index > column) for index in columns if index != column)

        rows = [(*row[:column], *row[column + 1 :]) for row in self.rows]
        head = (*self.head[:column], *self.head[column + 1 :])
        return Table(rows, head, moved(self.numbers), moved(self.spare), moved(self.details), self.name)

    def printed(self) -> Sequence[Table]:
        table = self
        while table.details:
            table = table.without(table.details[0])
        rows = [[printable(str(cell)) for cell in row] for row in table.rows]
        return (replace(table, rows=rows, head=[printable(_capitals(name)) for name in table.head]),)

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.lines, strict=True)]

        def align(cell: str, column: int) -> str:
            return cell.rjust(widths[column]) if column in self.numbers else cell.ljust(widths[column])

        return "\n".join(
            "  ".join(align(cell, column) for column, cell in enumerate(line)).rstrip() for line in self.lines
        )

    def html(self) -> str:
        heads = [self._cell("th", *column, f'scope="col"{self._room(column[0])}') for column in enumerate(self.head)]
        lines = [f"<thead><tr>{''.join(heads)}</tr></thead>", "<tbody>", *map(self._row, self.rows), "</tbody>"]
        return wide("\n".join(["<table>", *lines, "</table>"]), self.name)

    def _room(self, column: int) -> str:
        """Return a minimum width for a column of texts: a table scrolls before words are cut to pieces."""
        if column in self.numbers:
            return ""
        texts = [cell.text if isinstance(cell, Cell) else cell for cell in (row[column] for row in self.rows)]
        letters = min(max(map(len, texts), default=0), _ROOM)
        return f' style="min-width: {letters + 2}ch"' if letters else ""

    def _row(self, row: Sequence[str | Cell]) -> str:
        first, *others = zip(self.head, row, strict=True)
        cells = [self._cell("th", 0, first[1], 'scope="row"')]
        for column, (name, cell) in enumerate(others, 1):
            cells.append(self._cell("td", column, cell, f'data-name="{escaped(name)}"' if name else ""))
        return f"<tr>{''.join(cells)}</tr>"

    def _cell(self, tag: str, column: int, content: str | Cell, attribute: str) -> str:
        cell = Cell(content) if isinstance(content, str) else content
        kinds = classes("number" if column in self.numbers else "plain", cell.tone)
        text = escaped(cell.text)
        inner = text if cell.share is None else f'<span class="beside">{_bar(cell.share)}{text}</span>'
        return f"<{tag}{kinds}{' ' if attribute else ''}{attribute}>{inner}</{tag}>"


def _capitals(name: str) -> str:
    return name if _CAPITALS.search(name) else name.upper()  # GB/s keeps its letters


def _bar(share: float) -> str:
    width = round(min(max(share, 0.0), 1.0) * 60, 1)
    return (
        '<svg class="share" viewBox="0 0 60 10" aria-hidden="true">'
        f'<rect class="track" width="60" height="10"/><rect class="part" width="{width:g}" height="10"/></svg>'
    )


@dataclass(frozen=True)
class Facts(Part):
    """Names, each with a text; a row without a text is left out."""

    rows: Sequence[tuple[str, str]]

    def html(self) -> str:
        lines = [
            f'<tr><th scope="row">{escaped(name)}</th><td>{escaped(text)}</td></tr>' for name, text in self.rows if text
        ]
        return "\n".join(['<table class="facts"><tbody>', *lines, "</tbody></table>"]) if lines else ""

    def printed(self) -> Sequence[Table]:
        rows = [row for row in self.rows if row[1]]
        return Table(rows).printed() if rows else ()


# the output of a command: lines, a table, or several of them below each other
Shown = str | Part | Sequence[str | Part]


def parts(output: Shown) -> list[str | Table]:
    """Return the texts and tables of an output, without control characters."""
    items = [output] if isinstance(output, str | Part) else output
    return [piece for item in items for piece in ([printable(item)] if isinstance(item, str) else item.printed())]


def plain(output: Shown) -> str:
    """Return an output as text for a file or a pipe."""
    return "\n".join(map(str, parts(output)))
