"""Progress that can be counted: a line that also says how far something is."""

from __future__ import annotations

from typing import Self

_MEGABYTE, _GIGABYTE = 1e6, 1e9
_MANY = 10 * _GIGABYTE
MEGABYTES = "MB"  # unit of a step that counts bytes


class Step(str):
    """A line about progress that also says how far something is; a terminal shows it as a bar.

    Args:
        text: What is done; the same at every step of it.
        done: How much of it is done.
        total: How much there is.
        unit: Of what; `MB` where bytes are counted.
    """

    done: float
    total: float
    unit: str

    def __new__(cls, text: str, done: float, total: float, unit: str) -> Self:
        made = super().__new__(cls, text)
        made.done, made.total, made.unit = done, total, unit
        return made

    @property
    def is_counted(self) -> bool:
        """Whether it can be said how far it is, and not only that it goes on."""
        return self.total > 0

    @property
    def amount(self) -> str:
        """How far it is, in words."""
        if self.unit == MEGABYTES:
            return f"{self.done / _MEGABYTE:.1f} of {self.total / _MEGABYTE:.1f} MB"
        return f"{self.done:g} of {self.total:g} {self.unit}"


def stage(text: str) -> Step:
    """Return a step that goes on until the next one begins, and that nobody can count."""
    return Step(text, 0, 0, "")


def size_text(size: float) -> str:
    """Write a number of bytes as a person reads it: in MB, or in GB from ten of them on."""
    if size >= _MANY:
        return f"{size / _GIGABYTE:.1f} GB"
    return f"{size / _MEGABYTE:.1f} MB" if size >= _MEGABYTE / 10 else f"{size / _MEGABYTE:.3f} MB"
