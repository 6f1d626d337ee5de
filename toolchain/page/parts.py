"""What stands in a section of a page beside plots: texts, facts, notes and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, Protocol

from toolchain.tables import printable

# what a text is to its reader: nothing special, well, wrong, or not to be relied on
Tone = Literal["plain", "good", "bad", "doubt"]

NOTHING = "-"
_ROOM = 20  # letters of the longest texts in a column that stand in a line at least
_WHOLE, _TINY, _SMALL_SHARE = 1000.0, 1e-4, 0.01


class Part(Protocol):
    """Something that stands in a section."""

    def html(self) -> str: ...


def number(value: float | None) -> str:
    """Write a number with four digits, and no fewer before the point; a dash for None."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or abs(value) >= _WHOLE:
        return f"{value:.0f}"
    return f"{value:.3e}" if 0 < abs(value) < _TINY else f"{value:#.4g}".rstrip(".")


def percent(share: float | None) -> str:
    """Write a share with a digit after the point, and a second one below 1 %; a dash for None."""
    if share is None:
        return NOTHING
    return f"{share:.2%}" if abs(share) < _SMALL_SHARE else f"{share:.1%}"


def escaped(text: str) -> str:
    """Escape untrusted text for HTML or SVG, also for an attribute."""
    return escape(printable(text))


@dataclass(frozen=True)
class Text:
    """A paragraph; an empty one is left out."""

    text: str  # line ends are kept
    tone: Tone = "plain"

    def html(self) -> str:
        return f"<p{_classes(self.tone)}>{escaped(self.text)}</p>" if self.text else ""


@dataclass(frozen=True)
class Notes:
    """A list of remarks, such as warnings; left out if it is empty."""

    texts: Sequence[str]
    tone: Tone = "doubt"

    def html(self) -> str:
        items = "".join(f"<li>{escaped(text)}</li>" for text in self.texts)
        return f"<ul{_classes('notes', self.tone)}>{items}</ul>" if items else ""


@dataclass(frozen=True)
class Facts:
    """Names, each with a text; a row without a text is left out."""

    rows: Sequence[tuple[str, str]]

    def html(self) -> str:
        lines = [
            f'<tr><th scope="row">{escaped(name)}</th><td>{escaped(text)}</td></tr>' for name, text in self.rows if text
        ]
        return "\n".join(['<table class="facts"><tbody>', *lines, "</tbody></table>"]) if lines else ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is more than its text."""

    text: str
    share: float | None = None  # from 0 to 1: the length of a bar beside the text; None for no bar
    tone: Tone = "plain"


@dataclass(frozen=True)
class Table:
    """Rows below a head; the first cell of a row is its name.

    A narrow screen shows each row as a block, with the names of the columns beside the cells.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]  # each as long as the head
    numbers: Sequence[int] = ()  # places of the columns that hold numbers
    name: str = "table"  # for screen readers; others read the section's title

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
        classes = _classes("number" if column in self.numbers else "plain", cell.tone)
        text = escaped(cell.text)
        inner = text if cell.share is None else f'<span class="beside">{_bar(cell.share)}{text}</span>'
        return f"<{tag}{classes}{' ' if attribute else ''}{attribute}>{inner}</{tag}>"


def _bar(share: float) -> str:
    width = round(min(max(share, 0.0), 1.0) * 60, 1)
    return (
        '<svg class="share" viewBox="0 0 60 10" aria-hidden="true">'
        f'<rect class="track" width="60" height="10"/><rect class="part" width="{width:g}" height="10"/></svg>'
    )


def wide(inner: str, name: str) -> str:
    """Put what may be wider than the screen into a box that scrolls, whose edges show that it does."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escaped(name)}">{inner}</div>'


def _classes(*names: str) -> str:
    classes = " ".join(name for name in names if name != "plain")
    return f' class="{classes}"' if classes else ""
