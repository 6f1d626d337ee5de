"""Candidates timed by a model of their machine code."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from toolchain.backends.base.costs import CostModel, Estimate
from toolchain.errors import BuildError
from toolchain.tuning.measure.estimated import Estimated
from toolchain.tuning.measure.events import Observer
from toolchain.tuning.trials import Built


class Costed(Estimated):
    """Stands in for the builder and for the boards by what a compiler makes of kernels.

    Args:
        model: Estimates kernels.
        observe: Called for each trial, as boards do.
    """

    def __init__(self, model: CostModel, observe: Observer) -> None:
        super().__init__(f"{model.name}, {model.stamp}", observe)
        self._model = model

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
                "the compiler of the cost model did not answer for a candidate",
                details=f"{found.fault}; {self._model.stamp}",
                hint="run the same command to resume; if it fails at the same candidate, use another --op or --seed",
            )
        spills = f"{found.spills} values are spilled" if found.spills else ""
        if found.ms is None or found.fault or spills:
            cause = found.fault or spills or "no estimate: the lengths of its loops are not known"
            return Built(None, f"{cause}; {self._model.stamp}", 0.0)
        return self._taking(found.ms / 1e3)
