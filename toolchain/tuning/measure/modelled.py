"""Candidates timed by a model of the machine that they run on."""

from __future__ import annotations

import json
from collections.abc import Sequence

import tvm

from toolchain.backends.base import CHOICE, MachineModel
from toolchain.errors import BuildError
from toolchain.records.tasks import layer_of
from toolchain.tuning.measure.estimated import Estimated
from toolchain.tuning.measure.events import Observer
from toolchain.tuning.trials import Built

_ENTRY = "main"


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
