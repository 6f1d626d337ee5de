"""Whether a metric of the same samples differs between two ways to compute them, and by how much.

Right and wrong answers are compared by McNemar's exact test, with Tango's interval of the difference (Statistics in
Medicine 17, 1998). Other scores are compared by a paired bootstrap, and a difference must also pass a test that flips
the signs of the pairs at random, because a bootstrap of few samples is too sure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from toolchain import interrupts

CONFIDENCE = 0.99
DRAWS = 9999
FEWEST_DRAWS = 999  # of figures that take long; p-values of 0.001 are possible with them
_CHUNK = 1 << 22  # numbers that are drawn at once
_SEED = 0
_BESIDE = 1e-12  # without any changed answer, the difference itself solves the equation, too

Scores = NDArray[np.float64]


class Verdict(StrEnum):
    SAME = "not significantly different"
    WORSE = "worse"
    BETTER = "better"


@dataclass(frozen=True)
class Loss:
    """The mean loss of the second of two ways against the first, with its interval; negative is a gain."""

    value: float
    low: float
    high: float
    p_value: float  # probability of such a difference, or a larger one, if there is none in truth
    worse: int  # how many samples have a worse score
    better: int

    def scaled(self, factor: float) -> Loss:
        value, low, high = (factor * number for number in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high)

    @property
    def verdict(self) -> Verdict:
        if self.p_value >= 1 - CONFIDENCE or self.low <= 0 <= self.high:
            return Verdict.SAME
        return Verdict.WORSE if self.value > 0 else Verdict.BETTER


NO_LOSS = Loss(0.0, 0.0, 0.0, 1.0, 0, 0)


def compare_answers(first: Scores, second: Scores) -> Loss:
    """Compare right (1) and wrong (0) answers to the same questions."""
    lost, gained = int(np.sum(first > second)), int(np.sum(first < second))
    p_value = float(stats.binomtest(lost, lost + gained).pvalue) if lost + gained else 1.0
    low, high = tango_interval(lost, gained, len(first))
    return _consistent(Loss((lost - gained) / len(first), low, high, p_value, lost, gained))


def tango_interval(lost: int, gained: int, count: int) -> tuple[float, float]:
    """Return the score interval of the difference of two paired proportions, `(lost - gained) / count`."""
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))

    def margin(sign: float) -> Callable[[float], float]:
        def distance(delta: float) -> float:
            linear = -lost - gained + (2 * count - lost + gained) * delta
            constant = -gained * delta * (1 - delta)
            root = math.sqrt(max(linear * linear - 8 * count * constant, 0.0))
            variance = count * (2 * (root - linear) / (4 * count) + delta * (1 - delta))
            return lost - gained - count * delta - sign * z * math.sqrt(max(variance, 0.0))

        return distance

    middle = (lost - gained) / count
    low = -1.0 if middle <= -1 else float(optimize.brentq(margin(1.0), -1.0, middle - _BESIDE))
    high = 1.0 if middle >= 1 else float(optimize.brentq(margin(-1.0), middle + _BESIDE, 1.0))
    return low, high


def compare_scores(losses: Scores) -> Loss:
    """Compare scores of any kind by the loss of each sample."""
    value, worse, better = float(losses.mean()), int(np.sum(losses > 0)), int(np.sum(losses < 0))
    if not worse and not better:
        return NO_LOSS
    stream, count = np.random.default_rng(_SEED), losses.size
    means, extreme = [], 0
    rows = max(1, _CHUNK // count)
    for start in range(0, DRAWS, rows):
        shape = (min(rows, DRAWS - start), count)
        means.append(losses[stream.integers(0, count, shape)].mean(axis=1))
        flipped = (losses * stream.choice((-1.0, 1.0), shape)).mean(axis=1)
        # Of losses of one size, sums differ in their last bits only by the order of addition.
        extreme += int(np.sum(np.abs(flipped) >= abs(value) * (1 - 1e-9)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail))
    p_value = (1 + extreme) / (1 + DRAWS)
    return _consistent(Loss(value, float(low), float(high), p_value, worse, better))


def compare_totals(
    total: Callable[[Scores], Scores], count: int, changed: tuple[int, int], width: int, draws: int = DRAWS
) -> Loss:
    """Compare a figure of all samples that is not the mean of their scores.

    Args:
        total: Returns figures [draws], of which more is better. It takes how often each sample counts, [draws, 2 x
            count]: those of the first way, then the same samples of the second.
        count: Number of samples.
        changed: How many samples are worse and better by themselves.
        width: How many numbers `total` computes with for a draw.
        draws: How many draws there are.
    """
    none = np.zeros((1, count))
    value = float((total(np.hstack([none + 1, none])) - total(np.hstack([none, none + 1])))[0])
    stream, differences, extreme = np.random.default_rng(_SEED), [], 0
    rows = max(1, _CHUNK // max(2 * count, width))
    for start in range(0, draws, rows):
        size = min(rows, draws - start)
        interrupts.check()
        weights = stream.multinomial(count, np.full(count, 1 / count), size).astype(np.float64)
        nothing = np.zeros_like(weights)
        differences.append(total(np.hstack([weights, nothing])) - total(np.hstack([nothing, weights])))
        swaps = stream.integers(0, 2, (size, count)).astype(np.float64)
        apart = total(np.hstack([swaps, 1 - swaps])) - total(np.hstack([1 - swaps, swaps]))
        extreme += int(np.sum(np.abs(apart) >= abs(value) * (1 - 1e-9)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(differences), (tail, 1 - tail))
    return _consistent(Loss(value, float(low), float(high), (1 + extreme) / (1 + draws), *changed))


def _consistent(loss: Loss) -> Loss:
    """Widen an interval up to 0 if the test does not exclude 0, so that both say the same."""
    if loss.p_value < 1 - CONFIDENCE:
        return loss
    return replace(loss, low=min(loss.low, 0.0), high=max(loss.high, 0.0))
