"""When a board counts as well."""

from __future__ import annotations

import pytest

from toolchain.tuning.measure.health import Health, Pulse, Rules

HERE, THERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


def health(*, steady: bool = True, best: float | None = 1.0, **rules) -> Health:
    found = Health(Rules(**rules), steady=steady)
    found.well(Pulse(HERE, best), now=0.0)
    return found


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
    one = health()
    one.failures = failures
    assert (one.pause_s, one.quarantined) == (pause, quarantined)


@pytest.mark.parametrize(
    ("pulse", "words"),
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
def test_a_slow_or_hot_board_is_known(pulse, words):
    assert health().fault(pulse) == words
    assert health(steady=False).fault(pulse) == ""


def test_the_best_is_the_fastest_of_each_board():
    one = health(best=1.0)
    one.well(Pulse(HERE, 0.5), 1.0)
    one.well(Pulse(HERE, 0.54), 2.0)
    one.well(Pulse(THERE, 2.0), 3.0)
    assert one.fault(Pulse(HERE, 0.6)).startswith("20 %")
    assert one.fault(Pulse(THERE, 2.1)) == ""


def test_a_board_that_stays_slow_is_taken_as_it_is():
    one = health(best=1.0)
    one.accept(Pulse(HERE, 2.0), 1.0)
    assert one.fault(Pulse(HERE, 2.1)) == ""
    assert one.fault(Pulse(HERE, 2.3))


def test_a_canary_is_due_after_some_trials_or_some_time():
    one = Health(Rules(canary_trials=3, canary_every_s=10.0), steady=True)
    assert one.due(0.0)
    one.well(Pulse(HERE, 1.0), 0.0)
    one.count()
    one.count()
    assert not one.due(9.0)
    assert one.due(10.0)
    one.count()
    assert one.due(1.0)
    one.well(Pulse(HERE, 1.0), 1.0)
    assert not one.due(1.0)
    assert not Health(Rules(), steady=False).due(1e9)


def test_results_are_held_only_where_a_canary_sings():
    assert health().holds(HERE)
    assert not health().holds(THERE)
    assert not health(best=None).holds(HERE)
    assert not health(steady=False).holds(HERE)
