"""What becomes of a run's boards while it measures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from toolchain.errors import BusyError
from toolchain.farm.boards import Boards
from toolchain.farm.leases import LeasedBoard
from toolchain.tuning.measure import ServerPlace


class Lease:
    """A lease that tells its follower what a test wants, and remembers what it is given back."""

    boards = ()

    def __init__(self):
        self.given = []

    def follow(self, follower):
        self.follower = follower

    def give(self, name, *, for_good=False):
        self.given.append((name, for_good))

    def dial(self, name, timeout_s):
        return f"a stream to {name} within {timeout_s:g} s"


class Crew:
    """Asks at once whether a place fits, and leaves one when a test says so."""

    def __init__(self):
        self.places, self.leaving = [], {}

    def add(self, place, fits):
        if fits():
            self.places.append(place)

    def retire(self, name, when_left):
        self.leaving[name] = when_left


@pytest.fixture(params=[False, True], ids=["real", "emulated"])
def run(request):
    lease, crew, lines, unfit = Lease(), Crew(), [], set()
    boards = Boards((SimpleNamespace(emulated=request.param),), lease, machine="aarch64")
    boards.follow(crew, lambda place: place.name not in unfit, lines.append)
    return SimpleNamespace(lease=lease, crew=crew, told=lines, unfit=unfit, emulated=request.param)


def test_a_board_that_joins_is_measured_on(run):
    run.lease.follower.joined(LeasedBoard("a", "rpi4", "5e", emulated=False))
    [place] = run.crew.places
    assert isinstance(place, ServerPlace)
    assert (place.name, place.key, place.machine, place.emulated) == ("a", "5e", "aarch64", False)
    assert place.dial(3) == "a stream to a within 3 s"
    assert run.told == ["a: joins"]
    assert run.lease.given == []


def test_times_of_an_emulator_are_not_mixed_with_real_ones(run):
    run.lease.follower.joined(LeasedBoard("a", "rpi4", "5e", emulated=True))
    assert len(run.crew.places) == run.emulated
    assert run.lease.given == ([] if run.emulated else [("a", True)])
    assert run.emulated or "emulated" in run.told[0]


def test_a_board_that_is_something_else_is_given_back_for_good(run):
    run.unfit.add("a")
    run.lease.follower.joined(LeasedBoard("a", "rpi4", "5e", emulated=False))
    assert (run.crew.places, run.lease.given) == ([], [("a", True)])


def test_a_board_is_given_back_once_nothing_runs_there(run):
    run.lease.follower.recalled("a")
    assert run.lease.given == []
    run.crew.leaving["a"]()
    assert run.lease.given == [("a", False)]
    assert "others wait" in run.told[0]


def test_why_a_board_is_lost_is_told(run):
    run.lease.follower.lost("a", BusyError("the lease of a was ended by its owner"))
    assert run.told == ["a: the lease of a was ended by its owner"]


def test_without_a_lease_nothing_changes():
    Boards((SimpleNamespace(emulated=False),)).follow(Crew(), lambda _place: True, print)
