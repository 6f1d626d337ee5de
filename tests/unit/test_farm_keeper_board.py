"""One served device: a real SSH server and a real board server, and what may happen to either."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import sshd
from toolchain import _farm_keeper_board as kept
from toolchain import device_runtime, files
from toolchain._farm_keeper_board import KeptBoard
from toolchain._farm_protocol import Served
from toolchain.device_runtime import Program
from toolchain.shell import SshOptions


@pytest.fixture(scope="module")
def program(native) -> Program:
    return device_runtime.build(native.triple, native.machine).board_server


@pytest.fixture
def server(tmp_path):
    with sshd.running(tmp_path / "sshd") as running:
        yield running


@pytest.fixture
def tracker():
    """A port that takes connections and says nothing: what the server tells a tracker is tested elsewhere."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[:2]


@pytest.fixture
def board(server, program, tracker, tmp_path):
    with serving(server, program, tracker, tmp_path) as found:
        until(lambda: found.settled)
        yield found


@contextlib.contextmanager
def serving(server, program, tracker, folder):
    ssh = SshOptions(config_file=server.config, agent=False)
    served = Served("a", "bench", "bench", "board", f"{folder}/store", emulated=False, program=program, ssh=ssh)
    found = KeptBoard(served, tracker, lambda: None)
    found.start()
    try:
        yield found
    finally:
        found.stop()
        found.join(15)
        assert not found._thread.is_alive()


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def board_server(server: sshd.Server) -> int:
    """Name the process of the board server, which OpenSSH's server started."""
    for stat in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (stat / "cmdline").read_bytes()
            if words.startswith(str(server.key_file.parent.parent).encode()) and b"--control" in words:
                return int(stat.name)
    return 0


def test_it_is_served(board, server):
    assert (board.state, board.key, board.fault) == ("ready", "bench", None)
    with socket.create_connection(board.address, timeout=10) as link:
        link.settimeout(10)
        link.sendall(b"no RPC at all")
        assert link.recv(1) == b""  # it came through, and was refused
    board.stop()
    board.join(15)
    until(lambda: not board_server(server))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(board.address, timeout=10)


def test_keys(board):
    board.offer("private.key", quiet=True)
    until(lambda: board.settled)
    assert board.key == "private.key"
    board.offer(None)
    until(lambda: board.settled)
    assert board.key is None
    board.offer("bench")
    until(lambda: board.settled)


@pytest.mark.parametrize("key", ["private.key", None])
def test_a_killed_server_is_started_again_with_its_key(board, server, key):
    board.offer(key)
    until(lambda: board.settled)
    time.sleep(kept._SOON_S)  # one that ends sooner counts as one that does not work
    first = board_server(server)
    os.kill(first, signal.SIGKILL)
    until(lambda: board_server(server) not in {0, first} and board.settled)
    assert board.key == key


def test_a_lost_device_is_served_again_with_its_key(board, server):
    board.offer("private.key")
    until(lambda: board.settled)
    server.stop()
    until(lambda: board.state == "lost" and board.fault and "cannot be reached" in board.fault.message)
    assert (board.key, board.address) == (None, None)
    folder = server.key_file.parent
    with sshd.running(folder, port=server.port, host_key=folder / "host_key"):
        until(lambda: board.settled)
        assert board.key == "private.key"
        board.stop()
        board.join(15)


def test_a_frozen_device_is_noticed_and_served_again(server, program, tracker, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "_CHECK_EVERY_S", 0.3)
    monkeypatch.setattr(kept, "_CHECK_S", 1.0)
    monkeypatch.setattr("toolchain.ssh.CLOSE_GRACE", 0.5)
    with serving(server, program, tracker, tmp_path) as board:
        until(lambda: board.settled)
        frozen = [pid for pid in sshd.descendants(server.process.pid) if pid != board_server(server)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: board.state == "lost")
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        until(lambda: board.settled)


def test_a_server_that_ends_at_once_is_told(server, program, tracker, tmp_path):
    broken = tmp_path / "board_server"
    broken.write_bytes(b"#!/bin/sh\necho listening on 127.0.0.1:1\necho it is broken >&2\n")
    other = Program(broken, files.sha256_file(broken), program.glibc, program.machine, program.versions)
    with serving(server, other, tracker, tmp_path) as board:
        until(lambda: board.fault)
        assert board.fault.message == "the board server on a ended"
        assert "it is broken" in board.fault.details


def test_a_host_key_that_changed(server, program, tracker, tmp_path):
    server.known_hosts.write_text(server.known_hosts.read_text().replace("AAAA", "AAAB", 1))
    with serving(server, program, tracker, tmp_path) as board:
        until(lambda: board.fault)
        assert board.state == "lost"


def test_how_hot_it_is(board, monkeypatch):
    monkeypatch.setattr(kept, "_CELSIUS", "echo 41500; echo 52500; echo none")
    assert board.celsius() == 52.5
    board.rest(quiet=True)
    monkeypatch.setattr(kept, "_CELSIUS", "echo 1000")
    assert board.celsius() == 52.5
    board.rest(quiet=False)
    monkeypatch.setattr(kept, "_CELSIUS", ":")
    assert board.celsius() is None


def test_cutting_ends_its_clients(board):
    gone = threading.Event()

    def wait_for_the_end(link: socket.socket) -> None:
        link.settimeout(30)
        with contextlib.suppress(ConnectionError):
            link.recv(1)
        gone.set()

    with socket.create_connection(board.address, timeout=10) as link:
        threading.Thread(target=wait_for_the_end, args=(link,), daemon=True).start()
        time.sleep(0.2)
        assert not gone.is_set()
        board.cut()
        assert gone.wait(5)


def test_private_keys_are_not_to_be_guessed():
    assert len({kept.private_key("a") for _ in range(100)}) == 100
    assert len(kept.private_key("a")) > 32
