"""Processes that keep CPUs busy beside a measurement."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def kept(words: Sequence[str], count: int) -> Iterator[None]:
    """Keep so many processes of a command running."""
    started = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def loops(count: int) -> contextlib.AbstractContextManager[None]:
    """Keep so many CPUs busy."""
    return kept([sys.executable, "-c", "while True: pass"], count)
