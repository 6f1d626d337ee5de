"""Paired comparisons: against published figures, against each other, and their false alarms."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.pipeline.evaluate.paired import Verdict, compare_answers, compare_scores, tango_interval


def answers(lost, gained, right, wrong=0):
    first = np.array([1.0] * lost + [0.0] * gained + [1.0] * right + [0.0] * wrong)
    second = np.array([0.0] * lost + [1.0] * gained + [1.0] * right + [0.0] * wrong)
    return first, second


@pytest.mark.parametrize(
    ("lost", "gained", "count"),
    [(9, 2, 100), (0, 0, 50), (50, 0, 50), (0, 7, 200), (1, 0, 1)],
)
def test_the_interval_contains_the_difference_and_mirrors(lost, gained, count):
    low, high = tango_interval(lost, gained, count)
    assert -1 <= low <= (lost - gained) / count <= high <= 1
    assert low < high
    assert tango_interval(gained, lost, count) == pytest.approx((-high, -low), abs=1e-9)


def test_the_interval_solves_the_score_equation_without_gains():
    """Without any discordant pair, Tango's limits are those of Wilson's interval: z^2 / (n + z^2)."""
    z = 2.5758293035489004
    assert tango_interval(0, 0, 50)[1] == pytest.approx(z * z / (50 + z * z), rel=1e-6)


def test_verdicts_follow_the_exact_test():
    assert compare_answers(*answers(0, 0, 100)).verdict is Verdict.SAME
    assert compare_answers(*answers(7, 0, 93)).verdict is Verdict.SAME  # p = 2 / 2^7 = 0.016
    lost = compare_answers(*answers(8, 0, 92))  # p = 2 / 2^8 = 0.0078
    assert (lost.verdict, lost.p_value, lost.worse, lost.better) == (Verdict.WORSE, pytest.approx(2 / 256), 8, 0)
    assert 0 < lost.low < lost.value < lost.high
    assert lost.value == pytest.approx(0.08)
    assert compare_answers(*answers(0, 8, 92)).verdict is Verdict.BETTER


def test_scores_are_compared_by_bootstrap_and_signs():
    stream = np.random.default_rng(5)
    loss = compare_scores(stream.normal(0.1, 0.2, 200))
    assert loss.verdict is Verdict.WORSE
    assert loss.low < 0.1 < loss.high
    assert compare_scores(np.zeros(10)).verdict is Verdict.SAME
    assert compare_scores(np.full(5, 1.0)).verdict is Verdict.SAME, "five samples cannot show anything at 99 %"
    assert compare_scores(np.full(20, -1.0)).verdict is Verdict.BETTER


def test_false_alarms_are_rare():
    stream = np.random.default_rng(7)
    alarms = 0
    for _ in range(1000):
        flips = stream.random((2, 200)) < 0.1
        right = stream.random(200) < 0.8
        loss = compare_answers(*(np.where(flip, ~right, right).astype(float) for flip in flips))
        alarms += loss.verdict is not Verdict.SAME
    assert alarms <= 16  # 10 are expected at most; more than 16 has a probability of 3 %
    scores = sum(
        compare_scores(stream.exponential(1, 12) - stream.exponential(1, 12)).verdict is not Verdict.SAME
        for _ in range(40)
    )
    assert scores <= 3
