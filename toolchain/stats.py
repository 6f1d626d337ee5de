"""Statistics of two things measured alternately: rounds in pairs, an exact interval, and a sequential rule.

A *round* is one process of each side, one right after the other; the order alternates. Samples within a process agree
with each other and say little about the next process, so the unit is the round: the logarithm of the ratio of its two
medians. The logarithm makes a slow-down and a speed-up by the same factor equally large. A drift that affects both
sides cancels in the ratio. The only assumption about the noise is that it affects both sides with the same probability.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.errors import InputError

_TICK = 1.0  # ns; with a clock too coarse for a fast model the median is 0, which has no ratio
# What makes a mode: values, share of all values, and distance in standard deviations.
_LEAST_OF_MODE, _SHARE_OF_MODE, _APART = 3, 0.15, 6.0


def log_ratio(new_ns: Sequence[float], base_ns: Sequence[float]) -> float:
    """Return the logarithm of the ratio of the medians of one round's samples, in ns.

    Raises:
        ValueError: A side has no samples, or one is not a duration.
    """
    return math.log(max(_median(new_ns), _TICK) / max(_median(base_ns), _TICK))


def _median(samples: Sequence[float]) -> float:
    value = float(np.median(np.asarray(samples, dtype=np.float64))) if len(samples) else math.nan
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{len(samples)} samples have no median that is a duration")
    return value


def log_ratios(new_ns: Sequence[Sequence[float]], base_ns: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the logarithm of each round's ratio; samples are in ns, one sequence for each round."""
    return tuple(log_ratio(new, base) for new, base in zip(new_ns, base_ns, strict=True))


@dataclass(frozen=True)
class Estimate:
    """A Hodges-Lehmann estimate of the location of paired differences, with its interval, in their unit."""

    value: float
    low: float  # lower end of the interval; minus infinity if there are too few differences for the confidence
    high: float
    confidence: float  # the least probability that the interval contains the true value
    rounds: int  # number of differences

    def change(self) -> Estimate:
        """Return an estimate of log ratios as one of relative changes: 0.05 is 5 % more, -0.5 is half."""
        low, high = (math.expm1(end) for end in (self.low, self.high))
        return Estimate(math.expm1(self.value), low, high, self.confidence, self.rounds)


def estimate(differences: Sequence[float], confidence: float = 0.99) -> Estimate:
    """Estimate the location of paired differences (Hodges and Lehmann, 1963), with Wilcoxon's signed-rank interval.

    The value is the median of the Walsh averages: the means of all pairs of differences, each with itself included. The
    ends of the interval are those averages that the exact distribution of the signed-rank statistic cuts off. Both
    belong to the interval, so that ties and zeros, which coarse clocks produce, widen it and do not invalidate it.

    Raises:
        ValueError: There are no differences, one is not finite, or the confidence is out of range.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not values.size or not np.isfinite(values).all() or not 0 < confidence < 1:
        raise ValueError(f"{values.size} differences, confidence {confidence}: not all of that is finite and in range")
    first, second = np.triu_indices(values.size)
    averages = np.sort((values[first] + values[second]) / 2)
    middle, cut = float(np.median(averages)), signed_rank_cut(values.size, confidence)
    low, high = (float(averages[cut - 1]), float(averages[-cut])) if cut else (-math.inf, math.inf)
    return Estimate(middle, low, high, confidence, int(values.size))


def signed_rank_cut(count: int, confidence: float) -> int:
    """Return how many Walsh averages of `count` differences lie outside an interval at each side, its end included.

    It is the largest k for which a signed-rank statistic of k - 1 or less has at most half of the remaining
    probability; 0 if even the statistic's smallest value has more, as with fewer than 8 differences at 99 %.
    """
    tail = np.cumsum(_signed_rank(count))
    return int(np.searchsorted(tail, (1 - confidence) / 2 * (1 + 1e-12), side="right"))


@functools.cache
def _signed_rank(count: int) -> NDArray[np.float64]:
    """Return the exact distribution of the signed-rank statistic: the sum of a random subset of 1 to count."""
    chances = np.ones(1)
    for rank in range(1, count + 1):
        grown = np.zeros(chances.size + rank)
        grown[: chances.size] += chances / 2
        grown[rank:] += chances / 2
        chances = grown
    return chances


@dataclass(frozen=True)
class Ratio:
    """How many times as fast a second thing is as a first."""

    value: float  # 2 is twice as fast
    ci95: tuple[float, float] | None  # its 95 % interval; None with fewer than 6 rounds
    rounds: tuple[float, ...]  # the ratio in each round, in order
    ci99: tuple[float, float] | None = None  # its 99 % interval; None with fewer than 8 rounds

    @property
    def verdict(self) -> str:
        """`faster` or `slower` if the second surely is, by the wider interval; else empty."""
        low, high = self.ci99 or (0.0, math.inf)
        return "faster" if low > 1 else "slower" if high < 1 else ""


def ratio(first_ns: Sequence[Sequence[float]], second_ns: Sequence[Sequence[float]]) -> Ratio:
    """Return how many times as fast the second of two things is, from a fixed number of rounds of samples in ns."""
    logs = log_ratios(first_ns, second_ns)
    narrow, wide = (estimate(logs, confidence) for confidence in (0.95, 0.99))
    return Ratio(math.exp(narrow.value), _ends(narrow), tuple(map(math.exp, logs)), _ends(wide))


def _ends(log_estimate: Estimate) -> tuple[float, float] | None:
    """Return the ends of an interval of log ratios, as ratios; None if there are too few rounds."""
    return (math.exp(log_estimate.low), math.exp(log_estimate.high)) if math.isfinite(log_estimate.low) else None


class Verdict(StrEnum):
    GO_ON = "go on"
    CONFIRM = "to be confirmed"
    PASS = "pass"  # noqa: S105 - no password
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Judgement:
    """The result of a rule for some rounds."""

    verdict: Verdict  # `GO_ON` wants more rounds, `CONFIRM` wants fresh ones; the others are final
    needed: int = 0  # rounds that the next judgement needs: in all, or for `CONFIRM` fresh ones
    estimate: Estimate | None = None  # of the rounds, as log ratios; None before the first look
    confirmation: Estimate | None = None  # of the fresh rounds that were to confirm a regression

    @property
    def final(self) -> bool:
        """Whether no more rounds are needed."""
        return self.verdict not in {Verdict.GO_ON, Verdict.CONFIRM}


@dataclass(frozen=True)
class Rule:
    """When rounds are enough, and for what: inconclusive means neither shown to be slower nor shown not to be.

    Each number of `looks` is one look at the interval of all rounds so far. If its low end is above `least`, it is a
    regression once fresh rounds confirm it, since many looks find by chance what one would not. Otherwise, if its high
    end is below `worst`, it is a pass, as is an improvement.

    Raises:
        InputError: The limits or the looks contradict each other, or are too few for the confidence.
    """

    least: float = 0.01  # change beyond which there is a regression: 0.01 is 1 % slower
    worst: float = 0.05  # change that a pass excludes
    confidence: float = 0.99  # of the interval at each look
    looks: tuple[int, ...] = (8, 16, 24, 32, 48, 64)  # numbers of rounds after which to look; the last one decides
    confirming: int = 16  # fresh rounds that confirm a regression
    confirming_confidence: float = 0.90  # of their interval, whose low end must be above 0

    def __post_init__(self) -> None:
        if not (0 <= self.least <= self.worst < math.inf and self.worst > 0):
            raise InputError(
                f"a regression beyond {self.least:+.2%}, a pass below {self.worst:+.2%}: these contradict each other",
                hint="--least is at least 0, --worst is above 0, and --least is not above --worst",
            )
        if wrong := [value for value in (self.confidence, self.confirming_confidence) if not 0 < value < 1]:
            raise InputError(f"{wrong[0]:.6g} is not a valid confidence", hint="use --confidence 99, the default")
        if list(self.looks) != sorted({*self.looks}) or not self.looks or self.looks[0] < 1:
            raise InputError(f"looks after {self.looks} rounds do not follow each other")
        intervals = ((self.looks[-1], self.confidence), (self.confirming, self.confirming_confidence))
        for rounds, confidence in intervals:
            if not signed_rank_cut(rounds, confidence):
                raise InputError(
                    f"{rounds} rounds are too few for an interval of {confidence:.4%}",
                    hint=f"--rounds {least_rounds(confidence)} is the least for it",
                )

    def within(self, rounds: int) -> Rule:
        """Return the rule that decides after `rounds` rounds at the latest."""
        looks = (*(look for look in self.looks if look < rounds), rounds)
        return Rule(self.least, self.worst, self.confidence, looks, self.confirming, self.confirming_confidence)

    def judge(self, rounds: Sequence[float], fresh: Sequence[float] = ()) -> Judgement:
        """Judge the log ratios of the rounds so far; `fresh` are later rounds, which are to confirm a regression."""
        waiting = [look for look in self.looks if look > len(rounds)]
        if waiting and len(rounds) not in self.looks:
            return Judgement(Verdict.GO_ON, waiting[0])
        current = estimate(rounds[: self.looks[-1]], self.confidence)
        if current.low > math.log1p(self.least):
            if len(fresh) < self.confirming:
                return Judgement(Verdict.CONFIRM, self.confirming, current)
            again = estimate(fresh[: self.confirming], self.confirming_confidence)
            return Judgement(Verdict.REGRESSION if again.low > 0 else Verdict.INCONCLUSIVE, 0, current, again)
        if current.high < math.log1p(self.worst):
            return Judgement(Verdict.PASS, 0, current)
        return Judgement(Verdict.GO_ON, waiting[0], current) if waiting else Judgement(Verdict.INCONCLUSIVE, 0, current)

    def follow(self, rounds: Sequence[float], fresh: Sequence[float] = ()) -> Judgement:
        """Judge recorded rounds as `decide` does: look by look, until one decides. Later rounds do not count."""
        for look in (look for look in self.looks if look <= len(rounds)):
            judgement = self.judge(rounds[:look], fresh)
            if judgement.verdict is not Verdict.GO_ON:
                return judgement
        return self.judge(rounds)

    def decide(self, draw: Callable[[], float]) -> Judgement:
        """Draw log ratios of rounds until they are enough; return the final judgement."""
        rounds: list[float] = []
        fresh: list[float] = []
        judgement = self.judge(rounds)
        while not judgement.final:
            (fresh if judgement.verdict is Verdict.CONFIRM else rounds).append(draw())
            judgement = self.judge(rounds, fresh)
        return judgement


def least_rounds(confidence: float) -> int:
    """Return the least number of rounds whose interval can have this confidence, above 0 and below 1."""
    return max(1, math.ceil(1 - math.log2(1 - confidence) - 1e-9))


def modes(values: Sequence[float]) -> int:
    """Count the modes of durations in ns, such as the medians of a side: 2 if they form two groups, else 1.

    The logarithms are cut in two where the sum of squares within the groups is least. They are two modes if the groups'
    means are further apart than six standard deviations within the groups (a cut through one normal mode gives 2.7,
    through a uniform one 3.5), and each has 15 % of the values and at least 3 of them: fewer are outliers.
    """
    logs: NDArray[np.float64] = np.sort(np.log(np.maximum(np.asarray(values, dtype=np.float64), _TICK)))
    fewest = max(_LEAST_OF_MODE, math.ceil(_SHARE_OF_MODE * logs.size))
    cuts = range(fewest, logs.size - fewest + 1)
    if not cuts:
        return 1
    lower, upper = min(((logs[:cut], logs[cut:]) for cut in cuts), key=lambda halves: sum(map(_squares, halves)))
    within = math.sqrt((_squares(lower) + _squares(upper)) / logs.size)
    distance = float(upper.mean() - lower.mean())
    return 2 if distance > max(_APART * within, 1e-9) else 1


def _squares(values: NDArray[Any]) -> float:
    return float(((values - values.mean()) ** 2).sum())
