"""Candidates that a model rules out before a board is asked about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolchain.backends.base.costs import CostModel, Estimate
from toolchain.records import traces
from toolchain.records.results import Cause
from toolchain.tuning.template_search import Candidate


@dataclass(frozen=True)
class Verdict:
    """Why a candidate is not sent to a board: the cause that its record has, and the model's words."""

    cause: Cause
    error: str


@dataclass
class Pruner:
    """Rules out candidates that spill, and those that cost much more than the best known of their kernel.

    What a round rules out follows from the rounds before it alone, whether or not their results were recorded in an
    earlier part of the run: all candidates are estimated again, which the model's cache makes cheap. What a kernel is
    untuned is never ruled out, and neither is a candidate that the model cannot judge.

    Attributes:
        model: Estimates candidates.
        most: How many times as much as the best known a candidate may cost.
    """

    model: CostModel
    most: float
    _best_ms: dict[str, float] = field(default_factory=dict)

    def verdicts(self, workload: str, candidates: Sequence[Candidate | None]) -> list[Verdict | None]:
        """Judge the candidates of a round.

        Args:
            workload: The kernel that they are of.
            candidates: They; None for one that does not exist any more.

        Returns:
            For each, in order, why it is not measured; None if it is.

        Raises:
            BuildError: The model's compiler does not work here.
        """
        known = [one for one in candidates if one is not None]
        found = iter(self.model.estimates([one.module for one in known], spilling=False))
        estimates = [None if one is None else next(found) for one in candidates]
        times = [one.ms for one in estimates if one is not None and one.ms is not None and not one.spills]
        best = min([self._best_ms.get(workload, math.inf), *times])
        self._best_ms[workload] = best
        return [
            None if one is None or found is None or one.trace == traces.DEFAULT else self._verdict(found, best)
            for one, found in zip(candidates, estimates, strict=True)
        ]

    def _verdict(self, found: Estimate, best_ms: float) -> Verdict | None:
        if found.fault:
            return None
        if found.spills:
            return Verdict("spills", f"{found.spills} values are spilled; {self.model.stamp}")
        if found.ms is not None and found.ms > self.most * best_ms:
            return Verdict("costly", f"{found.ms / best_ms:.1f} times the best known; {self.model.stamp}")
        return None
