"""Candidates timed by a cost model of their machine code."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from toolchain.backends.base import CostModel, Estimate
from toolchain.errors import BuildError
from toolchain.tuning.measure.estimated import Estimated
from toolchain.tuning.measure.events import Observer
from toolchain.tuning.trials import Built


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
