"""What streams through SSH carry, and how fast; tests/integration/test_ssh.py has how they end."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import pytest

from toolchain.shell import SshOptions, open_shell


@pytest.fixture
def shell(server):
    with open_shell("board", config=SshOptions(config_file=server.config, agent=False)) as opened:
        yield opened


def received(link: socket.socket, size: int) -> bytes:
    link.settimeout(30)
    data = b""
    while len(data) < size:
        chunk = link.recv(1 << 16)
        if not chunk:
            break
        data += chunk
    return data


def test_many_bytes_both_ways_at_once(shell):
    data = os.urandom(4 << 20)
    with shell.stream("exec cat") as link:
        sender = threading.Thread(target=link.sendall, args=(data,), daemon=True)
        sender.start()
        assert received(link, len(data)) == data
        sender.join()


def test_many_at_once(shell):
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(shell.stream("exec cat")) for _ in range(8)]
        for number, link in enumerate(links):
            link.sendall(f"{number:04}".encode())
        assert [received(link, 4) for link in links] == [f"{number:04}".encode() for number in range(8)]


def test_a_round_trip_costs_little(shell):
    """The mean of an idle machine is below 1 ms; a busy one may be late often, Nagle's 40 ms are each time."""
    shell.run(":")  # before the first command OpenSSH's server waits with small packets
    times = []
    with shell.stream("exec cat") as link:
        for _ in range(100):
            started = time.perf_counter()
            link.sendall(b"x" * 64)
            received(link, 64)
            times.append(time.perf_counter() - started)
    assert sorted(times)[len(times) // 4] < 0.02
