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

from tests.support import sshd
from tests.support.greetings import MAGIC, REFUSED, VERSIONS, ended, greet
from tests.support.stores import holder
from toolchain import files
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.errors import BusyError, DeviceError
from toolchain.farm import served_board as kept
from toolchain.farm.protocol import ServedDevice
from toolchain.farm.served_board import Claim, ServedBoard
from toolchain.native import programs
from toolchain.native.programs import Program
from toolchain.shell import LocalShell, SshOptions

KEY, OTHER = "5e" * 32, "07" * 32
ME, YOU = Owner("me@here", "tune mlp", "toolchain farm release a"), Owner("you@here", "tune lenet")


@pytest.fixture(scope="module")
def program(native) -> Program:
    return programs.build(programs.BOARD_SERVER, native.triple, native.machine)


@pytest.fixture
def server(tmp_path):
    with sshd.running(tmp_path / "sshd") as running:
        yield running


@pytest.fixture
def board(server, program, tmp_path):
    with serving(server, program, tmp_path) as served_board:
        until(lambda: served_board.settled)
        yield served_board


@contextlib.contextmanager
def serving(server, program, folder):
    ssh = SshOptions(config_file=server.config, agent=False)
    served = ServedDevice("a", "bench", "board", f"{folder}/store", emulated=False, program=program, ssh=ssh)
    served_board = ServedBoard(served, lambda: None)
    served_board.start()
    try:
        yield served_board
    finally:
        served_board.stop()
        served_board.join(15)
        assert not served_board._thread.is_alive()


@contextlib.contextmanager
def session(board, key=KEY):
    with board.dial(30) as link:
        assert greet(link, f"client:{key}") == MAGIC
        yield link


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def board_server(server: sshd.Server) -> int:
    """Name the process of the board server, which OpenSSH's server started."""
    for stat in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command_line = (stat / "cmdline").read_bytes()
            if command_line.startswith(str(server.key_file.parent.parent).encode()) and b"--socket" in command_line:
                return int(stat.name)
    return 0


def test_it_is_served(board, server):
    assert (board.state, board.key, board.fault) == ("ready", None, None)
    with board.dial(30) as link:
        assert greet(link, VERSIONS) == MAGIC
    with board.dial(30) as link:
        assert greet(link, f"client:{KEY}") == REFUSED
    board.stop()
    board.join(15)
    until(lambda: not board_server(server))
    with pytest.raises(DeviceError):
        board.dial(30)


def test_keys(board):
    board.offer(Claim(ME, KEY), quiet=True)
    until(lambda: board.settled)
    assert board.key == KEY
    with session(board):
        until(lambda: board.session_since)
        board.offer(Claim(YOU, OTHER))
        until(lambda: board.settled and board.session_since is None)
        with session(board, OTHER):
            until(lambda: board.session_since)
            with board.dial(30) as link:
                assert greet(link, f"client:{KEY}") == REFUSED
            board.offer(Claim())
            until(lambda: board.settled and board.session_since is None)
    assert board.key is None
    with board.dial(30) as link:
        assert greet(link, f"client:{OTHER}") == REFUSED


def test_a_key_is_in_no_command_line_no_environment_and_no_log(board, server, caplog):
    caplog.set_level("INFO")
    board.offer(Claim(ME, KEY))
    until(lambda: board.settled)
    with session(board):
        texts = [caplog.text, server.log(), repr(board)]
        for pid in [os.getpid(), *sshd.descendants(server.process.pid)]:
            for name in ("cmdline", "environ"):
                with contextlib.suppress(OSError):  # it has ended
                    texts.append((Path("/proc") / str(pid) / name).read_text(errors="replace"))
    board._unanswered.append(KEY)
    board._handle_line(f"error the key {KEY} is odd")
    assert "KEY is odd" in caplog.text
    assert not [text for text in (*texts, caplog.text) if KEY in text]


@pytest.mark.parametrize("key", [KEY, None], ids=["leased", "free"])
def test_a_killed_server_is_started_again_with_its_key(board, server, key):
    board.offer(Claim(ME, key) if key else Claim())
    until(lambda: board.settled)
    time.sleep(kept._SOON_S)  # one that ends sooner counts as one that does not work
    first = board_server(server)
    os.kill(first, signal.SIGKILL)
    until(lambda: board_server(server) not in {0, first} and board.settled)
    assert board.key == key


def test_a_lost_device_is_served_again_with_its_key(board, server):
    board.offer(Claim(ME, KEY))
    until(lambda: board.settled)
    server.stop()
    until(lambda: board.state == "lost" and board.fault and "cannot be reached" in board.fault.message)
    assert board.key is None
    with pytest.raises(DeviceError, match="cannot be reached"):
        board.dial(1)
    folder = server.key_file.parent
    with sshd.running(folder, port=server.port, host_key=folder / "host_key"):
        until(lambda: board.settled)
        assert board.key == KEY
        board.stop()
        board.join(15)


def test_a_frozen_device_is_noticed_and_served_again(server, program, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "_CHECK_EVERY_S", 0.3)
    monkeypatch.setattr(kept, "_CHECK_S", 1.0)
    monkeypatch.setattr("toolchain.shell.ssh.CLOSE_GRACE", 0.5)
    monkeypatch.setattr("toolchain.shell.bounds.CLOSE_GRACE", 0.5)
    with serving(server, program, tmp_path) as board:
        until(lambda: board.settled)
        frozen = [pid for pid in sshd.descendants(server.process.pid) if pid != board_server(server)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: board.state == "lost")
        finally:
            for pid in frozen:
                with contextlib.suppress(ProcessLookupError):  # its connection was given up, and it ended
                    os.kill(pid, signal.SIGCONT)
        until(lambda: board.settled)


def test_a_server_that_ends_at_once_is_told(server, program, tmp_path):
    broken = tmp_path / "board_server"
    broken.write_bytes(b"#!/bin/sh\necho listening on unix:/nowhere\necho it is broken >&2\n")
    other = Program(broken, files.sha256_file(broken), program.glibc, program.machine, program.versions)
    with serving(server, other, tmp_path) as board:
        until(lambda: board.fault)
        assert board.fault.message == "the board server on a ended"
        assert "it is broken" in board.fault.details


def test_a_host_key_that_changed(server, program, tmp_path):
    server.known_hosts.write_text(server.known_hosts.read_text().replace("AAAA", "AAAB", 1))
    with serving(server, program, tmp_path) as board:
        until(lambda: board.fault)
        assert board.state == "lost"


def test_how_hot_it_is(board, monkeypatch):
    monkeypatch.setattr(kept, "_FIRST_CHECK_S", 0.1)
    monkeypatch.setattr(kept, "_CHECK_EVERY_S", 0.1)
    monkeypatch.setattr(kept, "_CELSIUS", "echo 41500; echo 52500; echo none")
    until(lambda: board.celsius == 52.5)
    board.rest(quiet=True)
    monkeypatch.setattr(kept, "_CELSIUS", ":")
    assert board.celsius == 52.5
    board.rest(quiet=False)
    until(lambda: board.celsius is None)


def test_who_is_at_work_on_an_idle_device_is_seen(board, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "_FIRST_CHECK_S", 0.1)
    monkeypatch.setattr(kept, "_CHECK_EVERY_S", 0.1)
    with Store(LocalShell(), f"{tmp_path}/store").lock(Owner("ann@desk", "deploy")):
        until(lambda: board.occupied)
        assert (board.occupied.owner, board.fault) == ("ann@desk: deploy", None)
    until(lambda: board.occupied is None)


def test_cutting_ends_its_clients(board):
    here, there = socket.socketpair()
    with here, there:
        carrying = threading.Thread(target=board.connect, args=(there, board.dial(30)), daemon=True)
        carrying.start()
        assert greet(here, VERSIONS) == MAGIC
        board.cut()
        assert ended(here)
        carrying.join(10)
        assert not carrying.is_alive()


# --- its lock ---


@pytest.fixture
def store(tmp_path):
    return Store(LocalShell(), f"{tmp_path}/store")


def test_whoever_has_it_has_its_lock(board, store):
    store.check_free()
    for claim in (Claim(ME, KEY), Claim(YOU, OTHER), Claim(ME)):
        board.offer(claim)
        until(lambda: board.settled)
        assert board.key == claim.key
        with pytest.raises(BusyError, match=f"in use by {claim.owner.who}: {claim.owner.what}"):
            store.check_free()
    board.offer(Claim())
    until(lambda: board.settled)
    store.check_free()


def test_it_gives_no_key_while_somebody_else_is_at_work_on_it(board, store):
    with store.lock(Owner("ann@desk", "deploy")):
        board.offer(Claim(ME, KEY))
        until(lambda: board.is_busy)
        assert "in use by ann@desk: deploy" in board.fault.message
        with board.dial(30) as link:
            assert greet(link, f"client:{KEY}") == REFUSED
    until(lambda: board.settled)
    assert (board.key, board.fault) == (KEY, None)


def test_it_is_not_served_before_others_have_ended_their_work_on_it(server, program, tmp_path, store):
    store.facts()
    with contextlib.ExitStack() as others:
        others.enter_context(store.lock(Owner("ann@desk", "deploy")))
        with serving(server, program, tmp_path) as board:
            until(lambda: board.is_busy)
            assert "in use by ann@desk: deploy" in board.fault.message
            others.close()
            until(lambda: board.settled)


def test_a_lost_lock_ends_the_session_and_is_taken_again(board, store, tmp_path, monkeypatch):
    monkeypatch.setattr("toolchain.device.lock._HEARTBEAT_S", 0.1)
    board.offer(Claim(ME, KEY))
    until(lambda: board.settled)
    root = tmp_path / "store"
    with session(board):
        until(lambda: board.session_since)
        first = holder(root)
        os.kill(first, signal.SIGKILL)
        until(lambda: board.settled and board.session_since is None and holder(root) != first)
    assert board.key == KEY
    with session(board):
        pass


def test_the_lock_ends_after_the_session(board, store):
    """Whoever gets the device next measures beside nobody."""
    board.offer(Claim(ME, KEY))
    until(lambda: board.settled)
    with session(board):
        until(lambda: board.session_since)
        board.offer(Claim())
        until(lambda: board.settled)
        assert board.session_since is None
    store.check_free()
