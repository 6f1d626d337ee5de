"""The server is on a device when it is needed, is sent only where it is missing, and ends when it shall."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from toolchain import board_server, device_runtime, files
from toolchain.errors import DeviceError, VerificationError
from toolchain.shell import LocalShell
from toolchain.store import Store


@pytest.fixture(scope="module")
def server(native):
    """The program for this machine."""
    return device_runtime.build(native.triple, native.machine).board_server


@pytest.fixture
def shell():
    return LocalShell()


@pytest.fixture
def store(shell, tmp_path):
    return Store(shell, str(tmp_path / "device"))


def sent(shell, action) -> int:
    before = shell.bytes_sent
    action()
    return shell.bytes_sent - before


def test_only_a_missing_or_outdated_server_is_sent(server, shell, store, tmp_path):
    size = server.path.stat().st_size
    assert sent(shell, lambda: board_server.push(server, store)) >= size
    assert sent(shell, lambda: board_server.push(server, store)) == 0
    other = tmp_path / "board_server"
    other.write_bytes(server.path.read_bytes() + b"another")
    newer = dataclasses.replace(server, path=other, sha256=files.sha256_file(other))
    assert sent(shell, lambda: board_server.push(newer, store)) > size
    assert newer.sha256 in board_server.push(newer, store)


def test_start_and_stop(server, shell, store):
    running = board_server.start(shell, board_server.push(server, store))
    assert running.address == "127.0.0.1"
    socket.create_connection((running.address, running.port), timeout=5).close()
    running.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((running.address, running.port), timeout=5)


@pytest.mark.parametrize(
    ("options", "words"), [(("--prot", "0"), "--prot"), (("--port", "0", "--host", "192.0.2.1"), "192.0.2.1")]
)
def test_a_server_that_does_not_start(server, shell, store, options, words):
    path = board_server.push(server, store)
    with pytest.raises(DeviceError, match="the board server does not start on local") as caught:
        board_server.start(shell, path, options)
    assert words in caught.value.details


@pytest.mark.parametrize(
    ("change", "message"),
    [({"machine": "riscv64"}, "board_server is for riscv64"), ({"glibc": "9.99"}, "glibc 9.99 is needed")],
)
def test_a_device_that_it_cannot_run_on(server, shell, store, tmp_path, change, message):
    with pytest.raises(VerificationError, match=message):
        board_server.push(dataclasses.replace(server, **change), store)
    assert shell.bytes_sent == 0
    assert not (tmp_path / "device" / "blobs").exists()
