"""The rate that a model is to run at. Nothing slow is imported: the command line needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LOADS = ("cpu", "memory", "io")
LEAST_PERIOD_S, LONGEST_PERIOD_S, LONGEST_S = 100e-6, 60.0, 86400.0
"""Limits of runtime/runner/options.cc."""

Load = Literal["cpu", "memory", "io"]


@dataclass(frozen=True)
class Rate:
    """How often to run a model, and beside what.

    Attributes:
        period_s: Seconds between two runs.
        for_s: Seconds of all runs.
        deadline_s: Longest latency in seconds that is in time.
        load: Other work on the device meanwhile; None for none.
        fifo: Whether the model has a real-time priority.
        mlock: Whether its memory is locked.
    """

    period_s: float
    for_s: float
    deadline_s: float
    load: Load | None = None
    fifo: bool = False
    mlock: bool = False

    @property
    def arguments(self) -> list[str]:
        """Options of the runner."""
        times = (("--period-us", self.period_s * 1e6), ("--deadline-us", self.deadline_s * 1e6))
        arguments = [text for name, value in times for text in (name, str(round(value)))]
        arguments += ["--for-ms", str(round(self.for_s * 1e3)), "--attended"]
        arguments += ["--load", self.load] if self.load else []
        return [*arguments, *(["--fifo"] if self.fifo else []), *(["--mlock"] if self.mlock else [])]
