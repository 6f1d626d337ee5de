"""Whether 999 of 1,000 runs at the rate of an application are in time, judged by how many of them were not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from toolchain.device.rate import LONGEST_S, Rate
from toolchain.device.rate_report import Periodic, throttled
from toolchain.errors import InputError
from toolchain.stats import Verdict

TAIL = "p99.9"
CONFIDENCE = 0.99
_SHARE = 0.001  # of runs that may be above a p99.9
_USUAL_RUNS = 8500  # enough for a pass with two late runs

LEAST_RUNS = math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - _SHARE))
"""So many runs without a late one show that a p99.9 is within its limit; fewer show nothing."""


def rate_of(limit_s: float, period_s: float, for_s: float | None = None) -> Rate:
    """Return the rate at which a p99.9 is measured; without a length, for as long as it usually takes.

    Raises:
        InputError: That is too short for any verdict.
    """
    rate = Rate(period_s, min(for_s or period_s * _USUAL_RUNS, LONGEST_S), limit_s)
    runs, needed_s = int(rate.for_s / period_s), period_s * LEAST_RUNS
    if runs < LEAST_RUNS:
        raise InputError(
            f"{runs:,} runs are too few samples for p99.9: it needs {LEAST_RUNS:,} at {CONFIDENCE:.0%} confidence",
            details=f"{rate.for_s:g} s with a run each {period_s * 1e3:g} ms",
            hint=f"measure for {math.ceil(needed_s)}s or longer"
            if needed_s <= LONGEST_S
            else "p99.9 cannot be judged at this rate",
        )
    return rate


@dataclass(frozen=True)
class Tail:
    """Runs at a rate, of which those above the limit are late."""

    limit_ms: float
    period_ms: float
    runs: int  # with those that were due, but whose turn did not come
    late: int
    value_ms: float | None  # the p99.9 itself; None if there are too few runs
    throttled: tuple[str, ...] = ()  # signs that the device slowed down meanwhile

    @classmethod
    def of(cls, periodic: Periodic) -> Tail:
        rate = periodic.rate
        value = next(one.value for one in periodic.latency.quantiles() if math.isclose(one.percentile, 99.9))
        return cls(
            rate.deadline_s * 1e3,
            rate.period_s * 1e3,
            periodic.runs + periodic.not_started,
            periodic.missed,
            None if value is None else value / 1e6,
            throttled(periodic.before, periodic.after),
        )

    @property
    def verdict(self) -> Verdict:
        """By the exact binomial test, in both directions: it assumes that late runs come independently."""
        if self.runs < LEAST_RUNS and not self._is_above:
            return Verdict.INCONCLUSIVE
        if _at_most(self.late, self.runs) <= 1 - CONFIDENCE:
            return Verdict.PASS
        return Verdict.REGRESSION if self._is_above and not self.throttled else Verdict.INCONCLUSIVE

    @property
    def _is_above(self) -> bool:
        return self.late > 0 and 1 - _at_most(self.late - 1, self.runs) <= 1 - CONFIDENCE

    def sentence(self) -> str:
        verbs = {Verdict.PASS: "passes", Verdict.REGRESSION: "is a REGRESSION"}
        return f"{TAIL} {verbs.get(self.verdict, 'is inconclusive')}: {self.text()}"

    def text(self) -> str:
        measured = "" if self.value_ms is None else f"{self.value_ms:.4g} ms, "
        text = f"{measured}{self.late} of {self.runs:,} runs above {self.limit_ms:g} ms"
        if self.verdict is not Verdict.INCONCLUSIVE:
            return f"{text}, at {CONFIDENCE:.0%} confidence"
        if self.throttled:
            return f"{text}, and the device was throttled: {', '.join(self.throttled)}"
        if self.runs < LEAST_RUNS:
            return f"{text}: too few samples, at least {LEAST_RUNS:,} are needed"
        return f"{text}: too few samples to tell on which side of the limit it is"

    def document(self) -> dict[str, Any]:
        return {
            "verdict": str(self.verdict),
            "limit_ms": self.limit_ms,
            "period_ms": self.period_ms,
            "p999_ms": self.value_ms,
            "runs": self.runs,
            "late": self.late,
            "least_runs": LEAST_RUNS,
            "confidence": CONFIDENCE,
            "throttled": list(self.throttled),
        }


def _at_most(late: int, runs: int) -> float:
    """Return how likely so many late runs or fewer are if the limit is the p99.9 itself."""
    from scipy.special import bdtr  # noqa: PLC0415 - slow to import, and few commands need it

    return float(bdtr(late, runs, _SHARE))
