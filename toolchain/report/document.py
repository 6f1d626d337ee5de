"""A page: its verdict and its sections, as HTML that needs no other file, and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.report.parts import IMAGE, Part, Tone, escaped
from toolchain.report.style import STYLE
from toolchain.report.tables import Table

_GENERATOR = '<meta name="generator" content="toolchain '
HEAD = 1024  # in so many bytes of a page its generator is named
# Nothing is fetched, nothing runs, and no form goes anywhere, whatever a name on the page tries.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Mark:
    """A stamp under the title, such as `emulated`."""

    text: str  # a word or two
    tone: Tone = "doubt"


EMULATED = Mark("emulated")
MODELLED = Mark("modelled")
INCONCLUSIVE = Mark("inconclusive")


@dataclass(frozen=True)
class Headline:
    """The one sentence at the top of a page."""

    text: str  # line ends are kept
    tone: Tone = "plain"


@dataclass(frozen=True)
class Section:
    """A part of a page under a title of its own."""

    title: str
    parts: Sequence[Part]  # if all of them are empty, the section is left out
    on_terminal: bool = False  # whether a terminal shows it too

    def html(self) -> str:
        inner = [text for text in (part.html() for part in self.parts) if text]
        return "\n".join([_SECTION, f"<h2>{escaped(self.title)}</h2>", *inner, "</section>"]) if inner else ""


_SECTION = "<section>"


def _paired(sections: Sequence[str]) -> list[str]:
    """Put two consecutive sections that have neither a plot nor a wide table side by side, where the screen is wide."""
    pages = list(sections)
    small = ["<figure>" not in text and 'class="wide"' not in text for text in pages]
    index = 0
    while index + 1 < len(pages):
        if small[index] and small[index + 1]:
            for half in (index, index + 1):
                pages[half] = pages[half].replace(_SECTION, '<section class="half">', 1)
            index += 1
        index += 1
    return pages


@dataclass(frozen=True)
class Page:
    """A page: the verdict first, then its sections."""

    title: str
    command: str  # the command that made it, such as `tune`
    verdict: Headline | None
    sections: Sequence[Section]  # numbers, plots, conditions and warnings, provenance, in this order
    marks: Sequence[Mark] = ()

    def html(self) -> str:
        verdict = self.verdict
        marks = [f'<span class="mark {mark.tone}">{escaped(mark.text)}</span>' for mark in self.marks]
        sections = _paired([text for text in (section.html() for section in self.sections) if text])
        policy = f"{_POLICY}; img-src data:" if any(f'src="{IMAGE}' in text for text in sections) else _POLICY
        lines = [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'{_GENERATOR}{escaped(self.command)}">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escaped(self.title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{escaped(self.title)}</h1>",
            *([f'<p class="marks">{" ".join(marks)}</p>'] if marks else []),
            *([f'<p class="verdict {verdict.tone}">{escaped(verdict.text)}</p>'] if verdict else []),
            *sections,
            "</main>",
            "</body>",
            "</html>",
        ]
        return "\n".join(lines) + "\n"

    def printed(self) -> list[str | Table]:
        """Return what a terminal shows of it: some of its sections, with empty lines between them."""
        printed: list[str | Table] = []
        for section in self.sections:
            pieces = [piece for part in section.parts for piece in part.printed()] if section.on_terminal else []
            printed += ["", *pieces] if printed and pieces else pieces
        return printed


def is_ours(head: bytes) -> bool:
    """Whether a file is a page of this toolchain, by its first `HEAD` bytes."""
    return _GENERATOR.encode() in head
