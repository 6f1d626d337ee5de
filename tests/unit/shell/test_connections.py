"""Servers that allow few sessions in a connection, or few connections."""

from __future__ import annotations

import contextlib
import re
import socket
import threading

import pytest

from tests.support import sshd
from toolchain.errors import DeviceError
from toolchain.shell import SshOptions, open_shell


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def _works(shell, tmp_path):
    """Hold a process and a stream, as a deploy and a tuning do, while commands run and files are copied."""
    (tmp_path / "source").write_bytes(bytes(100_000))
    process = shell.start('while read -r line; do echo "<$line>"; done')
    with shell.stream("exec cat") as stream:
        stream.sendall(b"x")
        assert stream.recv(1) == b"x"
        for number in range(3):
            assert shell.run(f"echo {number}").stdout == f"{number}\n"
            shell.push(tmp_path / "source", f"{tmp_path}/target{number}")
            process.write(f"{number}\n")
            assert process.readline(10) == f"<{number}>\n"
    assert process.close() == 0
    assert shell.bytes_sent > 300_000


@pytest.mark.parametrize("max_sessions", [1, 2])
def test_few_sessions(tmp_path, max_sessions):
    with sshd.running(tmp_path / "sshd", options=f"MaxSessions {max_sessions}") as server:
        with open_shell("board", config=SshOptions(config_file=server.config, agent=False)) as shell:
            _works(shell, tmp_path)
        assert server.log().count("Accepted publickey") <= 3


@pytest.mark.parametrize("max_sessions", [1, 2])
def test_few_sessions_behind_a_jump_host(tmp_path, max_sessions):
    with sshd.running(tmp_path / "sshd", options=f"MaxSessions {max_sessions}") as server:
        config = tmp_path / "config"
        config.write_text(f"{server.config.read_text()}Host far\n  ProxyJump board\nHost *\n{_body(server)}")
        options = SshOptions(config_file=config, agent=False)
        with open_shell("far", config=options) as shell:
            _works(shell, tmp_path)


def _body(server):
    return server.config.read_text().partition("\n")[2]


def test_one_connection_is_enough_where_the_server_allows_ten_sessions(tmp_path):
    with sshd.running(tmp_path / "sshd") as server:
        with open_shell("board", config=SshOptions(config_file=server.config, agent=False)) as shell:
            _works(shell, tmp_path)
        assert server.log().count("Accepted publickey") == 1


def test_no_more_connections_are_accepted(tmp_path):
    with sshd.running(tmp_path / "sshd", options="MaxStartups 1\nLoginGraceTime 60") as server:
        options = SshOptions(config_file=server.config, agent=False, connect_timeout=5)
        with _not_logged_in(server):
            with pytest.raises(DeviceError, match="too many connections") as caught:
                open_shell("board", config=options)
            assert "MaxStartups" in caught.value.hint
            assert re.search(r"tried [45] times", caught.value.details)


@pytest.mark.parametrize("behind", [False, True])
def test_a_server_that_has_too_many_connections_for_a_moment(tmp_path, behind):
    """It is tried again until one of the others has logged in, or has left; behind a jump host, too."""
    folder, reported = tmp_path / "sshd", []
    with sshd.running(folder, options="MaxStartups 1\nLoginGraceTime 60") as server, contextlib.ExitStack() as stack:
        config = server.config
        if behind:
            jump = stack.enter_context(sshd.running(tmp_path / "jump"))
            config = tmp_path / "config"
            text = jump.config.read_text().replace("Host board", "Host jump", 1)
            config.write_text(f"{text}\n{server.config.read_text()}  ProxyJump jump\n")
        options = SshOptions(config_file=config, agent=False, connect_timeout=10, report=reported.append)
        other = stack.enter_context(_not_logged_in(server))
        leaves = threading.Timer(1.5, other.close)
        leaves.start()
        with open_shell("board", config=options) as shell:
            assert shell.run("echo here").stdout == "here\n"
        leaves.join()
    assert [line for line in reported if "accepts no more connections at the moment; trying again" in line] == reported
    assert len(reported) == 1


@contextlib.contextmanager
def _not_logged_in(server):
    """Be connected, and do not log in; the server may still count the last connection at first."""
    greeting = b""
    while greeting != b"SSH-":
        link = socket.create_connection((server.address, server.port))
        greeting = link.recv(4)
        if greeting == b"SSH-":
            with link:
                yield link
        link.close()
