"""The stages of a command: its progress, and the duration of each stage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from toolchain import interrupts


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
