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

    def html(self) -> str:
        """Write it as HTML."""


def number(value: float | None) -> str:
    """Write a number with four digits, and no fewer before the point; a dash where there is none."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or abs(value) >= _WHOLE:
        return f"{value:.0f}"
    return f"{value:.3e}" if 0 < abs(value) < _TINY else f"{value:#.4g}".rstrip(".")


def percent(share: float | None) -> str:
    """Write a share with a digit after the point, and a second one below 1 %; a dash where there is none."""
    if share is None:
        return NOTHING
    return f"{share:.2%}" if abs(share) < _SMALL_SHARE else f"{share:.1%}"


def escaped(text: str) -> str:
    """Write a text that anybody may have said as HTML or SVG, in an attribute too."""
    return escape(printable(text))


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str  # what it says; line ends are kept
    tone: Tone = "plain"  # what that is to its reader

    def html(self) -> str:
        """Write it as HTML; an empty one is nothing."""
        return f"<p{_classes(self.tone)}>{escaped(self.text)}</p>" if self.text else ""


@dataclass(frozen=True)
class Notes:
    """A list of remarks, such as warnings; nothing where there are none."""

    texts: Sequence[str]  # the remarks
    tone: Tone = "doubt"  # what they are to their reader

    def html(self) -> str:
        """Write it as HTML."""
        items = "".join(f"<li>{escaped(text)}</li>" for text in self.texts)
        return f"<ul{_classes('notes', self.tone)}>{items}</ul>" if items else ""


@dataclass(frozen=True)
class Facts:
    """Names and what is said of each; those of which nothing is said are left out."""

    rows: Sequence[tuple[str, str]]  # a name and a text each

    def html(self) -> str:
        """Write it as HTML."""
        lines = [
            f'<tr><th scope="row">{escaped(name)}</th><td>{escaped(text)}</td></tr>' for name, text in self.rows if text
        ]
        return "\n".join(['<table class="facts"><tbody>', *lines, "</tbody></table>"]) if lines else ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is more than its text."""

    text: str  # what it says
    share: float | None = None  # from 0 to 1: the length of a bar beside the text; None if there is none
    tone: Tone = "plain"  # what it is to its reader


@dataclass(frozen=True)
class Table:
    """Rows below a head; the first cell of a row is its name.

    A narrow screen shows each row as a block, with the names of the columns beside the cells.
    """

    head: Sequence[str]  # names of the columns
    rows: Sequence[Sequence[str | Cell]]  # the rows, each as long as the head
    numbers: Sequence[int] = ()  # places of the columns that hold numbers
    name: str = "table"  # what the table shows, for those who do not see it; the section's title says it to the others

    def html(self) -> str:
        """Write it as HTML."""
        heads = [self._cell("th", *one, f'scope="col"{self._room(one[0])}') for one in enumerate(self.head)]
        lines = [f"<thead><tr>{''.join(heads)}</tr></thead>", "<tbody>", *map(self._row, self.rows), "</tbody>"]
        return wide("\n".join(["<table>", *lines, "</table>"]), self.name)

    def _room(self, place: int) -> str:
        """Return how wide a column of texts is at least: a table scrolls before words are cut to pieces."""
        if place in self.numbers:
            return ""
        texts = [cell.text if isinstance(cell, Cell) else cell for cell in (row[place] for row in self.rows)]
        letters = min(max(map(len, texts), default=0), _ROOM)
        return f' style="min-width: {letters + 2}ch"' if letters else ""

    def _row(self, row: Sequence[str | Cell]) -> str:
        first, *others = zip(self.head, row, strict=True)
        parts = [self._cell("th", 0, first[1], 'scope="row"')]
        for place, (name, cell) in enumerate(others, 1):
            parts.append(self._cell("td", place, cell, f'data-name="{escaped(name)}"' if name else ""))
        return f"<tr>{''.join(parts)}</tr>"

    def _cell(self, word: str, place: int, given: str | Cell, attribute: str) -> str:
        cell = Cell(given) if isinstance(given, str) else given
        classes = _classes("number" if place in self.numbers else "plain", cell.tone)
        text = escaped(cell.text)
        inner = text if cell.share is None else f'<span class="beside">{_bar(cell.share)}{text}</span>'
        return f"<{word}{classes}{' ' if attribute else ''}{attribute}>{inner}</{word}>"


def _bar(share: float) -> str:
    width = round(min(max(share, 0.0), 1.0) * 60, 1)
    return (
        '<svg class="share" viewBox="0 0 60 10" aria-hidden="true">'
        f'<rect class="track" width="60" height="10"/><rect class="part" width="{width:g}" height="10"/></svg>'
    )


def wide(inner: str, name: str) -> str:
    """Put what may be wider than the screen into a box that scrolls, and shows by its edges that it does."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escaped(name)}">{inner}</div>'


def _classes(*names: str) -> str:
    kept = " ".join(name for name in names if name != "plain")
    return f' class="{kept}"' if kept else ""
