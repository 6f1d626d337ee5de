"""A page of HTML that needs no other file, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

GENERATOR = '<meta name="generator" content="toolchain tune">'
"""In the first lines of each page: what tells it from other people's."""

_STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #0b0b0b; --soft: #52514e; --rule: #e1e0d9; --line: #2a78d6;
  --mark: #8a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --page: #1a1a19; --ink: #ffffff; --soft: #c3c2b7; --rule: #383835; --line: #3987e5; --mark: #fab219; }
}
body { background: var(--page); color: var(--ink); font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 74rem; overflow-wrap: anywhere; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.mark { border: 2px solid var(--mark); border-radius: 4px; color: var(--mark); font-size: 0.9rem; padding: 0 0.4rem; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid var(--rule); padding: 0.2rem 0.7rem 0.2rem 0; text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
thead th { vertical-align: bottom; }
th, [data-name="Operator"] { overflow-wrap: normal; }
.number { font-variant-numeric: tabular-nums; text-align: right; }
td.number { white-space: nowrap; }
svg { height: auto; max-width: 100%; width: 680px; }
svg text { fill: var(--soft); font: 10px system-ui, sans-serif; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); } .area { fill: transparent; }
.level { stroke: var(--mark); stroke-dasharray: 6 4; }
.line { fill: none; stroke: var(--line); stroke-linejoin: round; stroke-width: 2; }
.last { fill: var(--line); stroke: var(--page); stroke-width: 2; }
@media (max-width: 48rem) {
  svg text { font-size: 14px; }
  table, thead, tbody, tr, th, td { display: block; }
  thead { display: none; }
  tr { border-bottom: 1px solid var(--rule); padding: 0.5rem 0; }
  th, td { border: 0; padding: 0; }
  td.number { text-align: left; }
  td { overflow-wrap: anywhere; }
  td[data-name]::before { color: var(--soft); content: attr(data-name) ": "; }
}
"""


def page(title: str, body: Sequence[str]) -> str:
    """Write a page, in the light or the dark as its reader has it.

    Args:
        title: Its heading, as plain text.
        body: What follows, as HTML.
    """
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        GENERATOR,
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        *(part for part in body if part),
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None) -> str:
    """Write a table of plain texts.

    Args:
        head: Names of the columns; if there are none, the first cell of each row is its name.
        rows: The rows.
        numbers_from: The first of the columns that hold numbers.
    """
    lines = ["<thead>", _line(["th"] * len(head), head, [""] * len(head), numbers_from), "</thead>"] if head else []
    for row in rows:
        words = ["td" if head else "th"] + ["td"] * (len(row) - 1)
        lines.append(_line(words, row, ["", *head[1:]] if head else [""] * len(row), numbers_from))
    return "\n".join(["<table>", *lines, "</table>"])


def _line(words: Sequence[str], cells: Sequence[str], names: Sequence[str], numbers_from: int | None) -> str:
    """Write a row; its cells carry the names that a narrow screen shows beside them."""
    parts = []
    for place, (word, text, name) in enumerate(zip(words, cells, names, strict=True)):
        kind = ' class="number"' if numbers_from is not None and place >= numbers_from else ""
        label = f' data-name="{escape(name)}"' if name else ""
        parts.append(f"<{word}{kind}{label}>{escape(text)}</{word}>")
    return f"<tr>{''.join(parts)}</tr>"
