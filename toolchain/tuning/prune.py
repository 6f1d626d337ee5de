"""A model rules out candidates before they are built and measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolchain.backends.base.costs import CostModel, Estimate
from toolchain.records import traces
from toolchain.records.results import Cause
from toolchain.tuning.search import Candidate


@dataclass(frozen=True)
class Verdict:
    """Why a candidate is not measured: the cause and the error of its record."""

    cause: Cause
    error: str


@dataclass
class Pruner:
    """Rules out candidates that spill, and those that cost much more than the best of their kernel so far.

    The verdicts of a round depend only on the rounds before it, also in a resumed run: all candidates are estimated
    again, which the model's cache makes cheap. Neither the untuned kernel nor a candidate that the model cannot judge
    is ever ruled out.

    Attributes:
        model: Estimates candidates.
        most: How many times the cost of the best a candidate may cost.
    """

    model: CostModel
    most: float
    _best_ms: dict[str, float] = field(default_factory=dict)

    def verdicts(self, workload: str, candidates: Sequence[Candidate | None]) -> list[Verdict | None]:
        """Judge the candidates of a round.

        Args:
            workload: The kernel.
            candidates: Its candidates; None for one whose trace no longer fits.

        Returns:
            For each candidate, why it is not measured; None if it is.

        Raises:
            BuildError: The model's compiler does not work here.
        """
        present = [candidate for candidate in candidates if candidate is not None]
        estimates = self.model.estimates([candidate.module for candidate in present], spilling=False)
        times = [estimate.ms for estimate in estimates if estimate.ms is not None and not estimate.spills]
        best_ms = min([self._best_ms.get(workload, math.inf), *times])
        self._best_ms[workload] = best_ms
        # Estimates exist only for candidates that could be rebuilt.
        remaining = iter(estimates)
        return [
            None if candidate is None else self._verdict(candidate, next(remaining), best_ms)
            for candidate in candidates
        ]

    def _verdict(self, candidate: Candidate, estimate: Estimate, best_ms: float) -> Verdict | None:
        if estimate.fault or candidate.trace == traces.DEFAULT:
            return None
        if estimate.spills:
            return Verdict("spills", f"{estimate.spills} values are spilled; {self.model.stamp}")
        if estimate.ms is not None and estimate.ms > self.most * best_ms:
            return Verdict("costly", f"{estimate.ms / best_ms:.1f} times the best known; {self.model.stamp}")
        return None
