"""The server is on a device when it is needed, is sent only where it is missing, and ends when it shall."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.sshd import free_port
from toolchain import board_server, device_runtime, files
from toolchain.errors import DeviceError, InputError, VerificationError
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


@pytest.fixture
def controlled(server, shell, store, tmp_path):
    """Return a server that obeys, and whose tracker is never there."""
    options = ("--port", "0", "--work-dir", str(tmp_path))
    options += ("--tracker", f"127.0.0.1:{free_port()}", "--key", "board", "--control")
    running = board_server.start(shell, board_server.push(server, store), options)
    yield running
    running.stop()


def test_orders_are_answered(controlled):
    assert controlled.control("key board.locked") == "ok key board.locked"
    assert controlled.control("withdraw") == "ok withdraw"
    with pytest.raises(DeviceError, match="the board server on local refuses 'key two words'") as caught:
        controlled.control("key two words")
    assert caught.value.details == "the key must be of printable ASCII characters without blanks"
    assert controlled.control("key board") == "ok key board"


@pytest.mark.parametrize("order", ["", "withdraw\nkey board"])
def test_an_order_is_one_line(controlled, order):
    with pytest.raises(InputError, match="is one line"):
        controlled.control(order)
    assert controlled.control("withdraw") == "ok withdraw"


def test_a_controlled_server_that_has_ended(controlled):
    for pid in listeners(controlled.port):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match=r"the board server on local has ended|reads no more input"):
        controlled.control("withdraw")


def listeners(port: int) -> set[int]:
    """Name the processes that listen on a port of this machine."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {row[9] for row in map(str.split, lines) if row[1].endswith(f":{port:04X}") and row[3] == "0A"}
    links = {f"socket:[{inode}]" for inode in inodes}
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(path.readlink()) in links:
                found.add(int(path.parts[2]))
    return found


class ScriptedProcess:
    """Stands in for a server: says the next line of a script whenever it is listened to."""

    stderr = "its last words"

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.written: list[str] = []

    def write(self, text: str) -> None:
        self.written.append(text)

    def readline(self, timeout: float) -> str:
        line = self.lines.pop(0)
        if line == "silence":
            raise DeviceError(f"a process on board wrote no line within {timeout:g} s")
        return line

    def close(self) -> int | None:
        return 0


def scripted(*lines: str) -> board_server.Server:
    return board_server.Server("127.0.0.1", 9090, ScriptedProcess(*lines), "board")


def test_what_a_server_tells_of_its_sessions_is_kept():
    server = scripted(
        "session 1 begins\n", "session 1 ends: well\n", "ok withdraw\n", "session 2 begins\n", "ok key a\n"
    )
    assert server.control("withdraw") == "ok withdraw"
    assert server.events == ["session 1 begins", "session 1 ends: well"]
    assert server.control("key a") == "ok key a"
    assert server.events[2:] == ["session 2 begins"]
    assert server.process.written == ["withdraw\n", "key a\n"]


def test_an_answer_that_comes_late_is_not_taken_for_the_next_one():
    server = scripted(
        "silence", "silence", "ok key a\n", "error there is no order\n", "session 1 begins\n", "ok key c\n"
    )
    for order in ("key a", "nonsense"):
        with pytest.raises(DeviceError, match="wrote no line"):
            server.control(order)
    assert server.control("key c") == "ok key c"


def test_a_server_that_ends_in_the_midst_of_an_answer():
    with pytest.raises(DeviceError, match="the board server on board has ended") as caught:
        scripted("ok withdr").control("withdraw")
    assert caught.value.details == "its last words"
