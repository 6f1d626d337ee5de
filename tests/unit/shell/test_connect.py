"""Reaching an SSH server, and what goes wrong on the way."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import sshd
from toolchain.errors import DeviceError
from toolchain.shell import SshOptions, connect, open_shell

OPTIONS = SshOptions(agent=False, connect_timeout=5)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


def _fails(host, options=OPTIONS):
    with pytest.raises(DeviceError) as caught:
        open_shell(host, config=options)
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value


def test_refused_port():
    assert "refused" in _fails(f"root@127.0.0.1:{sshd.free_port()}").message.lower()


def test_unknown_name():
    assert "resolved" in _fails("root@no-such-host.invalid").message


@contextlib.contextmanager
def _listener(answer: bytes, *, hold: bool):
    """Something that listens and is no SSH server: it says something, then hangs up or keeps silent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.sendall(answer)
                        while hold and connection.recv(1000):
                            pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"root@127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("hold", [False, True])
def test_not_an_ssh_server(hold):
    with _listener(b"HTTP/1.1 400 Bad Request\r\n\r\n", hold=hold) as host:
        fault = _fails(host)
    assert "not an SSH server" in fault.message
    assert "HTTP/1.1 400" in fault.details


def test_server_that_hangs_up():
    with _listener(b"", hold=False) as host:
        fault = _fails(host)
    assert "closes the connection" in fault.message
    assert re.search(r"tried [45] times", fault.details)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-sleepy\r\n"])
def test_connect_timeout(answer):
    started = time.monotonic()
    with _listener(answer, hold=True) as host:
        fault = _fails(host, replace(OPTIONS, connect_timeout=0.5))
    assert "0.5 s" in fault.message
    assert time.monotonic() - started < 30


# --- ProxyCommand ---

RELAY = """
import os, socket, sys, threading
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536): s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := s.recv(65536): os.write(1, data)
"""


@pytest.fixture
def proxied(server, tmp_path):
    """A function that returns options with a ProxyCommand; `RELAY` in it stands for a command that connects."""
    (tmp_path / "relay.py").write_text(RELAY)

    def options(command: str) -> SshOptions:
        command = command.replace("RELAY", f"{sys.executable} {tmp_path}/relay.py %h %p")
        config = tmp_path / "config"
        config.write_text(f"{server.config.read_text()}  ProxyCommand {command}\n")
        return SshOptions(config_file=config, agent=False, connect_timeout=20)

    return options


def test_a_proxy_command_in_the_language_of_the_shell(server, proxied, tmp_path):
    command = f"""sh -c 'echo $$ >"{tmp_path}/%n %r %%"; RELAY; :' 2>&1 | cat && true"""
    (tmp_path / "source").write_bytes(os.urandom(1 << 20))
    with open_shell("board", config=proxied(command)) as shell:
        shell.push(tmp_path / "source", str(tmp_path / "target"))
        assert shell.bytes_sent > 1 << 20
        pid = int((tmp_path / f"board {server.user} %").read_text())
    assert (tmp_path / "target").read_bytes() == (tmp_path / "source").read_bytes()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the command outlives its connection"
        time.sleep(0.02)


def test_a_proxy_command_is_run_by_the_users_shell(proxied, tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/said\nexec /bin/sh "$@"\n')
    mine.chmod(0o755)
    monkeypatch.setenv("SHELL", str(mine))
    with open_shell("board", config=proxied("RELAY")) as shell:
        assert shell.run("echo hi").stdout == "hi\n"
    assert (tmp_path / "said").read_text().startswith(f"-c exec {sys.executable} ")


@pytest.mark.parametrize(("command", "text"), [("no-such-relay %h", "no-such-relay"), ("echo why >&2 | false", "why")])
def test_a_proxy_command_that_fails_says_why(proxied, command, text):
    fault = _fails("board", proxied(command))
    assert "the ProxyCommand of board does not reach an SSH server" in fault.message
    assert text in fault.details.partition("\n")[2]
    assert command.partition(" ")[0] in fault.hint


def test_a_proxy_command_that_keeps_silent_is_given_up(proxied):
    fault = _fails("board", replace(proxied("sleep 300"), connect_timeout=0.5))
    assert "within 0.5 s" in fault.message


def test_without_the_users_shell_there_is_no_proxy_command(proxied, tmp_path, monkeypatch):
    monkeypatch.setenv("SHELL", str(tmp_path / "no shell"))
    with pytest.raises(DeviceError, match="No such file"):
        open_shell("board", config=proxied("RELAY"))


# --- the wire ---


def test_a_wire_counts_and_gives_up_on_a_peer_that_takes_nothing():
    local, remote = socket.socketpair()
    with remote:
        wire = connect.Wire(local, stall=0.2)
        wire.settimeout(0.05)
        remote.sendall(b"SSH-2.0-me\r\nmore")
        assert wire.recv(7) == b"SSH-2.0"
        assert wire.recv(100) == b"-me\r\nmore"
        assert (wire.received, wire.greeting) == (16, b"SSH-2.0-me\r\nmore")
        with pytest.raises(ConnectionAbortedError):  # noqa: PT012 - it takes some, then none for a while
            while True:
                with contextlib.suppress(TimeoutError):
                    wire.send(b"x" * 4096)
        assert wire.sent > 4096
        wire.close()
        wire.close()
    assert wire.complaints() == ""
