"""Who gets which board, without a board: leases, locks and what is told about them."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

from toolchain import _farm_keeper_desk as desks
from toolchain._farm_keeper_desk import Desk
from toolchain._farm_protocol import Served
from toolchain.device_runtime import Program
from toolchain.errors import DeviceError, InputError
from toolchain.shell import SshOptions

PROGRAM = Program(Path("/cache/board_server"), "ab" * 32, "2.28", "x86_64", {})


class Paper:
    """A board that is served on paper: it does at once what it is asked for."""

    def __init__(self, served, _tracker, changed):
        self.served, self.changed = served, changed
        self.state, self.fault, self.session_since = "connecting", None, None
        self.address, self.key, self.wanted = ("127.0.0.1", 1), None, served.key
        self.quiet, self.cuts, self.stopped, self.obeys = False, 0, False, True

    def start(self):
        self.become("ready")

    def become(self, state, fault=None):
        self.state, self.fault = state, fault
        self.key = self.wanted if state == "ready" else None
        threading.Thread(target=self.changed, daemon=True).start()

    def offer(self, key, *, quiet=False):
        self.wanted, self.quiet = key, quiet
        if self.obeys and self.state == "ready":
            self.key = key

    def rest(self, *, quiet):
        self.quiet = quiet

    @property
    def settled(self):
        return self.state == "ready" and self.key == self.wanted

    def cut(self):
        self.cuts += 1
        self.session_since = None

    def celsius(self):
        return 41.5

    def stop(self):
        self.stopped = True

    def join(self, timeout):
        assert timeout <= desks._JOIN_S


class PaperTracker:
    address, port = ("127.0.0.1", 9190), 1


@pytest.fixture
def desk(monkeypatch):
    monkeypatch.setattr(desks, "KeptBoard", Paper)
    found = Desk(PaperTracker())
    for name, kind in {"a": "rpi4", "b": "rpi4", "c": "pynq"}.items():
        found.add(served(name, kind))
    return found


def served(name, kind, **more):
    host = more.get("host", name)
    return Served(name, kind, kind, host, "~/store", emulated=False, program=PROGRAM, ssh=SshOptions())


def board(desk, name) -> Paper:
    return desk._places[name].board


def states(desk) -> dict[str, str]:
    return {one["name"]: one["state"] for one in desk.status()["boards"]}


@contextlib.contextmanager
def leased(desk, kind="rpi4", names=(), who="me", wait=0.0):
    with desk.lease(kind, names, who, wait) as given:
        yield {one["name"]: one["key"] for one in given["boards"]}


# --- leases ---


def test_a_lease_has_all_free_boards_of_a_type_under_keys_of_its_own(desk):
    with leased(desk) as keys:
        assert keys.keys() == {"a", "b"}
        assert {name: board(desk, name).key for name in keys} == keys
        assert len(set(keys.values())) == 2
        assert all(len(key) > 32 for key in keys.values())
        assert states(desk) == {"a": "leased", "b": "leased", "c": "free"}
    assert states(desk) == {"a": "free", "b": "free", "c": "free"}
    assert board(desk, "a").key == "rpi4"


def test_the_end_of_a_lease_ends_what_its_client_left_running(desk):
    with leased(desk):
        board(desk, "a").session_since = time.time()
    assert board(desk, "a").cuts == 1
    assert states(desk)["a"] == "free"


def test_a_leased_board_is_given_to_nobody_else(desk):
    with leased(desk, who="me@here pid 7: tune"):
        with pytest.raises(DeviceError, match="no rpi4 is free") as caught, leased(desk):
            pass
        assert "a is leased by me@here pid 7: tune" in caught.value.details
        with leased(desk, "pynq") as keys:
            assert keys.keys() == {"c"}


def test_named_boards_are_leased_all_or_none(desk):
    with leased(desk, "", ["a"]):
        with pytest.raises(DeviceError, match="are not free") as caught, leased(desk, "", ["a", "b"]):
            pass
        assert "a is leased" in caught.value.details
        assert "b is" not in caught.value.details
        assert states(desk)["b"] == "free"


def test_an_unknown_board_or_type(desk):
    with pytest.raises(InputError, match="no board 'aa'") as caught, leased(desk, "", ["aa"]):
        pass
    assert "a, b, c" in caught.value.details
    with pytest.raises(DeviceError, match="no riscv"), leased(desk, "riscv"):
        pass


def test_a_lease_waits_for_boards_that_come_back(desk):
    board(desk, "a").become("lost", DeviceError("gone"))
    board(desk, "b").become("lost", DeviceError("gone"))
    threading.Timer(0.2, board(desk, "b").become, ["ready"]).start()
    with leased(desk, wait=10) as keys:
        assert keys.keys() == {"b"}
    with pytest.raises(DeviceError) as caught, leased(desk, "", ["a"], wait=0.1):
        pass
    assert "a: gone" in caught.value.details


def test_a_lease_waits_for_boards_that_were_just_given_back(desk):
    slow = board(desk, "b")
    with leased(desk):
        slow.obeys = False
    assert not slow.settled

    def recover() -> None:
        slow.obeys = True
        slow.become("ready")

    threading.Timer(0.2, recover).start()
    with leased(desk, wait=10) as keys:
        assert keys.keys() == {"a", "b"}


def test_a_board_with_a_client_that_has_no_lease_is_not_free(desk):
    board(desk, "a").session_since = time.time()
    assert states(desk)["a"] == "busy"
    with leased(desk) as keys:
        assert keys.keys() == {"b"}
    with pytest.raises(DeviceError, match="without a lease"):
        desk.lock("a", "me", 60)


def test_a_board_that_is_lost_keeps_its_key_for_its_client(desk):
    with leased(desk) as keys:
        board(desk, "a").become("lost", DeviceError("gone"))
        assert states(desk)["a"] == "lost"
        board(desk, "a").become("ready")
        assert board(desk, "a").key == keys["a"]
        assert states(desk)["a"] == "leased"


def test_a_server_that_does_not_answer(desk, monkeypatch):
    monkeypatch.setattr(desks, "_SETTLE_S", 0.1)
    board(desk, "c").obeys = False
    with pytest.raises(DeviceError, match="no board server answers"), leased(desk, "pynq"):
        pass
    assert board(desk, "c").wanted == "pynq"
    board(desk, "b").obeys = False
    with leased(desk) as keys:  # it may be well again at any moment
        assert keys.keys() == {"a", "b"}


def test_reports(desk):
    with leased(desk):
        trial = {"board": "a", "what": "conv", "ok": True, "seconds": 1.5, "celsius": 55.0}
        desk.report(["a", "b"], {"trial": trial})
        desk.report(["a", "b"], {"state": {"board": "b", "state": "quarantined", "failures": 3}})
        desk.report(["a", "b"], {"trial": {**trial, "board": "c"}})
        desk.report(["a", "b"], {"else": 1})
        found = {one["name"]: one for one in desk.status()["boards"]}
        assert found["a"]["trial"]["what"] == "conv"
        assert (found["a"]["celsius"], found["c"]["celsius"], found["c"]["trial"]) == (55.0, 41.5, None)
        assert (found["b"]["state"], found["b"]["failures"]) == ("quarantined", 3)
        assert (board(desk, "a").quiet, board(desk, "b").quiet) == (True, False)
        desk.report(["a", "b"], {"state": {"board": "b", "state": "ok", "failures": 0}})
        assert states(desk)["b"] == "leased"
        assert board(desk, "b").quiet


# --- locks ---


def test_a_locked_board_is_withdrawn_until_it_is_released(desk):
    desk.lock("a", "me", 60)
    assert board(desk, "a").key is None
    assert states(desk)["a"] == "locked"
    with leased(desk) as keys:
        assert keys.keys() == {"b"}
    with pytest.raises(DeviceError, match="a is locked by me until") as caught:
        desk.lock("a", "you", 60)
    assert "farm release a" in caught.value.hint
    desk.release("a")
    assert board(desk, "a").key == "rpi4"
    desk.release("a")
    assert states(desk)["a"] == "free"


def test_a_lock_ends_with_its_time(desk):
    desk.lock("a", "me", 60)
    desk.lock("b", "me", 0.05)
    time.sleep(0.1)
    desk.expire()
    assert states(desk) == {"a": "locked", "b": "free", "c": "free"}


def test_a_leased_board_is_neither_locked_nor_released(desk):
    with leased(desk, who="me: tune"):
        with pytest.raises(DeviceError, match="a is leased by me: tune"):
            desk.lock("a", "you", 60)
        with pytest.raises(DeviceError, match="a is leased by me: tune"):
            desk.release("a")
        assert states(desk)["a"] == "leased"


def test_a_lost_board_can_be_locked_for_its_repair(desk):
    board(desk, "a").become("lost", DeviceError("gone"))
    desk.lock("a", "me", 60)
    board(desk, "a").become("ready")
    assert states(desk)["a"] == "locked"
    assert board(desk, "a").key is None


# --- boards ---


def test_adding_a_board_again(desk):
    first = board(desk, "a")
    desk.add(served("a", "rpi4"))
    assert board(desk, "a") is first
    with leased(desk), pytest.raises(DeviceError, match="a is leased"):
        desk.add(served("a", "rpi4", host="elsewhere"))
    desk.add(served("a", "rpi4", host="elsewhere"))
    assert first.stopped
    assert board(desk, "a").served.host == "elsewhere"


def test_removing_boards(desk):
    gone = board(desk, "a")
    with leased(desk):
        desk.remove(["a", "nobody"])
        assert gone.stopped
        assert desk.names() == ("b", "c")
    assert states(desk) == {"b": "free", "c": "free"}


def test_what_is_told_while_boards_come_up(desk):
    board(desk, "b").become("connecting")
    board(desk, "c").become("lost", DeviceError("no route"))
    threading.Timer(0.2, board(desk, "b").become, ["ready"]).start()
    told = []
    desk.await_settled(["a", "b", "c"], 10, told.append)
    assert told == ["a: serves", "c: no route", "b: serves"]
    board(desk, "b").become("connecting")
    desk.await_settled(["b"], 0.05, told.append)
    assert len(told) == 3


def test_a_tracker_that_does_not_answer_is_told(desk):
    assert "does not answer" in desk.status()["fault"]["message"]
