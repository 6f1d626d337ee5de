"""Rounds in pairs: the exact interval against scipy and against every sign, the rule, and modes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import wilcoxon

from toolchain import stats
from toolchain.errors import InputError
from toolchain.stats import Rule, Verdict

RULE = Rule()


def by_hand(count: int, confidence: float) -> int:
    """Try every sign of every rank."""
    ranks = np.arange(1, count + 1)
    sums = sorted(int(ranks[list(signs)].sum()) for signs in itertools.product((False, True), repeat=count))
    cut = 0
    while sum(rank_sum <= cut for rank_sum in sums) / len(sums) <= (1 - confidence) / 2:
        cut += 1
    return cut


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_the_cut_is_that_of_every_sign_tried(count, confidence):
    assert stats.signed_rank_cut(count, confidence) == by_hand(count, confidence)


@pytest.mark.parametrize("count", [8, 13, 24, 50])
def test_the_interval_holds_what_the_exact_test_of_scipy_does_not_reject(count):
    values = np.random.default_rng(count).normal(0.02, 0.05, count)
    estimate = stats.estimate(values.tolist(), 0.99)
    for end, inwards in ((estimate.low, 1e-7), (estimate.high, -1e-7)):
        assert wilcoxon(values - end - inwards, method="exact").pvalue > 0.01
        assert wilcoxon(values - end + inwards, method="exact").pvalue <= 0.01


def test_the_interval_holds_the_truth_as_often_as_it_says():
    stream = np.random.default_rng(1)
    for confidence, lowest, highest in ((0.9, 0.88, 0.93), (0.99, 0.983, 1.0)):
        hits = 0
        for _ in range(1000):
            estimate = stats.estimate((0.3 + stream.standard_t(2, 12)).tolist(), confidence)
            hits += estimate.low <= 0.3 <= estimate.high
        assert lowest <= hits / 1000 <= highest


def test_the_estimate_is_the_median_of_the_means_of_pairs():
    estimate = stats.estimate([1.0, 2.0, 6.0], 0.5)
    assert estimate.value == pytest.approx(np.median([1, 1.5, 3.5, 2, 4, 6]))
    assert (estimate.low, estimate.high) == (1.5, 4.0)


def test_ties_and_zeros_belong_to_the_interval():
    assert (stats.estimate([0.0] * 8).low, stats.estimate([0.0] * 8).high) == (0.0, 0.0)
    tied = stats.estimate([0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert tied.low <= 0.0 < tied.value <= tied.high == pytest.approx(0.1)


def test_too_few_rounds_for_the_confidence_say_nothing():
    estimate = stats.estimate([0.1] * 7)
    assert (estimate.value, estimate.low, estimate.high) == (pytest.approx(0.1), -math.inf, math.inf)
    assert stats.least_rounds(0.99) == 8
    assert stats.least_rounds(0.5) == 2
    for level in (0.5, 0.75, 0.9, 0.95, 0.999, 0.9375):
        assert stats.signed_rank_cut(stats.least_rounds(level), level)
    for level in (0.5, 0.75, 0.9, 0.95, 0.9375):
        assert not stats.signed_rank_cut(stats.least_rounds(level) - 1, level)


@pytest.mark.parametrize("wrong", [([], 0.9), ([math.nan], 0.9), ([math.inf, 1.0], 0.9), ([1.0], 1.0), ([1.0], 0.0)])
def test_what_cannot_be_estimated(wrong):
    with pytest.raises(ValueError, match="not all of that is finite and in range"):
        stats.estimate(*wrong)


def test_a_ratio_is_that_of_medians_and_a_change_is_not_a_logarithm():
    assert stats.log_ratio([200, 220, 900], [110, 100, 120]) == pytest.approx(math.log(2))
    assert stats.log_ratio([0, 0, 1], [0]) == 0.0  # a clock too coarse for the model
    assert stats.log_ratios([[2, 2], [4]], [[1], [1]]) == pytest.approx((math.log(2), math.log(4)))
    changed = stats.estimate([math.log(1.05)] * 8).change()
    assert (changed.value, changed.low, changed.high) == pytest.approx((0.05,) * 3)
    assert stats.estimate([0.0]).change().low == -1
    for samples in ([], [math.nan], [-1.0], [math.inf]):
        with pytest.raises(ValueError, match="no median that is a duration"):
            stats.log_ratio(samples, [1])
    with pytest.raises(ValueError, match="longer"):
        stats.log_ratios([[1]], [[1], [2]])


def noisy(change: float, count: int, sd: float = 0.004, seed: int = 0) -> list[float]:
    return (math.log1p(change) + np.random.default_rng(seed).normal(0, sd, count)).tolist()


@pytest.mark.parametrize(
    ("change", "verdict"), [(0.0, Verdict.PASS), (-0.3, Verdict.PASS), (0.06, Verdict.CONFIRM), (5.0, Verdict.CONFIRM)]
)
def test_what_is_plain_is_known_at_the_first_look(change, verdict):
    assert RULE.judge(noisy(change, 7)) == stats.Judgement(Verdict.GO_ON, 8)
    decision = RULE.judge(noisy(change, 8))
    assert decision.verdict is verdict
    assert decision.estimate
    assert decision.estimate.rounds == 8


def test_looks_are_taken_at_their_numbers_only():
    hazy = noisy(0.03, 64, sd=0.2)
    for count in range(64):
        assert RULE.judge(hazy[:count]).needed == next(look for look in RULE.looks if look > count)
    last = RULE.judge(hazy)
    assert (last.verdict, last.final) == (Verdict.INCONCLUSIVE, True)
    assert RULE.judge([*hazy, *noisy(5, 64)]) == last


def test_a_regression_stands_if_fresh_rounds_say_so_and_else_nothing_does():
    slow = noisy(0.06, 8)
    for fresh in ([], noisy(0.06, 15)):
        assert RULE.judge(slow, fresh).verdict is Verdict.CONFIRM
        assert RULE.judge(slow, fresh).needed == 16
    sure = RULE.judge(slow, noisy(0.06, 16, seed=1))
    assert sure.verdict is Verdict.REGRESSION
    assert sure.confirmation
    assert (sure.confirmation.rounds, sure.confirmation.confidence) == (16, 0.90)
    assert RULE.judge(slow, noisy(-0.01, 16)).verdict is Verdict.INCONCLUSIVE
    assert RULE.judge(noisy(0.03, 8)).verdict is Verdict.CONFIRM  # between both limits, and surely above the first


@pytest.mark.parametrize(("change", "verdict"), [(0.0, Verdict.PASS), (0.08, Verdict.REGRESSION)])
def test_deciding_draws_no_more_than_it_needs(change, verdict):
    rounds = iter(noisy(change, 100, sd=0.03))
    decision = RULE.decide(lambda: next(rounds))
    assert decision.verdict is verdict
    unused = len(list(rounds))
    assert decision.estimate
    assert 100 - unused == decision.estimate.rounds + (16 if decision.confirmation else 0)


def test_rounds_that_go_on_are_followed_to_the_look_that_was_enough():
    slow, later = noisy(0.06, 8), noisy(-0.5, 16)
    assert RULE.judge([*slow, *later]).verdict is not Verdict.CONFIRM
    assert RULE.follow([*slow, *later]).verdict is Verdict.CONFIRM
    assert RULE.follow([*slow, *later], noisy(0.06, 16)).verdict is Verdict.REGRESSION
    for count in (0, 7, 12):
        assert RULE.follow(noisy(0.03, count, sd=0.2)) == RULE.judge(noisy(0.03, count, sd=0.2))


def test_what_a_draw_raises_ends_the_deciding():
    def draw() -> float:
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        RULE.decide(draw)


def test_a_rule_within_a_number_of_rounds_looks_after_the_last_of_them():
    assert RULE.within(20).looks == (8, 16, 20)
    assert RULE.within(64) == RULE
    assert RULE.within(100).looks == (8, 16, 24, 32, 48, 64, 100)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"least": 0.06}, "contradict each other"),
        ({"least": -0.01}, "contradict each other"),
        ({"least": 0.0, "worst": 0.0}, "contradict each other"),
        ({"worst": math.inf}, "contradict each other"),
        ({"worst": math.nan}, "contradict each other"),
        ({"confidence": 1.0}, "1 is not a valid confidence"),
        ({"confirming_confidence": 0.0}, "0 is not a valid confidence"),
        ({"looks": ()}, "do not follow"),
        ({"looks": (8, 8)}, "do not follow"),
        ({"looks": (16, 8)}, "do not follow"),
        ({"looks": (7,)}, "7 rounds are too few"),
        ({"confirming": 3}, "3 rounds are too few"),
    ],
)
def test_a_rule_that_cannot_be_met_is_none(wrong, message):
    with pytest.raises(InputError, match=message):
        Rule(**wrong)


def test_two_modes_are_seen_and_one_is_not_cut_in_two():
    stream = np.random.default_rng(3)
    unimodal = 11e6 * np.exp(stream.normal(0, 0.03, 64))
    bimodal = np.where(stream.random(64) < 0.4, 19e6, 11e6) * np.exp(stream.normal(0, 0.03, 64))
    assert (stats.modes(unimodal.tolist()), stats.modes(bimodal.tolist())) == (1, 2)
    assert stats.modes([11e6] * 62 + [90e6] * 2) == 1  # outliers
    assert stats.modes([5.0] * 20) == stats.modes([]) == stats.modes([1.0, 2.0]) == 1
    assert stats.modes([0.0] * 20) == 1


# --- how many times as fast ---


def test_the_ratio_is_that_of_the_medians_of_each_round():
    ratio = stats.ratio([[2e6, 2.1e6, 9e6]] * 8, [[1e6, 1e6, 5e6]] * 8)
    assert ratio.value == pytest.approx(2.1)
    assert ratio.ci95 == pytest.approx((2.1, 2.1))
    assert ratio.rounds == pytest.approx([2.1] * 8)


def test_the_ratio_is_within_what_its_rounds_say():
    ratio = stats.ratio([[value] for value in (2000, 2200, 1900, 2100, 2000, 2300, 1800, 2000)], [[1000]] * 8)
    low, high = ratio.ci95
    assert 1.8 <= low < ratio.value < high <= 2.3


def test_what_drifts_for_both_is_not_in_the_ratio():
    drifting = [1000 * 1.5**number for number in range(8)]
    ratio = stats.ratio([[1.1 * value] for value in drifting], [[value] for value in drifting])
    assert (ratio.value, *ratio.ci95) == pytest.approx((1.1, 1.1, 1.1))


def test_equal_things_are_not_told_apart():
    turns = [[1000, 1100], [1200, 1000], [900, 1000], [1100, 1050], [1000, 1010], [990, 980]]
    low, high = stats.ratio(turns, turns[::-1]).ci95
    assert low <= 1.0 <= high


def test_five_rounds_have_a_ratio_and_no_interval():
    ratio = stats.ratio([[2000]] * 5, [[1000]] * 5)
    assert (ratio.value, ratio.ci95) == (pytest.approx(2.0), None)


def test_a_clock_that_is_too_coarse_for_a_ratio_makes_one_of_it():
    ratio = stats.ratio([[0]] * 6, [[0]] * 6)
    assert (ratio.value, ratio.ci95) == (1.0, (1.0, 1.0))


@pytest.mark.parametrize(("factor", "verdict"), [(0.8, "faster"), (1.25, "slower"), (1.0, "")])
def test_a_ratio_is_sure_where_its_wider_interval_says_so(factor, verdict):
    base = [[1000.0 + 10 * turn] for turn in range(12)]
    ratio = stats.ratio(base, [[factor * times[0]] for times in base])
    assert ratio.verdict == verdict
    assert ratio.ci99[0] <= ratio.ci95[0] <= ratio.ci95[1] <= ratio.ci99[1]


def test_few_rounds_make_nothing_sure():
    ratio = stats.ratio([[2000.0]] * 7, [[1000.0]] * 7)
    assert (ratio.ci95, ratio.ci99, ratio.verdict) == ((pytest.approx(2.0),) * 2, None, "")
