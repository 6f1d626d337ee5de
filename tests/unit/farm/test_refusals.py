"""Why somebody has no board, in words."""

from __future__ import annotations

import pytest

from tests.support.paper_boards import BUSY, Paper, served
from toolchain.errors import BusyError, DeviceError
from toolchain.farm.grants import Client, Grant, Slot
from toolchain.farm.refusals import none_free, not_now


@pytest.fixture
def slots():
    """Two boards that are served, and free."""
    slots = [Slot(Paper(served(name, "rpi4"), lambda: None)) for name in ("a", "b")]
    for slot in slots:
        slot.board.become("ready")
    return slots


def test_why_a_board_is_not_to_be_had(slots):
    slot = slots[0]
    assert "last session on a has not ended" in not_now(slot).message
    slot.board.occupied = BUSY
    assert not_now(slot) is BUSY
    slot.grant = Grant(Client("ann@desk: tune mlp"), "leased", 0.0)
    assert not_now(slot).message == "a is leased by ann@desk: tune mlp"
    slot.board.busy, slot.board.fault = True, BUSY
    assert (not_now(slot), not_now(slot).exit_code) == (BUSY, 75)


def test_of_several_boards_each_owner_is_named(slots):
    """Whoever waits is told for whom, though nobody has these from the farm."""
    slots[0].board.fault = BUSY
    slots[1].grant = Grant(Client("bob@desk: tune lenet"), "leased", 0.0)
    fault = none_free("rpi4", (), slots)
    assert (fault.message, fault.owner) == ("no rpi4 is free", "ann@desk: deploy; bob@desk: tune lenet")
    assert fault.details.splitlines() == [f"a: {BUSY.message}", "b is leased by bob@desk: tune lenet"]


def test_boards_that_are_lost_are_nobodys_work(slots):
    for slot in slots:
        slot.board.become("lost", DeviceError("gone"))
    fault = none_free("", ["a", "b"], slots)
    assert (fault.message, fault.details) == ("a, b are not free", "a: gone\nb: gone")
    assert not isinstance(fault, BusyError)
    assert "has no rpi4" in none_free("rpi4", (), []).message
