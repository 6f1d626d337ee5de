"""Who goes first in a round, and what follows a round in which the device was throttled."""

import pytest

from toolchain.pipeline.ab import Turns, turns


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    pauses = []
    monkeypatch.setattr(turns.time, "sleep", pauses.append)
    return pauses


def test_each_side_goes_first_in_every_other_round(pauses):
    assert list(Turns().rounds(4)) == [(0, (0, 1)), (1, (1, 0)), (2, (0, 1)), (3, (1, 0))]
    assert pauses == []


def test_a_throttled_round_is_repeated_in_its_order_after_a_pause(pauses):
    order, sides = [], Turns()
    for number, first in sides.rounds(3):
        order.append((number, first))
        if len(order) in {2, 3}:
            sides.repeat(["fan"])
    assert order == [(0, (0, 1)), (1, (1, 0)), (1, (1, 0)), (1, (1, 0)), (2, (0, 1))]
    assert len(pauses) == 2
    assert sides.hot == ""


def test_a_device_that_stays_hot_ends_all_rounds(pauses):
    sides = Turns()
    for _ in sides.rounds():
        sides.repeat(["clock capped", "throttled"])
    assert sides.hot == "the device throttled in 9 rounds: clock capped, throttled"
    assert len(pauses) == 8
    assert list(sides.rounds()) == []
