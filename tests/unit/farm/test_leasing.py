"""Who waits, who shares, and how leases end: on paper."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.paper_boards import Paper, board, served, states
from toolchain.errors import BusyError, DeviceError
from toolchain.farm import lease_queue, leasing
from toolchain.farm.grants import Client
from toolchain.farm.lease_queue import LeaseRequest
from toolchain.farm.pool import Pool


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr("toolchain.farm.pool.ServedBoard", Paper)
    monkeypatch.setattr(leasing, "_REPORT_S", 0.0)
    new_pool = Pool()
    for name in "abcd":
        new_pool.add(served(name, "rpi4"))
    return new_pool


class Run:
    """A client that shares: it gives back what others wait for, unless it is told to be slow."""

    def __init__(self, pool, who, *, limit=0, line=0.0, names=(), shares=True, obeys=True):
        self.pool, self.obeys, self.line = pool, obeys, line
        self.ask = LeaseRequest(Client(who, 1), "" if names else "rpi4", tuple(names), limit, shares)
        self.has: set[str] = set()
        self.told, self.said = [], []
        self.fault = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            with self.pool.leases.lease(self.ask, 0.0, (), self.line, self.told.append) as boards:
                self.has |= {board["name"] for board in boards}
                while (message := self.ask.outbox.get()) is not None:
                    self.said.append(message)
                    self._hear(message)
        except (BusyError, DeviceError) as fault:
            self.fault = fault

    def _hear(self, message):
        if "joined" in message:
            self.has.add(message["joined"]["name"])
        elif "give" in message and self.obeys:
            self.give(message["give"])
        elif "lost" in message:
            self.has.discard(message["lost"]["board"])

    def give(self, name, *, for_good=False):
        self.has.discard(name)
        self.pool.leases.handle(self.ask, {"given": {"board": name, "for_good": for_good}})

    def end(self):
        self.pool.leases.end(self.ask, "done")
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def run(pool):
    runs, stop = [], threading.Event()

    def make(who, **more):
        runs.append(Run(pool, who, **more))
        return runs[-1]

    def tick():
        while not stop.wait(0.02):
            pool.expire()

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    yield make
    stop.set()
    ticking.join()
    for client in runs:
        client.end()
    assert set(states(pool).values()) == {"free"}


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def has(*each):
    return lambda: (
        ["".join(sorted(client.has)) for client, _ in zip(each[::2], each[::2], strict=True)] == list(each[1::2])
    )


# --- how many ---


def test_others_are_left_free(run, pool):
    mine = run("me", limit=2)
    until(has(mine, "ab"))
    yours = run("you")
    until(has(mine, "ab", yours, "cd"))


def test_boards_that_become_free_join(run, pool):
    mine, yours = run("me", limit=3), run("you", limit=1)
    until(lambda: len(mine.has) == 3 and len(yours.has) == 1)
    yours.end()
    assert len(mine.has) == 3  # as many as it wants
    theirs = run("them")
    until(lambda: len(theirs.has) == 1)
    mine.end()
    until(has(theirs, "abcd"))


def test_a_new_device_and_one_that_comes_back_join(run, pool):
    board(pool, "a").become("lost", DeviceError("gone"))
    mine = run("me", limit=5)
    until(has(mine, "bcd"))
    pool.add(served("e", "rpi4"))
    pool.add(served("p", "pynq"))
    until(has(mine, "bcde"))
    board(pool, "a").become("ready")
    until(has(mine, "abcde"))


def test_a_board_that_others_are_at_work_on_joins_when_they_are_done(run, pool, monkeypatch):
    monkeypatch.setattr(leasing, "_REST_S", 0.05)
    board(pool, "b").busy = True
    mine = run("me")
    until(has(mine, "acd"))
    board(pool, "b").free()
    until(has(mine, "abcd"))


# --- shares ---


def test_who_waits_gets_a_share(run, pool):
    mine = run("me")
    until(has(mine, "abcd"))
    yours = run("you", line=60)
    until(has(mine, "ab", yours, "cd"))
    theirs = run("them", line=60)
    until(lambda: sorted(len(each.has) for each in (mine, yours, theirs)) == [1, 1, 2])
    yours.end()
    until(lambda: sorted(len(each.has) for each in (mine, theirs)) == [2, 2])


def test_the_last_board_is_nobodys_but_its_owners(run, pool):
    runs = [run(str(number), line=60) for number in range(4)]
    until(lambda: all(len(client.has) == 1 for client in runs))
    late = run("late", line=60)
    until(lambda: late.told)
    assert not late.has
    runs[0].end()
    until(lambda: len(late.has) == 1)


def test_a_board_is_kept_until_its_trial_has_ended(run, pool):
    mine = run("me", obeys=False)
    until(has(mine, "abcd"))
    yours = run("you", line=60)
    until(
        lambda: (
            [message for message in mine.said if "give" in message] == [{"give": "d"}, {"give": "c"}]
            or len(mine.said) > 1
        )
    )
    assert not yours.has
    mine.give("d")
    until(lambda: yours.has >= {"d"})


def test_who_names_a_board_gets_it_from_who_has_many(run, pool):
    mine = run("me")
    until(has(mine, "abcd"))
    yours = run("you", names="b", line=60, shares=False)
    until(has(mine, "acd", yours, "b"))


def test_a_board_that_does_not_fit_does_not_come_back(run, pool):
    mine = run("me")
    until(has(mine, "abcd"))
    mine.give("b", for_good=True)
    yours = run("you")
    until(has(mine, "acd", yours, "b"))


# --- the line ---


def test_those_who_wait_are_told_for_whom_and_get_it_in_order(run, pool):
    first = run("me: tune mlp", shares=False)
    until(has(first, "abcd"))
    waiting = []
    for number in range(3):
        waiting.append(run(f"waiter {number}", line=60, shares=False, names="a"))
        until(lambda: waiting[-1].told)
    assert [entry["who"] for entry in pool.status()["queue"]] == ["waiter 0", "waiter 1", "waiter 2"]
    message = waiting[2].told[-1]["wait"]["message"]
    assert message == "a is not free: me: tune mlp; place 3 of 3 in the queue"
    assert waiting[2].told[-1]["wait"]["owner"] == "me: tune mlp"
    first.end()
    for number, client in enumerate(waiting):
        until(lambda client=client: client.has)
        assert [len(other.has) for other in waiting[number + 1 :]] == [0] * (2 - number)
        client.end()
    assert pool.status()["queue"] == []


def test_nobody_is_waited_for_for_ever(run, pool):
    first = run("me: tune mlp", shares=False)
    until(has(first, "abcd"))
    late = run("you", line=0.2)
    until(lambda: late.fault)
    assert (type(late.fault), late.fault.owner) == (BusyError, "me: tune mlp")
    assert pool.status()["queue"] == []


def test_who_is_gone_stands_in_no_line(run, pool):
    first = run("me", shares=False)
    until(has(first, "abcd"))
    late = run("you", line=600)
    until(lambda: pool.status()["queue"])
    late.end()
    assert pool.status()["queue"] == []
    assert "has ended" in late.fault.message


def test_a_free_board_goes_to_who_asked_before(pool):
    pool.queue.requests.append(LeaseRequest(Client("ann: tune mlp"), "", ("a",), patient=True))
    with (
        pytest.raises(BusyError, match="a is reserved for ann: tune mlp"),
        pool.leases.lease(LeaseRequest(Client("me"), "", ("a",)), 0.0),
    ):
        pass


# --- how a lease ends ---


def test_a_client_without_a_sign_of_life_loses_its_boards(run, pool, monkeypatch):
    mine = run("me", limit=2)
    until(has(mine, "ab"))
    yours = run("you", limit=2)
    until(has(mine, "ab", yours, "cd"))
    key = pool._slots["a"].key
    assert pool.status()["boards"][0]["hold"]["heard_s"] < 30
    monkeypatch.setattr(lease_queue, "EXPIRE_S", 2.0)
    while not mine.ask.end_reason:
        pool.leases.handle(yours.ask, {"alive": True})
        time.sleep(0.01)
    mine.thread.join(30)
    assert mine.said[-1]["over"]["kind"] == "BusyError"
    assert "gave no sign of life" in mine.said[-1]["over"]["message"]
    assert (board(pool, "a").cuts, board(pool, "a").key, yours.ask.end_reason) == (1, None, None)
    with pytest.raises(BusyError, match="gave no sign of life"):
        pool.session("a", key, 0.0)
    pool.leases.handle(yours.ask, {"alive": True})


def test_a_stopped_client_in_the_line_loses_its_place(run, pool, monkeypatch):
    first = run("me", shares=False)
    until(has(first, "abcd"))
    late = run("you", line=600)
    until(lambda: pool.status()["queue"])
    monkeypatch.setattr(lease_queue, "EXPIRE_S", 0.5)
    while not late.fault:
        pool.leases.handle(first.ask, {"alive": True})
        time.sleep(0.01)
    assert first.ask.end_reason is None


def test_a_released_board_is_gone_for_this_lease_alone(run, pool):
    mine = run("me")
    until(has(mine, "abcd"))
    pool.release("a")
    until(has(mine, "bcd"))
    fault = mine.said[-1]["lost"]["fault"]
    assert "the lease of a was ended by its owner" in fault["message"]
    yours = run("you")
    until(has(mine, "bcd", yours, "a"))


def test_a_board_that_is_taken_back_before_its_lease_began(run, pool):
    board(pool, "a").obeys = False
    mine = run("me", names="a")
    until(lambda: mine.ask.boards)
    pool.release("a")
    until(lambda: mine.fault)
    assert "taken back before the lease began" in mine.fault.message


def test_a_board_that_is_served_no_longer_comes_back_with_the_next_up(run, pool):
    mine = run("me")
    until(has(mine, "abcd"))
    pool.remove(["a"])
    until(has(mine, "bcd"))
    assert "the farm no longer serves" in mine.said[-1]["lost"]["fault"]["message"]
    pool.add(served("a", "rpi4"))
    until(has(mine, "abcd"))


def test_inside_of_what_an_ancestor_has(pool):
    """What somebody reports who uses what another process has counts, and its end gives nothing back."""
    outer, inner = LeaseRequest(Client("me", 7), "rpi4", ("a",)), LeaseRequest(Client("me", 8), "rpi4")
    with pool.leases.lease(outer, 0.0):
        with pool.leases.lease(inner, 0.0, (7,)) as boards:
            pool.leases.handle(inner, {"state": {"board": "a", "state": "quarantined", "failures": 3}})
            assert [board["name"] for board in boards] == ["a"]
        assert states(pool) == {"a": "quarantined", "b": "free", "c": "free", "d": "free"}


# --- many ---


def test_status_of_a_hundred_boards(run, pool):
    for number in range(100):
        pool.add(served(f"more{number}", "rpi4"))
    mine = run("me")
    until(lambda: len(mine.has) == 104)
    yours = run("you", line=60)
    until(lambda: len(yours.has) == 52)
    began = time.monotonic()
    assert len(pool.status()["boards"]) == 104
    assert time.monotonic() - began < 1
