"""Who gets which board, without a board: leases, locks and what is told about them."""

from __future__ import annotations

import contextlib
import json
import threading
import time

import pytest

from tests.support.paper_boards import BUSY, Paper, board, served, states
from toolchain.device.lock import Owner
from toolchain.errors import BusyError, DeviceError, InputError
from toolchain.farm import leasing
from toolchain.farm.grants import Client
from toolchain.farm.lease_queue import LeaseRequest
from toolchain.farm.pool import Pool
from toolchain.farm.served_board import Claim


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr("toolchain.farm.pool.ServedBoard", Paper)
    new_pool = Pool()
    for name, kind in {"a": "rpi4", "b": "rpi4", "c": "pynq"}.items():
        new_pool.add(served(name, kind))
    return new_pool


@contextlib.contextmanager
def leased(pool, kind="rpi4", names=(), who="me", wait=0.0, above=()):
    with pool.leases.lease(LeaseRequest(Client(who, 7), kind, tuple(names)), wait, above) as boards:
        yield {entry["name"]: entry["key"] for entry in boards}


# --- leases ---


def test_a_lease_has_all_free_boards_of_a_type_under_keys_of_its_own(pool):
    with leased(pool) as keys:
        assert keys.keys() == {"a", "b"}
        assert {name: board(pool, name).key for name in keys} == keys
        assert len(set(keys.values())) == 2
        assert all(len(bytes.fromhex(key)) == 32 for key in keys.values())
        assert states(pool) == {"a": "leased", "b": "leased", "c": "free"}
    assert states(pool) == {"a": "free", "b": "free", "c": "free"}
    assert board(pool, "a").key is None
    with leased(pool) as others:
        assert not set(others.values()) & set(keys.values())


def test_the_end_of_a_lease_ends_what_its_client_left_running(pool):
    with leased(pool):
        board(pool, "a").session_since = time.time()
    assert board(pool, "a").cuts == 1
    assert states(pool)["a"] == "free"


def test_a_leased_board_is_given_to_nobody_else(pool):
    with leased(pool, who="me@here pid 7: tune"):
        with pytest.raises(DeviceError, match="no rpi4 is free") as caught, leased(pool):
            pass
        assert "a is leased by me@here pid 7: tune" in caught.value.details
        with leased(pool, "pynq") as keys:
            assert keys.keys() == {"c"}


def test_named_boards_are_leased_all_or_none(pool):
    with leased(pool, "", ["a"]):
        with pytest.raises(DeviceError, match="are not free") as caught, leased(pool, "", ["a", "b"]):
            pass
        assert "a is leased" in caught.value.details
        assert "b is" not in caught.value.details
        assert states(pool)["b"] == "free"


def test_an_unknown_board_or_type(pool):
    with pytest.raises(InputError, match="does not serve board 'aa'") as caught, leased(pool, "", ["aa"]):
        pass
    assert "a, b, c" in caught.value.details
    with pytest.raises(DeviceError, match="no s390"), leased(pool, "s390"):
        pass


def test_a_lease_waits_for_boards_that_come_back(pool):
    board(pool, "a").become("lost", DeviceError("gone"))
    board(pool, "b").become("lost", DeviceError("gone"))
    threading.Timer(0.2, board(pool, "b").become, ["ready"]).start()
    with leased(pool, wait=10) as keys:
        assert keys.keys() == {"b"}
    with pytest.raises(DeviceError) as caught, leased(pool, "", ["a"], wait=0.1):
        pass
    assert "a: gone" in caught.value.details


def test_a_lease_waits_for_its_only_board_when_it_is_lost_meanwhile(pool):
    last = board(pool, "c")
    last.obeys = False
    threading.Timer(0.1, last.become, ["lost", DeviceError("gone")]).start()

    def recover() -> None:
        last.obeys = True
        last.become("ready")

    threading.Timer(0.3, recover).start()
    with leased(pool, "pynq", wait=10) as keys:
        assert keys.keys() == {"c"}


def test_a_lease_waits_for_boards_that_were_just_given_back(pool):
    slow = board(pool, "b")
    with leased(pool):
        slow.obeys = False
    assert not slow.settled

    def recover() -> None:
        slow.obeys = True
        slow.become("ready")

    threading.Timer(0.2, recover).start()
    with leased(pool, wait=10) as keys:
        assert keys.keys() == {"a", "b"}


def test_a_board_whose_last_session_goes_on_is_not_free(pool):
    board(pool, "a").session_since = time.time()
    assert states(pool)["a"] == "busy"
    with leased(pool) as keys:
        assert keys.keys() == {"b"}
    with pytest.raises(DeviceError, match="last session on a has not ended"):
        pool.lock("a", Client("me"), 60)


def test_a_board_that_is_lost_keeps_its_key_for_its_client(pool):
    with leased(pool) as keys:
        board(pool, "a").become("lost", DeviceError("gone"))
        assert states(pool)["a"] == "lost"
        board(pool, "a").become("ready")
        assert board(pool, "a").key == keys["a"]
        assert states(pool)["a"] == "leased"


def test_a_server_that_does_not_answer(pool, monkeypatch):
    monkeypatch.setattr(leasing, "_SETTLE_S", 0.1)
    board(pool, "c").obeys = False
    with pytest.raises(DeviceError, match="no board server answers"), leased(pool, "pynq"):
        pass
    assert board(pool, "c").wanted == Claim()
    board(pool, "b").obeys = False
    with leased(pool) as keys:  # it may be well again at any moment
        assert keys.keys() == {"a", "b"}


def test_reports(pool):
    ask = LeaseRequest(Client("me"), "rpi4")
    with pool.leases.lease(ask, 0.0):
        trial = {"board": "a", "what": "conv", "ok": True, "seconds": 1.5, "celsius": 55.0}
        pool.leases.handle(ask, {"trial": trial})
        pool.leases.handle(ask, {"state": {"board": "b", "state": "quarantined", "failures": 3}})
        pool.leases.handle(ask, {"trial": {**trial, "board": "c"}})
        pool.leases.handle(ask, {"else": 1})
        boards = {board["name"]: board for board in pool.status()["boards"]}
        assert boards["a"]["trial"]["what"] == "conv"
        assert (boards["a"]["celsius"], boards["c"]["celsius"], boards["c"]["trial"]) == (55.0, 41.5, None)
        assert (boards["b"]["state"], boards["b"]["failures"]) == ("quarantined", 3)
        assert (board(pool, "a").quiet, board(pool, "b").quiet) == (True, False)
        pool.leases.handle(ask, {"state": {"board": "b", "state": "ok", "failures": 0}})
        assert states(pool)["b"] == "leased"
        assert board(pool, "b").quiet


def test_what_a_process_has_is_also_for_those_that_it_starts(pool):
    """As under `farm lock NAME -- CMD`: what CMD leases ends with CMD, what the command has does not."""
    with leased(pool, names=["a"]) as keys:
        for names in ([], ["a"]):
            with leased(pool, names=names, above=(9, 7, 1)) as same:
                assert same == keys
        assert states(pool) == {"a": "leased", "b": "free", "c": "free"}
        assert board(pool, "a").key == keys["a"]
        with pytest.raises(DeviceError, match="are not free"), leased(pool, names=["a", "b"], above=(7,)):
            pass
        with leased(pool, above=(9, 1)) as others:
            assert others.keys() == {"b"}


# --- others at work on the device itself ---


def test_a_lease_takes_the_locks_of_its_devices_in_the_name_of_its_client(pool):
    with leased(pool, names=["a"], who="me@here pid 7: tune mlp"):
        claim = board(pool, "a").wanted
        assert claim.owner == Owner("me@here pid 7", "tune mlp", "toolchain farm release a")
        assert claim.within
    assert board(pool, "a").wanted == Claim()
    pool.shared = False
    pool.add(served("d", "rpi4"))
    with leased(pool, names=["d"]):
        assert board(pool, "d").wanted.owner.end == ""


def test_a_lease_does_without_boards_that_others_are_at_work_on(pool):
    board(pool, "a").busy = True
    with leased(pool, wait=10) as keys:
        assert keys.keys() == {"b"}
        assert board(pool, "a").wanted == Claim()
    assert states(pool) == {"a": "free", "b": "free", "c": "free"}


@pytest.mark.parametrize(("kind", "names"), [("pynq", ()), ("", ["c"]), ("", ["a", "c"])])
def test_a_lease_says_who_is_at_work_on_its_boards(pool, kind, names):
    board(pool, "c").busy = True
    with pytest.raises(BusyError, match="in use by ann@desk: deploy"), leased(pool, kind, names, wait=0.05):
        pass
    assert states(pool) == {"a": "free", "b": "free", "c": "free"}


def test_a_lease_waits_for_who_is_at_work_on_its_board(pool):
    board(pool, "c").busy = True
    threading.Timer(0.2, board(pool, "c").free).start()
    with leased(pool, "pynq", wait=30) as keys:
        assert keys.keys() == {"c"}


def test_a_board_that_becomes_free_late_has_time_to_get_its_key(pool, monkeypatch):
    monkeypatch.setattr(leasing, "_SETTLE_S", 0.3)
    slow = board(pool, "c")
    slow.busy, slow.obeys = True, False

    def obey() -> None:
        slow.obeys = True
        slow.become("ready")

    threading.Timer(0.5, slow.free).start()
    threading.Timer(0.6, obey).start()
    with leased(pool, "pynq", wait=30) as keys:
        assert keys.keys() == {"c"}


def test_a_board_that_cannot_be_served_because_others_are_at_work_on_it(pool):
    board(pool, "c").become("lost", BUSY)
    assert states(pool)["c"] == "busy"
    for act in (lambda: pool.lock("c", Client("me"), 60), leased(pool, "pynq").__enter__):
        with pytest.raises(BusyError, match="in use by ann@desk: deploy"):
            act()


def test_a_lock_that_was_lost_to_others(pool):
    with leased(pool, "pynq") as keys:
        board(pool, "c").busy, board(pool, "c").fault = True, BUSY
        with pytest.raises(DeviceError, match="the lock of c was lost") as caught:
            pool.session("c", keys["c"], 0.05)
        assert not isinstance(caught.value, BusyError)  # it may be had again
        assert "ann@desk" in caught.value.details


# --- sessions ---


def test_a_session_is_for_the_key_of_the_lease_alone(pool):
    with leased(pool) as keys:
        served_board, stream = pool.session("a", keys["a"], 0.0)
        stream.close()
        assert served_board is board(pool, "a")
        for key in (keys["b"], keys["a"][:-1], "", "ü", "rpi4"):
            with pytest.raises(DeviceError, match="not leased under this key") as caught:
                pool.session("a", key, 0.0)
            assert keys["a"] not in str(caught.value.details)
    for key in (keys["a"], ""):
        with pytest.raises(DeviceError, match="not leased under this key"):
            pool.session("a", key, 0.0)
    with pytest.raises(InputError, match="does not serve board 'aa'"):
        pool.session("aa", "", 0.0)


def test_a_session_waits_for_a_board_that_comes_back(pool):
    with leased(pool) as keys:
        board(pool, "a").become("lost", DeviceError("gone"))
        with pytest.raises(DeviceError, match="gone"):
            pool.session("a", keys["a"], 0.1)
        threading.Timer(0.2, board(pool, "a").become, ["ready"]).start()
        pool.session("a", keys["a"], 10)[1].close()


# --- what its owner takes back ---


def test_a_released_lease_does_not_come_back(pool):
    with leased(pool, who="me: tune") as keys:
        board(pool, "a").session_since = time.time()
        assert pool.release("a")["who"] == "me: tune"
        assert (board(pool, "a").cuts, board(pool, "a").key) == (1, None)
        assert states(pool) == {"a": "free", "b": "leased", "c": "free"}
        with pytest.raises(DeviceError, match="the lease of a was ended by its owner"):
            pool.session("a", keys["a"], 10)
        pool.session("b", keys["b"], 0)[1].close()
        with leased(pool, who="you") as others:
            with pytest.raises(DeviceError, match="ended by its owner"):
                pool.session("a", keys["a"], 10)
            pool.session("a", others["a"], 0)[1].close()
    with pytest.raises(DeviceError, match="not leased under this key"):
        pool.session("a", keys["a"], 0)


def test_the_end_of_a_released_lease_leaves_the_next_one_alone(pool):
    with contextlib.ExitStack() as first:
        released = LeaseRequest(Client("me"), "rpi4", ("a",))
        first.enter_context(pool.leases.lease(released, 0.0))
        pool.release("a")
        with leased(pool, names=["a"], who="you") as keys:
            pool.leases.handle(released, {"state": {"board": "a", "state": "quarantined", "failures": 3}})
            first.close()
            assert states(pool)["a"] == "leased"
            assert board(pool, "a").key == keys["a"]


def test_nothing_that_is_told_is_a_secret(pool):
    ask = LeaseRequest(Client("me"), "")
    with pool.leases.lease(ask, 0.0) as boards:
        pool.release("a")
        texts = json.dumps(pool.status()) + repr(pool) + repr(ask)
        assert len(boards) == 3
        assert not [board["key"] for board in boards if board["key"] in texts]


# --- locks ---


def test_a_locked_board_is_withdrawn_until_it_is_released(pool):
    pool.lock("a", Client("me"), 60)
    assert states(pool)["a"] == "locked"
    with leased(pool) as keys:
        assert keys.keys() == {"b"}
    with pytest.raises(DeviceError, match="a is locked by me until") as caught:
        pool.lock("a", Client("you"), 60)
    assert "farm release a" in caught.value.hint
    assert pool.release("a")["kind"] == "locked"
    assert pool.release("a") is None
    assert states(pool)["a"] == "free"


def test_a_lock_ends_with_its_time(pool):
    pool.lock("a", Client("me"), 60)
    pool.lock("b", Client("me"), 0.05)
    time.sleep(0.1)
    pool.expire()
    assert states(pool) == {"a": "locked", "b": "free", "c": "free"}


def test_a_leased_board_is_not_locked(pool):
    with leased(pool, who="me: tune"):
        with pytest.raises(DeviceError, match="a is leased by me: tune"):
            pool.lock("a", Client("you"), 60)
        assert states(pool)["a"] == "leased"


def test_a_lost_board_can_be_locked_for_its_repair(pool):
    board(pool, "a").become("lost", DeviceError("gone"))
    pool.lock("a", Client("me"), 60)
    board(pool, "a").become("ready")
    assert states(pool)["a"] == "locked"
    assert board(pool, "a").key is None


def test_a_locked_board_is_locked_for_deploys_too(pool):
    pool.lock("a", Client("me@here pid 7"), 60)
    owner = board(pool, "a").wanted.owner
    assert (owner.who, owner.end) == ("me@here pid 7", "toolchain farm release a")
    assert owner.what.startswith("toolchain farm lock until ")
    pool.release("a")
    assert board(pool, "a").wanted == Claim()


def test_a_board_that_others_are_at_work_on_is_not_locked(pool):
    board(pool, "a").busy = True
    with pytest.raises(BusyError, match="in use by ann@desk: deploy"):
        pool.lock("a", Client("me"), 60)
    assert states(pool)["a"] == "free"
    assert board(pool, "a").wanted == Claim()


# --- boards ---


def test_adding_a_board_again(pool):
    first = board(pool, "a")
    pool.add(served("a", "rpi4"))
    assert board(pool, "a") is first
    with leased(pool), pytest.raises(DeviceError, match="a is leased"):
        pool.add(served("a", "rpi4", host="elsewhere"))
    pool.add(served("a", "rpi4", host="elsewhere"))
    assert first.stopped
    assert board(pool, "a").served.host == "elsewhere"


def test_removing_boards(pool):
    gone = board(pool, "a")
    with leased(pool):
        pool.remove(["a", "nobody"])
        assert gone.stopped
        assert pool.names() == ("b", "c")
    assert states(pool) == {"b": "free", "c": "free"}


def test_what_is_told_while_boards_come_up(pool):
    board(pool, "b").become("connecting")
    board(pool, "c").become("lost", DeviceError("no route"))
    threading.Timer(0.2, board(pool, "b").become, ["ready"]).start()
    lines = []
    pool.await_settled(["a", "b", "c"], 10, lines.append)
    assert lines == ["a: serves", "c: no route", "b: serves"]
    board(pool, "b").become("connecting")
    pool.await_settled(["b"], 0.05, lines.append)
    assert len(lines) == 3
