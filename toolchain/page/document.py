"""A page of HTML that needs no other file: its head, its verdict, and its sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.page.parts import Part, Tone, escaped
from toolchain.page.style import STYLE

_GENERATOR = '<meta name="generator" content="toolchain '
HEAD = 1024  # in so many bytes of a page its generator is named
# Nothing is fetched, nothing runs, and no form goes anywhere, whatever a name on the page tries.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Mark:
    """A stamp under the title, such as `emulated`."""

    text: str  # a word or two
    tone: Tone = "doubt"  # what it is to its reader


EMULATED = Mark("emulated")
MODELLED = Mark("modelled")
INCONCLUSIVE = Mark("inconclusive")


@dataclass(frozen=True)
class Verdict:
    """What a page says in one sentence, above all else."""

    text: str  # the sentence; line ends are kept
    tone: Tone = "plain"  # what it is to its reader


@dataclass(frozen=True)
class Section:
    """A part of a page under a title of its own."""

    title: str  # the title
    parts: Sequence[Part]  # what stands in it; if that is nothing at all, there is no section

    def html(self) -> str:
        """Write it as HTML."""
        inner = [text for text in (part.html() for part in self.parts) if text]
        return "\n".join([_SECTION, f"<h2>{escaped(self.title)}</h2>", *inner, "</section>"]) if inner else ""


_SECTION = "<section>"


def _paired(sections: Sequence[str]) -> list[str]:
    """Let two sections in a row that have neither a plot nor a wide table share the width of a desk."""
    found = list(sections)
    small = ["<figure>" not in text and 'class="wide"' not in text for text in found]
    place = 0
    while place + 1 < len(found):
        if small[place] and small[place + 1]:
            for one in (place, place + 1):
                found[one] = found[one].replace(_SECTION, '<section class="half">', 1)
            place += 1
        place += 1
    return found


@dataclass(frozen=True)
class Page:
    """A page: the verdict first, then its sections."""

    title: str  # its heading
    command: str  # the command that made it, such as `tune`
    verdict: Verdict | None  # what it says in one sentence; None if nothing
    sections: Sequence[Section]  # its sections: numbers, plots, conditions and warnings, provenance, in this order
    marks: Sequence[Mark] = ()  # what it is stamped with

    def html(self) -> str:
        """Write the page, in the light or the dark as its reader has it."""
        lines = [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'{_GENERATOR}{escaped(self.command)}">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escaped(self.title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{escaped(self.title)}</h1>",
            *self._marks(),
            *self._verdict(),
            *_paired([text for text in (section.html() for section in self.sections) if text]),
            "</main>",
            "</body>",
            "</html>",
        ]
        return "\n".join(lines) + "\n"

    def _marks(self) -> list[str]:
        marks = [f'<span class="mark {mark.tone}">{escaped(mark.text)}</span>' for mark in self.marks]
        return [f'<p class="marks">{" ".join(marks)}</p>'] if marks else []

    def _verdict(self) -> list[str]:
        if self.verdict is None:
            return []
        return [f'<p class="verdict {self.verdict.tone}">{escaped(self.verdict.text)}</p>']


def is_ours(head: bytes) -> bool:
    """Say whether a file is a page of this toolchain, by its first `HEAD` bytes."""
    return _GENERATOR.encode() in head
