"""What stands in a section of a page: texts, facts and notes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

from toolchain.printable import printable

if TYPE_CHECKING:
    from toolchain.report.tables import Table

# what a text is to its reader: nothing special, well, wrong, or not to be relied on
Tone = Literal["plain", "good", "bad", "doubt"]

NOTHING = "-"
IMAGE = "data:image/png;base64,"
_WHOLE, _TINY, _SMALL_SHARE = 1000.0, 1e-4, 0.01


class Part(ABC):
    """Something that stands in a section."""

    @abstractmethod
    def html(self) -> str: ...

    def printed(self) -> Sequence[str | Table]:
        """Return it for a terminal, without control characters; a plot is not printed."""
        return ()


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
class Text(Part):
    """A paragraph; an empty one is left out."""

    text: str  # line ends are kept
    tone: Tone = "plain"

    def html(self) -> str:
        return f"<p{classes(self.tone)}>{escaped(self.text)}</p>" if self.text else ""

    def printed(self) -> Sequence[str]:
        return (printable(self.text),) if self.text else ()


@dataclass(frozen=True)
class Notes(Part):
    """A list of remarks, such as warnings; left out if it is empty."""

    texts: Sequence[str]
    tone: Tone = "doubt"

    def html(self) -> str:
        items = "".join(f"<li>{escaped(text)}</li>" for text in self.texts)
        return f"<ul{classes('notes', self.tone)}>{items}</ul>" if items else ""

    def printed(self) -> Sequence[str]:
        mark = "warning: " if self.tone == "doubt" else ""
        return tuple(printable(f"{mark}{text}") for text in self.texts)


def wide(inner: str, name: str) -> str:
    """Put what may be wider than the screen into a box that scrolls, whose edges show that it does."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escaped(name)}">{inner}</div>'


def classes(*names: str) -> str:
    """Return the attribute with these classes; `plain` is none."""
    text = " ".join(name for name in names if name != "plain")
    return f' class="{text}"' if text else ""


@dataclass(frozen=True)
class Picture:
    """A small picture with its caption."""

    png: bytes
    caption: str


@dataclass(frozen=True)
class Pictures(Part):
    """Small pictures side by side."""

    pictures: Sequence[Picture]

    def html(self) -> str:
        items = [
            f'<span class="picture"><img alt="" src="{IMAGE}{b64encode(picture.png).decode()}"/>'
            f"{escaped(picture.caption)}</span>"
            for picture in self.pictures
        ]
        return f'<p class="pictures">{"".join(items)}</p>' if items else ""
