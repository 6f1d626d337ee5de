"""When a board counts as well."""

from __future__ import annotations

import pytest

from toolchain.tuning.measure.health import Health, Pulse, Rules

HERE, THERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


def health(*, steady: bool = True, best: float | None = 1.0, **rules) -> Health:
    board = Health(Rules(**rules), steady=steady)
    board.well(Pulse(HERE, best), now=0.0)
    return board


@pytest.mark.parametrize(
    ("failures", "pause", "quarantined"),
    [
        (1, 1, False),
        (2, 1, False),
        (3, 1, True),
        (4, 2, True),
        (5, 4, True),
        (6, 8, True),
        (7, 15, True),
        (99, 15, True),
    ],
)
def test_a_lost_board_is_tried_less_and_less_often(failures, pause, quarantined):
    board = health()
    board.failures = failures
    assert (board.pause_s, board.quarantined) == (pause, quarantined)


@pytest.mark.parametrize(
    ("pulse", "reason"),
    [
        (Pulse(HERE, 1.0), ""),
        (Pulse(HERE, 1.09), ""),
        (Pulse(HERE, 1.2), "20 % slower than its best"),
        (Pulse(HERE, 0.5), ""),
        (Pulse(HERE), ""),
        (Pulse(THERE, 9.0), ""),
        (Pulse(HERE, 1.0, celsius=79.0), ""),
        (Pulse(HERE, 1.0, celsius=80.0), "80 C"),
    ],
)
def test_a_slow_or_hot_board_is_known(pulse, reason):
    assert health().fault(pulse) == reason
    assert health(steady=False).fault(pulse) == ""


def test_the_best_is_the_fastest_of_each_board():
    board = health(best=1.0)
    board.well(Pulse(HERE, 0.5), 1.0)
    board.well(Pulse(HERE, 0.54), 2.0)
    board.well(Pulse(THERE, 2.0), 3.0)
    assert board.fault(Pulse(HERE, 0.6)).startswith("20 %")
    assert board.fault(Pulse(THERE, 2.1)) == ""


def test_a_board_that_stays_slow_is_taken_as_it_is():
    board = health(best=1.0)
    board.accept(Pulse(HERE, 2.0), 1.0)
    assert board.fault(Pulse(HERE, 2.1)) == ""
    assert board.fault(Pulse(HERE, 2.3))


def test_a_canary_is_due_after_some_trials_or_some_time():
    board = Health(Rules(canary_trials=3, canary_every_s=10.0), steady=True)
    assert board.due(0.0)
    board.well(Pulse(HERE, 1.0), 0.0)
    board.count()
    board.count()
    assert not board.due(9.0)
    assert board.due(10.0)
    board.count()
    assert board.due(1.0)
    board.well(Pulse(HERE, 1.0), 1.0)
    assert not board.due(1.0)
    assert not Health(Rules(), steady=False).due(1e9)


def test_results_are_held_only_where_a_canary_sings():
    assert health().holds(HERE)
    assert not health().holds(THERE)
    assert not health(best=None).holds(HERE)
    assert not health(steady=False).holds(HERE)
