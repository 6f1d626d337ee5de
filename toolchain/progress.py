"""Lines about progress, some of which also state how much of a task is done; and the stages of a command."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

from toolchain import interrupts

_MEGABYTE, _GIGABYTE = 1e6, 1e9
_MIN_IN_GIGABYTES = 10 * _GIGABYTE
MEGABYTES = "MB"  # unit of a step that counts bytes

Progress = Callable[[str], None]  # called with a line, or with a `Step`, when a stage begins or advances

EVERY_S = 5.0  # seconds between two lines


class Step(str):
    """A line about progress that also states how much of a task is done; a terminal shows it as a bar.

    Args:
        text: The task; the same at every step of it.
        done: How much of it is done.
        total: The whole amount.
        unit: `MB` for bytes.
    """

    done: float
    total: float
    unit: str

    def __new__(cls, text: str, done: float, total: float, unit: str) -> Self:
        step = super().__new__(cls, text)
        step.done, step.total, step.unit = done, total, unit
        return step

    @property
    def is_counted(self) -> bool:
        """Whether its amount is known."""
        return self.total > 0

    @property
    def amount(self) -> str:
        """The amount as text."""
        if self.unit == MEGABYTES:
            return f"{self.done / _MEGABYTE:.1f} of {self.total / _MEGABYTE:.1f} MB"
        return f"{self.done:g} of {self.total:g} {self.unit}"


def stage(text: str) -> Step:
    """Return a step of unknown amount, which lasts until the next one."""
    return Step(text, 0, 0, "")


def size_text(size: float) -> str:
    """Write a number of bytes in MB, or in GB from ten of them on."""
    if size >= _MIN_IN_GIGABYTES:
        return f"{size / _GIGABYTE:.1f} GB"
    return f"{size / _MEGABYTE:.1f} MB" if size >= _MEGABYTE / 10 else f"{size / _MEGABYTE:.3f} MB"


@contextlib.contextmanager
def reminding(report: Callable[[str], None], subject: str) -> Iterator[None]:
    """Report every few seconds that `subject` is still being waited for, for the time of a block."""
    ended, began = threading.Event(), time.monotonic()

    def remind() -> None:
        while not ended.wait(EVERY_S):
            report(f"waiting for {subject}, {time.monotonic() - began:.0f} s so far")

    thread = threading.Thread(target=remind, daemon=True, name="reminder")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass
class Stages:
    """Wall-clock seconds by stage, in order, for the report; `tell` is called with lines about progress."""

    tell: Callable[[str], None] = lambda _line: None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of a block to a stage."""
        interrupts.check()  # no new stage begins after Ctrl-C
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
