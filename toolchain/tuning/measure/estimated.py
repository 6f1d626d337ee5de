"""Candidates whose times are computed instead of measured: nothing is linked, nothing runs, no board is needed."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import tvm

from toolchain.backends.base import CHOICE, CostModel, Estimate, MachineModel
from toolchain.errors import BuildError
from toolchain.records.tasks import layer_of
from toolchain.tuning.measure import turns
from toolchain.tuning.measure.health import Event, Observer
from toolchain.tuning.trials import Built, Measured, Trial

_ENTRY = "main"


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


class Costed(Estimated):
    """Replaces the builder and the boards by estimates from compiled kernels."""

    def __init__(self, model: CostModel, observe: Observer) -> None:
        super().__init__(f"{model.name}, {model.stamp}", observe)
        self._model = model

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Estimate kernels; those that the model does not know, that spill or that would not run are failures.

        Kernels that spill are not timed: to compile their loops again takes minutes, and no candidate that spills wins.

        Raises:
            BuildError: The model's compiler did not answer, so nothing can be recorded for the candidate.
        """
        return [self._to_built(estimate) for estimate in self._model.estimates(modules, spilling=False)]

    def _to_built(self, estimate: Estimate) -> Built:
        if not estimate.answered:
            raise BuildError(
                "the compiler of the cost model did not answer for a candidate",
                details=f"{estimate.fault}; {self._model.stamp}",
                hint="run the same command to resume; if it fails at the same candidate, use another --op or --seed",
            )
        spills = f"{estimate.spills} values are spilled" if estimate.spills else ""
        if estimate.ms is None or estimate.fault or spills:
            cause = estimate.fault or spills or "no estimate: the lengths of its loops are not known"
            return Built(None, f"{cause}; {self._model.stamp}", 0.0)
        return self._built_in(estimate.ms / 1e3)


class Modelled(Estimated):
    """Replaces the builder and the boards by the cycles that a model of the machine counts."""

    def __init__(self, model: MachineModel, observe: Observer) -> None:
        super().__init__(model.name, observe)
        self._model = model

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Count the cycles of kernels of templates; a kernel that cannot be built is a failure."""
        results = []
        for function in (module[_ENTRY] for module in modules):
            try:
                estimate = self._model.cycles(layer_of(function), json.loads(str(function.attrs[CHOICE])))
            except BuildError as fault:
                results.append(Built(None, fault.message, 0.0))
                continue
            if estimate is None:
                results.append(Built(None, f"the model {self._model.name} knows nothing of this kernel", 0.0))
            else:
                results.append(self._built_in(estimate.cycles / self._model.clock_mhz / 1e6))
        return results
