"""A lease from its client's side, with a daemon that says what a test wants."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from toolchain.device.waiting import Patience
from toolchain.errors import BusyError, DeviceError, InputError
from toolchain.farm import leases, protocol
from toolchain.farm.leases import Lease, LeasedBoard, lease
from toolchain.farm.protocol import Link, fault_message

BOARD = {"name": "a", "board": "rpi4", "emulated": False, "key": "5e", "within": "t"}
B, C = {**BOARD, "name": "b"}, {**BOARD, "name": "c"}
WHY = fault_message(BusyError("the lease of a was ended by its owner"))


class Follower:
    def __init__(self):
        self.heard = []

    def joined(self, board):
        self.heard.append(("joined", board.name))

    def recalled(self, name):
        self.heard.append(("wanted back", name))

    def lost(self, name, why):
        self.heard.append(("lost", name, why.message))


@pytest.fixture
def daemon(monkeypatch):
    """The daemon's end of each link that is opened, in turn."""
    ends: list[Link] = []

    def connected(_folder):
        here, there = socket.socketpair()
        ends.append(Link(there))
        return Link(here)

    monkeypatch.setattr(leases.client, "open_link", connected)
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def lease_and_daemon(daemon):
    """A lease of `a` and `b`, and the daemon's end of it."""
    here, there = socket.socketpair()
    end = Link(there)
    client_lease = Lease(Link(here), {"boards": [BOARD, B]}, None)
    yield client_lease, end
    end.close()
    client_lease.close()


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def said(end: Link, kind: str):
    """Return the next word of a kind that the client says."""
    while (message := end.receive(30)) is not None:
        if kind in message:
            return message[kind]
    raise AssertionError(f"no {kind}")


def test_it_gives_signs_of_life(monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.02)
    here, there = socket.socketpair()
    with Link(there) as end, Lease(Link(here), {"boards": [BOARD]}, None):
        assert [said(end, "alive") for _ in range(3)] == [True] * 3
        threading.Timer(0.05, end.end_sending).start()  # which is how a daemon ends it


def test_its_boards_come_and_go(lease_and_daemon):
    client_lease, end = lease_and_daemon
    follower = Follower()
    end.send({"joined": C})
    until(lambda: len(client_lease.boards) == 3)
    client_lease.follow(follower)  # hears what was before it, too
    end.send({"give": "b"})
    end.send({"lost": {"board": "a", "fault": WHY}})
    until(lambda: len(follower.heard) == 3)
    assert follower.heard == [("joined", "c"), ("wanted back", "b"), ("lost", "a", WHY["message"])]
    client_lease.give("b", for_good=True)
    assert said(end, "given") == {"board": "b", "for_good": True}
    assert client_lease.boards == (LeasedBoard(**C),)
    with pytest.raises(BusyError, match="ended by its owner"):
        client_lease.dial("a", 1)
    with pytest.raises(InputError, match="no board 'b'"):
        client_lease.dial("b", 1)
    end.send({"joined": BOARD})  # its owner gave it back
    until(lambda: len(client_lease.boards) == 2)
    client_lease.check("a")


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ({"over": fault_message(BusyError("the lease is over: it was stopped"))}, "it was stopped"),
        (None, "daemon ended"),
    ],
)
def test_a_lease_that_is_over_is_known_at_once(lease_and_daemon, last, message):
    client_lease, end = lease_and_daemon
    follower = Follower()
    client_lease.follow(follower)
    if last:
        end.send(last)
    end.close()
    until(lambda: len(follower.heard) == 2)
    assert not client_lease.alive
    assert [event[:2] for event in follower.heard] == [("lost", "a"), ("lost", "b")]
    began = time.monotonic()
    with pytest.raises(BusyError, match=message):
        client_lease.dial("a", 60)
    assert time.monotonic() - began < 5


def test_its_own_end_is_no_loss(lease_and_daemon):
    client_lease, end = lease_and_daemon
    follower = Follower()
    client_lease.follow(follower)
    closing = threading.Thread(target=client_lease.close)
    closing.start()
    while end.receive(30) is not None:
        pass
    end.close()
    closing.join(30)
    assert (closing.is_alive(), follower.heard) == (False, [])


def answering(daemon, *messages):
    """Answer the next lease with messages, one after the other; return what was asked."""
    requests = []

    def answer():
        until(lambda: daemon)
        requests.append(daemon[0].receive(30))
        for message in messages:
            daemon[0].send(message)
        daemon[0].end_sending()

    threading.Thread(target=answer, daemon=True).start()
    return requests


def wait(owner: str):
    return {"wait": fault_message(BusyError(f"a is not free: {owner}; place 1 of 1 in the queue", owner=owner))}


def test_the_line_is_stood_in_as_long_as_there_is_patience(daemon):
    lines: list[str] = []
    patience = Patience(60, lines.append)
    requests = answering(daemon, wait("ann"), wait("ann"), wait("bob"), {"ok": {"boards": [BOARD]}})
    with lease("rpi4", limit=2, shares=True, patience=patience) as leased:
        assert [board.name for board in leased.boards] == ["a"]
        daemon[0].close()
    assert (requests[0]["line"], requests[0]["most"], requests[0]["shares"]) == (60, 2, True)
    assert [busy.owner for busy in patience.waited] == ["ann", "bob"]
    assert [line.partition("; waiting")[0] for line in lines] == [
        "a is not free: ann; place 1 of 1 in the queue",
        "a is not free: bob; place 1 of 1 in the queue",
    ]


def test_the_end_of_the_line(daemon):
    answering(daemon, wait("ann"), {"error": fault_message(BusyError("a is not free", owner="ann"))})
    with pytest.raises(BusyError, match="a is not free"):
        lease("rpi4", patience=Patience(60))


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_a_daemon_that_ends_before_it_answers(daemon, patience):
    answering(daemon)
    with pytest.raises(DeviceError, match="daemon ended"):
        lease("rpi4", patience=Patience(patience))


def test_a_daemon_that_says_nothing(daemon, monkeypatch):
    monkeypatch.setattr(leases, "_GRACE_S", 0.1)
    with pytest.raises(DeviceError, match="does not answer"):
        lease("rpi4", wait=0.0)


def test_what_ended_a_lease_meanwhile_is_told_in_place_of_what_the_daemon_says(lease_and_daemon, daemon):
    """Its word about the key may be faster than the one about the lease."""
    client_lease, end = lease_and_daemon

    def refuse():
        until(lambda: daemon)
        daemon[0].receive(30)
        end.send({"lost": {"board": "a", "fault": WHY}})
        until(lambda: len(client_lease.boards) == 1)
        daemon[0].send({"error": fault_message(DeviceError("a is not leased under this key"))})

    threading.Thread(target=refuse, daemon=True).start()
    with pytest.raises(BusyError, match="ended by its owner"):
        client_lease.dial("a", 5)


def test_expiry_leaves_room_for_a_few_signs_of_life():
    assert protocol.EXPIRE_S >= 5 * protocol.HEARTBEAT_S
    with contextlib.closing(socket.socket()) as sock:
        sock.close()
        assert not Link(sock).alive
