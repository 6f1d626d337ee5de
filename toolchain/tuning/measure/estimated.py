"""Candidates whose times somebody works out: nothing is linked, nothing runs, and no board is needed."""

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
    """Stands in for the builder and for the boards: what a candidate takes is known as soon as it is built.

    Args:
        name: What stands in the place of a board's name.
        observe: Called for each trial, as boards do.
    """

    def __init__(self, name: str, observe: Observer) -> None:
        self.name, self._observe = name, observe
        self._numbers = itertools.count()
        self._seconds: dict[Path, float] = {}

    @abstractmethod
    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Work out what scheduled modules take, or say why nobody can."""

    def _taking(self, seconds: float) -> Built:
        """Return a candidate that takes so long."""
        name = Path(f"modelled-{next(self._numbers)}")  # no file: it only tells trials apart
        self._seconds[name] = seconds
        return Built(name, "", 0.0)

    def discard(self, built: Built) -> None:
        """Forget a candidate."""
        if built.library is not None:
            self._seconds.pop(built.library, None)

    def submit(self, trial: Trial) -> Future[Measured]:
        """Return what it takes, and what its rivals take: the same in every turn."""
        future: Future[Measured] = Future()
        times = turns.TURNS if trial.rivals else 1
        libraries = (trial.library, *(one.library for one in trial.rivals))
        mine, *theirs = ((self._seconds[one],) * times for one in libraries)
        measured = Measured(mine, board=self.name, rivals_s=tuple(theirs))
        self._observe(Event("ended", self.name, trial=trial, measured=measured))
        future.set_result(measured)
        return future
