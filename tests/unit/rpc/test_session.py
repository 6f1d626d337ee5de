"""Sessions with boards that fall silent, break off, or attack; real ones are in integration/test_board_server.py."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from tests.support.rpc_servers import (
    COPY_ACK,
    DONE,
    EXCEPTION,
    RETURN,
    RPC_MAGIC,
    board,
    leaving_nothing,
    packet,
    program_to_run,
    says,
    server,
    silent,
    text,
    to,
    values,
    versions_then,
)
from toolchain import rpc
from toolchain.errors import DeviceError, VerificationError
from toolchain.rpc import CallError, child
from toolchain.rpc import session as sessions

SOON_S = 0.5
LONG_S = 60.0


def connect(client, port: int, timeout_s: float = LONG_S, key: str = "", **terms):
    return rpc.connect(to(port), "board-1", client, key, rpc.Terms(timeout_s, **terms))


# --- boards that attack ----------------------------------------------------------------------------------------------


def running(marker) -> bytes:
    return program_to_run("/bin/sh", "-c", f"touch {shlex.quote(str(marker))}")


def attacks(marker) -> dict[str, bytes]:
    request = running(marker)
    return {
        "a request": request,
        "a request behind an answer": DONE + request,
        "a request inside an answer": packet(RETURN, values(text("")) + request[8:]),
        "a request inside an error": packet(EXCEPTION, values(text("RPCError: no")) + request[8:]),
        "a function to call": packet(3, struct.pack("<Q", 1) + values(text("rm"))),
        "a function to look up": packet(9, values(text("rpc.CreatePipeClient"))),
        "an answer without end": struct.pack("<QI", 2**63, RETURN),
    }


def test_tvms_client_alone_does_what_a_board_asks(tmp_path):
    """The attack is real: without the relay, this board runs a program on the host."""
    marker = tmp_path / "marker"
    with server(board(running(marker), DONE)) as port:
        code = f"from tvm import rpc; rpc.connect('127.0.0.1', {port}, 'key')"
        child_env = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
        command = [sys.executable, "-P", "-c", code]
        with subprocess.Popen(command, env=child_env, stderr=subprocess.DEVNULL) as victim:
            end = time.monotonic() + 60
            while not marker.exists() and time.monotonic() < end:
                time.sleep(0.05)
            victim.kill()
    assert marker.exists()


@pytest.mark.parametrize("attack", attacks("x"))
@pytest.mark.parametrize("when", ["when the session begins", "when it is called"])
def test_nothing_of_it_reaches_tvm_through_the_relay(client, tmp_path, attack, when):
    marker = tmp_path / "marker"
    first = () if when == "when the session begins" else (DONE,)

    def talk(port: int) -> None:
        with connect(client, port) as session:
            session.run(child.text, "edge_toolchain.hardware")
            session.run(child.text, "edge_toolchain.hardware")

    with server(board(*first, attacks(marker)[attack])) as port, pytest.raises(VerificationError) as caught:
        talk(port)
    assert "board-1 tried to make this host run code" in caught.value.message
    assert caught.value.exit_code == 5
    assert not marker.exists()


def test_an_answer_to_another_question_is_only_an_error(client, tmp_path):
    """Data where a number should be confuses TVM's client, and nobody else."""
    with server(board(DONE, packet(COPY_ACK, running(tmp_path / "marker")))) as port:
        with connect(client, port) as session, pytest.raises((CallError, DeviceError, VerificationError)):
            session.run(child.text, "edge_toolchain.hardware")
        assert not (tmp_path / "marker").exists()


def test_a_stranger_at_the_door_is_not_let_in(client, monkeypatch):
    """Any local user can connect to the port where TVM's client is awaited; only the client has its key."""
    connections = []
    create = socket.create_server

    def create_and_knock(address, **options):
        listener = create(address, **options)
        strangers = [socket.create_connection(listener.getsockname()) for _ in range(3)]
        key = b"client:" + b"0" * 64
        strangers[1].sendall(struct.pack("<ii", RPC_MAGIC, len(key)) + key)
        strangers[2].sendall(b"GET / HTTP/1.1\r\n\r\n")
        connections.extend(strangers)
        return listener

    with server(board(DONE)) as port:
        monkeypatch.setattr(sessions.socket, "create_server", create_and_knock)
        with connect(client, port) as session:
            assert session.verdict() is None
            for link in connections[1:]:
                link.settimeout(10)
                with contextlib.suppress(ConnectionResetError):
                    assert link.recv(100) == b""
    for link in connections:
        link.close()


# --- boards that break -----------------------------------------------------------------------------------------------


def fails_soon(client, port: int) -> DeviceError:
    """Expect a device error about when the timeout is over, and no socket or thread left."""
    with leaving_nothing(), pytest.raises(DeviceError) as caught:
        connect(client, port, SOON_S)
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value


@pytest.fixture
def loaded(client):
    client.load()
    return client


def test_a_board_that_says_nothing_to_the_first_packet(loaded):
    def talk(link):
        size = struct.unpack("<ii", link.recv(8))[1]
        link.recv(size)
        link.sendall(struct.pack("<ii", RPC_MAGIC, 6) + b"server")
        silent(link)

    with server(versions_then(talk)) as port:
        with pytest.raises(DeviceError, match=r"did not open a session within 0\.5 s"):
            connect(loaded, port, SOON_S)
        loaded.load()
        assert "did not open a session" in fails_soon(loaded, port).message


def test_a_board_that_leaves_when_the_session_begins(client):
    with server(board(b"")) as port, pytest.raises(DeviceError):
        connect(client, port, 2.0)


def test_a_board_that_cannot_begin_a_session(client):
    with server(board(packet(EXCEPTION, values(text("the board has no memory"))))) as port:
        with pytest.raises(DeviceError, match="board-1 cannot start a session") as caught:
            connect(client, port)
        assert "the board has no memory" in caught.value.details


def test_a_wrong_key(client):
    refusing = versions_then(says(struct.pack("<i", RPC_MAGIC + 2)))
    with server(refusing) as port, pytest.raises(DeviceError, match="does not accept this key") as caught:
        connect(client, port, key="hush")
    assert "hush" not in f"{caught.value.message} {caught.value.details} {caught.value.hint}"


def test_a_boards_error_comes_with_its_kind(client):
    fault = packet(EXCEPTION, values(text("ValueError: no")))
    with server(board(DONE, fault)) as port, connect(client, port) as session:
        with pytest.raises(CallError, match="ValueError: no") as caught:
            session.run(child.text, "anything")
        assert caught.value.kind == "RPCError"


# --- the end of a session --------------------------------------------------------------------------------------------


def hanging(link):
    """Begin a session, and answer nothing any more."""
    size = struct.unpack("<ii", link.recv(8))[1]
    link.recv(size)
    link.sendall(struct.pack("<ii", RPC_MAGIC, 6) + b"server")
    link.recv(4096)
    link.sendall(DONE)
    silent(link)


def test_a_session_is_cut_from_any_thread(client):
    with server(versions_then(hanging)) as port, connect(client, port) as session:
        threading.Timer(0.2, session.cut).start()
        with pytest.raises(DeviceError, match="was cut"):
            session.run(child.text, "anything")


def test_a_deadline_cuts_and_says_so(client):
    with (
        server(versions_then(hanging)) as port,
        connect(client, port) as session,
        pytest.raises(DeviceError, match=r"board-1 has not answered for 0\.2 s"),
        rpc.deadline(session, 0.2),
    ):
        session.run(child.text, "anything")


def test_a_deadline_that_went_unnoticed(client):
    with (
        server(board(DONE)) as port,
        connect(client, port) as session,
        pytest.raises(DeviceError),
        rpc.deadline(session, 0.05),
    ):
        time.sleep(0.5)


def test_a_deadline_that_is_kept(client):
    with server(board(DONE)) as port, connect(client, port) as session:
        before = client.pid
        with rpc.deadline(session, LONG_S):
            pass
        with pytest.raises(KeyError), rpc.deadline(session, LONG_S):
            raise KeyError
        assert client.pid == before


def test_a_session_is_closed_once_for_all_and_leaves_nothing(client):
    client.load()
    with server(board(DONE)) as port:
        with leaving_nothing():
            session = connect(client, port)
            session.close()
            session.close()
            session.cut()
        assert client.pid is not None


@pytest.mark.parametrize(("talk", "answers"), [(silent, False), (versions_then(silent), True)])
def test_a_sign_of_life(client, talk, answers):
    handlers = [versions_then(hanging)]

    def changing(link):
        handlers[-1](link)

    with server(changing) as port, connect(client, port) as session:
        handlers.append(talk)
        assert session.answers(SOON_S) is answers
