"""Who has a board, and what others are told of that."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from toolchain.device.lock import Owner
from toolchain.errors import BusyError, DeviceError
from toolchain.farm.grants import Client, Grant, Slot, check_key, grant_message
from toolchain.farm.refusals import released
from toolchain.farm.served_board import Claim

SERVED = SimpleNamespace(name="a", board="rpi4", host="board", emulated=False)


class Board:
    """A board that remembers what it is wanted for."""

    served, state, fault, session_since = SERVED, "ready", None, None
    is_busy, settled, occupied = False, True, None

    def __init__(self):
        self.claims, self.cuts = [], 0

    def offer(self, claim, *, quiet=False):
        self.claims.append((claim, quiet))

    def cut(self):
        self.cuts += 1


@pytest.fixture
def slot():
    return Slot(Board(), "farm release a")


def test_the_owner_of_a_devices_lock_is_the_client():
    lease = Grant(Client("ann@desk pid 7: tune mlp"), "leased", 0.0)
    assert lease.owner("farm release a") == Owner("ann@desk pid 7", "tune mlp", "farm release a")
    lock = Grant(Client("ann@desk pid 7"), "locked", 0.0, 60.0)
    assert re.fullmatch(r"toolchain farm lock until \d\d:\d\d", lock.owner("").what)
    assert re.fullmatch(r"locked by ann@desk pid 7 until \d\d:\d\d", str(lock))
    assert lease.within != lock.within


def test_a_board_is_given_and_taken_back(slot):
    hold = Grant(Client("ann@desk: tune mlp"), "leased", 0.0)
    slot.give(hold, "5e")
    assert slot.board.claims == [(Claim(hold.owner("farm release a"), "5e", hold.within), True)]
    assert (slot.state(), slot.is_free()) == ("leased", False)
    expected = {"name": "a", "board": "rpi4", "emulated": False, "key": "5e", "within": hold.within}
    assert grant_message(slot) == expected
    check_key(slot, "5e")
    slot.take_back()
    assert (slot.board.claims[-1], slot.board.cuts) == ((Claim(), False), 1)
    assert (slot.state(), slot.is_free()) == ("free", True)


def test_a_key_that_was_taken_back_is_known(slot):
    slot.give(Grant(Client("ann@desk"), "leased", 0.0), "5e")
    slot.withdraw(released("a"))
    with pytest.raises(BusyError, match="ended by its owner"):
        check_key(slot, "5e")
    with pytest.raises(DeviceError, match="not leased under this key"):
        check_key(slot, "07")


def test_a_board_that_cannot_be_served_because_others_are_at_work_is_busy(slot):
    slot.board.state = "lost"
    assert (slot.state(), slot.may_be_free_soon()) == ("lost", True)
    slot.board.is_busy = True
    assert (slot.state(), slot.is_free(), slot.may_be_free_soon()) == ("busy", False, True)
