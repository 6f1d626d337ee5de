"""Candidates whose times are computed instead of measured: nothing is linked, nothing runs, no board is needed."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import tvm

from toolchain.tuning.measure import turns
from toolchain.tuning.measure.events import Event, Observer
from toolchain.tuning.trials import Built, Measured, Trial


class Estimated(ABC):
    """Replaces the builder and the boards: `build` computes the time of a candidate, and `submit` returns it.

    Args:
        name: What results have as the board's name.
        observe: Called with the event of each trial.
    """

    def __init__(self, name: str, observe: Observer) -> None:
        self.name, self._observe = name, observe
        self._numbers = itertools.count()
        self._seconds: dict[Path, float] = {}

    @abstractmethod
    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Compute the times of scheduled modules, or why there are none."""

    def _built_in(self, seconds: float) -> Built:
        name = Path(f"modelled-{next(self._numbers)}")  # no file: the name only distinguishes candidates
        self._seconds[name] = seconds
        return Built(name, "", 0.0)

    def discard(self, built: Built) -> None:
        if built.library is not None:
            self._seconds.pop(built.library, None)

    def submit(self, trial: Trial) -> Future[Measured]:
        """Return the time of a candidate and of its rivals, which is the same in every turn."""
        future: Future[Measured] = Future()
        count = turns.TURNS if trial.rivals else 1
        libraries = (trial.library, *(rival.library for rival in trial.rivals))
        samples_s, *rivals_s = ((self._seconds[library],) * count for library in libraries)
        measured = Measured(samples_s, board=self.name, rivals_s=tuple(rivals_s))
        self._observe(Event("ended", self.name, trial=trial, measured=measured))
        future.set_result(measured)
        return future
