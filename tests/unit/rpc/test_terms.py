"""The time that is left for opening a session, with real sockets."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from toolchain.rpc.handshake import Terms, readable


@pytest.fixture
def socket_pair():
    local, remote = socket.socketpair()
    with local, remote:
        yield local, remote


def test_time_runs_out():
    terms = Terms(0.05)
    assert 0 < terms.left() <= 0.05
    assert not terms.wait(lambda seconds: time.sleep(seconds) or False)
    assert terms.left() <= 0
    assert not terms.wait(lambda _seconds: pytest.fail("nothing is asked when the time is over"))


def test_waiting_ends_when_it_is_done_or_stopped():
    stop = threading.Event()
    terms = Terms(600, stop=stop)
    waits = []
    assert terms.wait(lambda seconds: waits.append(seconds) or len(waits) == 3)
    assert max(waits) < 1, "whoever waits looks again and again whether it was stopped"
    threading.Timer(0.05, stop.set).start()
    assert not terms.wait(lambda seconds: stop.wait(seconds) and False)
    assert terms.left() == 0


def test_bytes_are_received_in_parts(socket_pair):
    local, remote = socket_pair
    remote.sendall(b"one")
    threading.Timer(0.05, remote.sendall, [b"two"]).start()
    assert Terms(600).receive(local, 6) == b"onetwo"


def test_the_time_is_for_the_whole(socket_pair):
    local, remote = socket_pair
    remote.sendall(b"one")
    with pytest.raises(TimeoutError):
        Terms(0.1).receive(local, 6)


def test_the_other_end_closes(socket_pair):
    local, remote = socket_pair
    remote.sendall(b"one")
    remote.close()
    with pytest.raises(ConnectionResetError):
        Terms(600).receive(local, 6)
    assert readable(local.fileno(), 0)
