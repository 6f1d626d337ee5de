"""Candidates timed by a model of their machine code: nothing is linked, nothing runs, and no board is needed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import tvm

from toolchain.backends.base.costs import CostModel, Estimate
from toolchain.errors import BuildError
from toolchain.tuning.measure.events import Event, Observer
from toolchain.tuning.trials import Built, Measured, Trial


class Costed:
    """Stands in for the builder and for the boards.

    Args:
        model: Estimates kernels.
        observe: Called for each trial, as boards do.
    """

    def __init__(self, model: CostModel, observe: Observer) -> None:
        self._model, self._observe = model, observe
        self._numbers = itertools.count()
        self._seconds: dict[Path, float] = {}

    @property
    def name(self) -> str:
        """What stands in the place of a board's name."""
        return f"{self._model.name}, {self._model.stamp}"

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Ask the model about kernels; one that it does not know, that spills or would not run, says why.

        The time of what spills is not asked for: to compile its loops again takes minutes, and nobody wants it.

        Raises:
            BuildError: The model's compiler did not answer: nothing is known of the candidate, and nothing is recorded.
        """
        return [self._built(one) for one in self._model.estimates(modules, spilling=False)]

    def _built(self, found: Estimate) -> Built:
        if not found.answered:
            raise BuildError(
                "the model's compiler did not answer when it was asked about a candidate",
                details=f"{found.fault}; {self._model.stamp}",
                hint="the same command goes on from there; if it ends there again, --op or --seed lead around it",
            )
        spills = f"{found.spills} values are spilled" if found.spills else ""
        if found.ms is None or found.fault or spills:
            cause = found.fault or spills or "no estimate: its loops have no known ends"
            return Built(None, f"{cause}; {self._model.stamp}", 0.0)
        name = Path(f"modelled-{next(self._numbers)}")  # no file: it only tells trials apart
        self._seconds[name] = found.ms / 1e3
        return Built(name, "", 0.0)

    def discard(self, built: Built) -> None:
        """Forget a candidate."""
        if built.library is not None:
            self._seconds.pop(built.library, None)

    def submit(self, trial: Trial) -> Future[Measured]:
        """Return what the model said."""
        future: Future[Measured] = Future()
        measured = Measured((self._seconds[trial.library],), board=self.name)
        self._observe(Event("ended", self.name, trial=trial, measured=measured))
        future.set_result(measured)
        return future
