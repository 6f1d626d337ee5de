"""Waiting for a device: for how long, the messages meanwhile, and the record of each wait."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tests.support.paths import ROOT
from toolchain.device import waiting
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.device.waiting import Patience
from toolchain.errors import BusyError, DeviceError
from toolchain.shell import LocalShell

ANN, BOB = Owner("ann@desk", "bench"), Owner("bob@desk", "tune mlp")


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    fake_clock = Clock()
    monkeypatch.setattr(waiting, "time", fake_clock)
    return fake_clock


def busy(owner: str) -> BusyError:
    return BusyError(f"a is busy: {owner}", details="since 12:00:00, for 9 s by now; more", hint="h", owner=owner)


def answers(clock: Clock, until: dict[str, float]):
    """Return an attempt that finds each owner there until a time."""

    def attempt() -> str:
        for owner, end in until.items():
            if clock.now < end:
                raise busy(owner)
        return "mine"

    return attempt


def test_nobody_waits_unasked(clock):
    with pytest.raises(BusyError, match="ann") as caught:
        Patience().get(answers(clock, {"ann": 200}))
    assert (clock.slept, caught.value.details) == ([], "since 12:00:00, for 9 s by now; more")


def test_what_is_free_is_not_waited_for(clock):
    patience = Patience(60)
    assert patience.get(lambda: "mine") == "mine"
    assert (clock.slept, patience.waited, patience.left) == ([], (), 60)


def test_who_was_waited_for_and_how_long(clock):
    messages: list[str] = []
    patience = Patience(60, messages.append)
    assert patience.get(answers(clock, {"ann": 110, "bob": 120})) == "mine"
    assert [wait.owner for wait in patience.waited] == ["ann", "bob"]
    assert sum(wait.seconds for wait in patience.waited) == pytest.approx(clock.now - 100)
    assert 10 <= patience.waited[0].seconds <= 14
    assert [line.partition(",")[0] for line in messages] == ["a is busy: ann", "a is busy: bob"]
    assert "since 12:00:00, for 9 s by now; waiting for up to 60 s" in messages[0]


def test_whoever_waits_long_hears_of_it_every_minute(clock):
    messages: list[str] = []
    Patience(600, messages.append).get(answers(clock, {"ann": 400}))
    assert 4 <= len(messages) <= 6


def test_the_pauses_grow_and_are_not_alike(clock):
    Patience(600).get(answers(clock, {"ann": 200}))
    assert clock.slept[0] <= 0.375
    assert all(pause <= 3 for pause in clock.slept)
    assert len({round(pause, 6) for pause in clock.slept}) > 10


def test_when_the_time_is_up(clock):
    with pytest.raises(BusyError, match="a is busy: ann") as caught:
        Patience(5).get(answers(clock, {"ann": 900}))
    fault = caught.value
    assert clock.now == pytest.approx(105)
    assert (fault.exit_code, fault.hint, fault.owner) == (75, "h", "ann")
    assert fault.details.endswith("more\nthis command waited 5 s for ann")


def test_the_time_is_for_the_whole_command(clock):
    patience = Patience(10)
    patience.get(answers(clock, {"ann": 107}))
    with pytest.raises(BusyError):
        patience.get(answers(clock, {"bob": 900}))
    assert clock.now == pytest.approx(110)
    assert [wait.owner for wait in patience.waited] == ["ann", "bob"]


def test_another_fault_is_not_waited_for(clock):
    def lost() -> None:
        raise DeviceError("lost")

    with pytest.raises(DeviceError, match="lost"):
        Patience(60).get(lost)
    assert clock.slept == []


# --- with a store ----------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    return tmp_path / "device"


def test_a_lock_is_had_when_the_one_before_lets_go(root):
    messages: list[str] = []
    mine = Store(LocalShell(), str(root), patience=Patience(60, messages.append))
    other, lock_taken = Store(LocalShell(), str(root)), threading.Event()

    def hold() -> None:
        with other.lock(ANN):
            lock_taken.set()
            time.sleep(0.5)

    thread = threading.Thread(target=hold)
    thread.start()
    assert lock_taken.wait(30)
    mine.check_free()  # it will wait, so it need not know
    with mine.lock(BOB):
        assert not thread.is_alive() or other._lease is None
        with pytest.raises(BusyError, match="in use by bob@desk: tune mlp"):
            other.check_free()
    thread.join()
    [wait] = mine.waited
    assert (wait.owner, wait.seconds > 0.1) == ("ann@desk: bench", True)
    [line] = messages
    assert line.startswith("local is busy: in use by ann@desk: bench, since ")


def test_a_lock_within_ones_own_is_that_lock(root):
    mine, other = (Store(LocalShell(), str(root)) for _ in range(2))
    with mine.lock(ANN) as outer:
        with mine.lock(BOB) as inner:
            assert inner is outer
            mine.check_free()
        with pytest.raises(BusyError, match="in use by ann@desk: bench"):
            other.check_free()
    other.check_free()


WAITS = """
import sys
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.device.waiting import Patience
from toolchain.shell import LocalShell
patience = Patience(600, lambda line: print(line, flush=True))
with Store(LocalShell(), sys.argv[1], patience=patience).lock(Owner("x", "y")):
    print("mine", flush=True)
"""


def test_whoever_is_interrupted_while_waiting_leaves_nothing(root):
    store = Store(LocalShell(), str(root))
    with store.lock(ANN):
        process = subprocess.Popen(
            [sys.executable, "-c", WAITS, str(root)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        with process:
            assert "in use by ann@desk" in process.stdout.readline()
            process.send_signal(2)
            assert process.wait(30) != 0
            assert process.stdout.read() == ""
        assert (root / "lock").read_text().partition("\n")[0].split("\t")[0].endswith("ann@desk")
    Store(LocalShell(), str(root)).check_free()
