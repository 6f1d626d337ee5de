"""Reports during a long wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 5.0  # seconds between two lines


@contextmanager
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
