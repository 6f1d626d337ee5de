"""Trackers that do not behave; a real one is in integration/test_measure.py."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time

import pytest

from tests.support.rpc_servers import RPC_MAGIC, TRACKER_MAGIC, closes, says, server, silent, versions_then
from toolchain import rpc
from toolchain.errors import DeviceError
from toolchain.rpc import Registered
from toolchain.rpc import tracker as tracker_module

SOON_S = 0.5


@pytest.fixture
def request_from(client):
    def request(port: int, timeout_s: float = SOON_S, **terms):
        return rpc.request(("127.0.0.1", port), "rpi4", client, rpc.Terms(timeout_s, **terms))

    return request


@pytest.fixture
def fails_soon(request_from):
    def fails(port: int, timeout_s: float = SOON_S) -> DeviceError:
        with pytest.raises(DeviceError) as caught:
            request_from(port, timeout_s)
        assert caught.value.hint
        return caught.value

    return fails


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def summary(*rows) -> bytes:
    return message([0, {"server_info": list(rows)}])


def message(value) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack("<i", len(text)) + text


def tracker(*answers):
    def talk(link):
        link.recv(4)
        link.sendall(struct.pack("<i", TRACKER_MAGIC))
        for answer in answers:
            link.recv(4096)
            link.sendall(answer)
        silent(link)

    return talk


def test_no_tracker(fails_soon, closed_port):
    assert "no tracker" in fails_soon(closed_port).message


@pytest.mark.parametrize("talk", [silent, tracker()], ids=["nothing at all", "no board"])
def test_a_tracker_without_a_board(fails_soon, talk):
    with server(talk) as port:
        fault = fails_soon(port)
    assert "no free board rpi4" in fault.message
    assert "query_rpc_tracker" in fault.hint


@pytest.mark.parametrize(
    "talk",
    [
        says(struct.pack("<i", RPC_MAGIC)),
        closes,
        tracker(struct.pack("<i", 1 << 30)),
        tracker(struct.pack("<i", -1)),
        tracker(message([-1, "no"])),
        tracker(message([0, ["127.0.0.1"]])),
        tracker(struct.pack("<i", 3) + b"}{}"),
    ],
    ids=["another magic", "closes", "huge", "negative", "refusal", "half an answer", "no JSON"],
)
def test_no_tracker_at_all(fails_soon, talk):
    with server(talk) as port:
        assert "tracker" in fails_soon(port).message


def test_a_board_that_hangs(fails_soon, closed_port):
    with server(silent) as board, server(tracker(message([0, ["127.0.0.1", board, "rpi4:0.1"]]))) as port:
        assert f"127.0.0.1:{board} did not open a session" in fails_soon(port).message


def test_a_key_that_grew_old_is_asked_for_again(fails_soon):
    requests = []

    def talk(link):
        requests.append(1)
        tracker(message([0, ["127.0.0.1", board, f"rpi4:0.{len(requests)}"]]))(link)

    def refuse_once(link):
        header = link.recv(4096)
        while b"rpi4" not in header:
            header += link.recv(4096)
        link.sendall(struct.pack("<i", RPC_MAGIC + 2 if b"rpi4:0.1" in header else 7))

    with server(versions_then(refuse_once)) as board, server(talk) as port:
        assert "is not a board server" in fails_soon(port).message
    assert len(requests) == 2


def test_a_board_that_refuses_every_key(fails_soon, monkeypatch):
    monkeypatch.setattr(tracker_module, "_ASK_AGAIN_S", 30.0)  # after the first answer, there is no time for another
    with (
        server(versions_then(says(struct.pack("<i", RPC_MAGIC + 2)))) as board,
        server(tracker(message([0, ["127.0.0.1", board, "rpi4:0.1"]]))) as port,
    ):
        assert f"{board}, which the tracker assigned for rpi4, refuses its key" in fails_soon(port, 30).message


def test_waiting_ends_when_it_is_told_to(request_from):
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    start = time.monotonic()
    with server(tracker()) as port, pytest.raises(DeviceError):
        request_from(port, 60, stop=stop)
    assert 0.3 <= time.monotonic() - start < 30


def test_a_tracker_says_who_is_registered():
    row = {"key": "server:rpi4", "addr": ["127.0.0.1", 9090]}
    with server(tracker(summary(row))) as port:
        assert rpc.registered(("127.0.0.1", port)) == (Registered("rpi4", "127.0.0.1", 9090),)


@pytest.mark.parametrize(
    "answer", [message([0, None]), message([1, {}]), message([0, {"server_info": [{}]}]), b"\0" * 4]
)
def test_a_summary_that_is_none(answer):
    with server(tracker(answer)) as port, pytest.raises(DeviceError, match="does not answer") as caught:
        rpc.registered(("127.0.0.1", port), SOON_S)
    assert "rpc_tracker" in caught.value.hint
