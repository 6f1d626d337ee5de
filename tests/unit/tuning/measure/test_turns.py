"""Who takes the turns of a final, and what they say."""

from __future__ import annotations

import random

import pytest

from toolchain.tuning.measure import turns


def test_all_take_the_first_turns_and_another_begins_each_time():
    heats = [[1.0] * 3, [0.9] * 3, [2.0] * 3]
    assert [turns.order([[], [], []], number) for number in range(3)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert sorted(turns.order(heats, 3)) == [0, 1, 2], "three turns are too few to give one up"


def test_who_lost_half_of_the_turns_has_no_more():
    base = [1.0, 1.0, 1.0, 1.0]
    assert sorted(turns.order([base, [0.9] * 4, [0.9, 0.9, 1.1, 1.1]], 4)) == [0, 1]
    assert sorted(turns.order([[*base, 1.0], [0.9] * 5, [0.9] * 4], 5)) == [0, 1], "who left does not come back"
    assert turns.order([base, [1.0] * 4], 4) == [0]


def test_the_ratio_of_each_turn_counts_not_the_figures():
    """A machine that becomes ten times as slow in between changes nothing."""
    base = [1e-3 * 10 ** (turn / 11) for turn in range(turns.TURNS)]
    change = turns.change(base, [0.8 * latency for latency in base])
    assert (change.value, change.low, change.high) == pytest.approx((-0.2,) * 3)


@pytest.mark.parametrize(("factor", "share"), [(1.0, 0.02), (1.02, 0.004)])
def test_what_is_no_faster_wins_rarely(factor, share):
    """Each turn is disturbed by half of itself; a third of finals would take the faster half of two means."""
    draw, wins, finals = random.Random(7), 0, 1500  # noqa: S311 - no secret

    def sample():
        return 1e-3 * 2 ** draw.gauss(0, 0.3)

    for _ in range(finals):
        base, rival = ([sample() for _ in range(turns.TURNS)] for _ in range(2))
        wins += turns.change(base, [factor * latency for latency in rival]).high < 0
    assert wins <= share * finals


def test_what_is_clearly_faster_wins():
    draw = random.Random(3)  # noqa: S311 - no secret
    wins = 0
    for _ in range(100):
        base, rival = ([1e-3 * 2 ** draw.gauss(0, 0.15) for _ in range(turns.TURNS)] for _ in range(2))
        wins += turns.change(base, [0.7 * latency for latency in rival]).high < 0
    assert wins > 90
