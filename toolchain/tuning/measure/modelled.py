"""Candidates timed by a model of their machine: nothing is linked, nothing runs, and no board is needed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import tvm

from toolchain.backends.base import MachineModel
from toolchain.backends.base.attributes import CHOICE
from toolchain.errors import BuildError
from toolchain.records.tasks import layer_of
from toolchain.tuning.measure.events import Event, Observer
from toolchain.tuning.trials import Built, Measured, Trial

_ENTRY = "main"


class Modelled:
    """Stands in for the builder and for the boards.

    Args:
        model: Tells the cycles of a kernel.
        observe: Called for each trial, as boards do.
    """

    def __init__(self, model: MachineModel, observe: Observer) -> None:
        self._model, self._observe = model, observe
        self._numbers = itertools.count()
        self._seconds: dict[Path, float] = {}

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Ask the model about kernels of templates; a kernel that cannot be made says why."""
        return [self._built(module[_ENTRY]) for module in modules]

    def _built(self, function: tvm.tirx.PrimFunc) -> Built:
        try:
            found = self._model.cycles(layer_of(function), json.loads(str(function.attrs[CHOICE])))
        except BuildError as fault:
            return Built(None, fault.message, 0.0)
        if found is None:
            return Built(None, f"the model {self._model.name} knows nothing of this kernel", 0.0)
        name = Path(f"modelled-{next(self._numbers)}")  # no file: it only tells trials apart
        self._seconds[name] = found.cycles / self._model.clock_mhz / 1e6
        return Built(name, "", 0.0)

    def discard(self, built: Built) -> None:
        """Forget a candidate."""
        if built.library is not None:
            self._seconds.pop(built.library, None)

    def submit(self, trial: Trial) -> Future[Measured]:
        """Return what the model said."""
        future: Future[Measured] = Future()
        measured = Measured((self._seconds[trial.library],), board=self._model.name)
        self._observe(Event("ended", self._model.name, trial=trial, measured=measured))
        future.set_result(measured)
        return future
