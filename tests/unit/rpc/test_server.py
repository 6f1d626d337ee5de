"""The server is on a device when it is needed, is sent only where it is missing, and ends when it shall."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import struct
from pathlib import Path

import pytest

from toolchain import files
from toolchain.device.store import Store
from toolchain.errors import DeviceError, InputError, VerificationError
from toolchain.native import programs
from toolchain.rpc import server as board_server
from toolchain.shell import LocalShell

RPC_MAGIC = 0xFF271


@pytest.fixture(scope="module")
def server(native):
    """The program for this machine."""
    return programs.build(programs.BOARD_SERVER, native.triple, native.machine)


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


def test_start_and_stop(server, shell, store, tmp_path):
    path = board_server.push(server, store)
    running = board_server.start(shell, path, ("--work-dir", str(tmp_path), "--session-limit", "60"))
    assert running.program == path
    assert Path(running.socket).is_relative_to(tmp_path)
    board_server.dial(shell, running, 5).close()
    running.stop()
    assert not Path(running.socket).parent.exists()
    with pytest.raises(DeviceError, match=f"no board server listens at {running.socket} on local"):
        board_server.dial(shell, running, 5)


@pytest.mark.parametrize(
    ("options", "text"), [(("--prot", "0"), "--prot"), (("--port", "0"), "--port cannot be combined with --socket")]
)
def test_a_server_that_does_not_start(server, shell, store, options, text):
    path = board_server.push(server, store)
    with pytest.raises(DeviceError, match="the board server does not start on local") as caught:
        board_server.start(shell, path, options)
    assert text in caught.value.details


@pytest.mark.parametrize(
    ("change", "message"),
    [({"machine": "s390x"}, "board_server is for s390x"), ({"glibc": "9.99"}, "glibc 9.99 or newer is needed")],
)
def test_a_device_that_it_cannot_run_on(server, shell, store, tmp_path, change, message):
    with pytest.raises(VerificationError, match=message):
        board_server.push(dataclasses.replace(server, **change), store)
    assert shell.bytes_sent == 0
    assert not (tmp_path / "device" / "blobs").exists()


@pytest.fixture
def controlled(server, shell, store, tmp_path):
    running = board_server.start(shell, board_server.push(server, store), ("--work-dir", str(tmp_path)))
    yield running
    running.stop()


def answer_to(shell, running, key: str) -> int:
    """Ask for a session; return the first word of the answer."""
    client_key = f"client:{key}".encode()
    with board_server.dial(shell, running, 5) as link:
        link.sendall(struct.pack("<ii", RPC_MAGIC, len(client_key)) + client_key)
        return int(struct.unpack("<i", link.recv(4, socket.MSG_WAITALL))[0])


def test_a_key_opens_sessions_until_it_is_withdrawn(controlled, shell):
    first, second = board_server.new_key(), board_server.new_key()
    assert first != second
    assert answer_to(shell, controlled, first) == RPC_MAGIC + 2
    controlled.offer(first)
    assert answer_to(shell, controlled, first) == answer_to(shell, controlled, first) == RPC_MAGIC
    controlled.offer(second)
    assert answer_to(shell, controlled, first) == RPC_MAGIC + 2
    assert answer_to(shell, controlled, second) == RPC_MAGIC
    controlled.withdraw()
    assert answer_to(shell, controlled, second) == RPC_MAGIC + 2
    assert "session 1 begins" in controlled.events


def test_an_order_that_is_refused_does_not_tell_its_key(controlled):
    assert controlled.control("withdraw") == "ok withdraw"
    controlled.cut()
    wrong = "two words"
    with pytest.raises(DeviceError, match="the board server on local refused the command 'key'") as caught:
        controlled.offer(wrong)
    assert caught.value.details == "the key must be of 64 hexadecimal digits"
    assert wrong not in str(caught.value)


@pytest.mark.parametrize("order", ["", "withdraw\nkey board"])
def test_an_order_is_one_line(controlled, order):
    with pytest.raises(InputError, match="must be one line"):
        controlled.control(order)
    assert controlled.control("withdraw") == "ok withdraw"


def test_a_server_that_has_ended(controlled, tmp_path):
    for pid in servers_in(tmp_path):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match=r"the board server on local has ended|does not read its input"):
        controlled.withdraw()


def servers_in(folder: Path) -> list[int]:
    """Name the servers with this work folder."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = path.read_bytes().split(b"\0")
            if arguments[0].endswith(b"/board_server") and bytes(folder) in arguments:
                pids.append(int(path.parent.name))
    assert pids
    return pids


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
    return board_server.Server("/run/socket", "/bin/board_server", ScriptedProcess(*lines), "board")


def test_what_a_server_tells_of_its_sessions_is_kept():
    server = scripted(
        "session 1 begins\n", "session 1 ends: well\n", "ok withdraw\n", "session 2 begins\n", "ok key a\n"
    )
    assert server.control("withdraw") == "ok withdraw"
    assert server.events == ["session 1 begins", "session 1 ends: well"]
    assert server.control("key a") == "ok key a"
    assert server.events[2:] == ["session 2 begins"]
    assert server.process.written == ["withdraw\n", "key a\n"]


def test_a_server_that_only_tells_of_sessions(monkeypatch):
    server = scripted()
    monkeypatch.setattr(server.process, "readline", lambda _timeout: f"session {'x' * 5000}\n")
    with pytest.raises(DeviceError, match="did not answer in time"):
        server.control("withdraw", timeout_s=0.2)
    assert len(server.events) <= 1000
    assert max(map(len, server.events)) <= 1000


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
