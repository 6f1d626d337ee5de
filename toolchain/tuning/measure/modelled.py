"""Candidates timed by a model of their machine."""

from __future__ import annotations

import json
from collections.abc import Sequence

import tvm

from toolchain.backends.base import MachineModel
from toolchain.backends.base.attributes import CHOICE
from toolchain.errors import BuildError
from toolchain.records.tasks import layer_of
from toolchain.tuning.measure.estimated import Estimated
from toolchain.tuning.measure.events import Observer
from toolchain.tuning.trials import Built

_ENTRY = "main"


class Modelled(Estimated):
    """Stands in for the builder and for the boards by what a machine does.

    Args:
        model: Tells the cycles of a kernel.
        observe: Called for each trial, as boards do.
    """

    def __init__(self, model: MachineModel, observe: Observer) -> None:
        super().__init__(model.name, observe)
        self._model = model

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
        return self._taking(found.cycles / self._model.clock_mhz / 1e6)
