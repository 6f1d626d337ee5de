"""SSH servers that break the protocol: little memory, little time, and an error of a device."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

from tests.support import hostile_sshd, memory
from toolchain.errors import DeviceError
from toolchain.shell import SshOptions, open_shell

MEMORY_KIB = 400 << 10


@pytest.fixture(autouse=True)
def _cheap(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    started = time.monotonic()
    with memory.at_most(MEMORY_KIB):
        yield
    assert time.monotonic() - started < 120


ATTACKS = (
    hostile_sshd.flood,
    hostile_sshd.flood_errors,
    hostile_sshd.silence,
    hostile_sshd.vanish,
    hostile_sshd.huge_code,
    *hostile_sshd.LOGINS,
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_whatever_it_does_is_a_fault_of_the_device(tmp_path, attack):
    (tmp_path / "source").write_bytes(bytes(1 << 20))
    works = {
        "run": lambda shell: shell.run("true", timeout=2),
        "push": lambda shell: shell.push(tmp_path / "source", "target"),
        "pull": lambda shell: shell.pull("source", tmp_path / "target", max_bytes=1 << 20),
    }
    for work in works.values():
        with hostile_sshd.running(tmp_path, attack) as (host, options), open_shell(host, config=options) as shell:
            with pytest.raises(DeviceError) as caught:
                work(shell)
            assert caught.value.message
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("attack", "opened"),
    [(hostile_sshd.flood, "start"), (hostile_sshd.flood, "stream"), (hostile_sshd.flood_errors, "stream")],
)
def test_what_nobody_reads_is_not_kept(tmp_path, attack, opened):
    """Neither of a process that is not listened to, nor of a stream."""
    with hostile_sshd.running(tmp_path, attack) as (host, options), open_shell(host, config=options) as shell:
        process = getattr(shell, opened)("cat")
        with pytest.raises(DeviceError, match="was lost"):
            _wait_for_loss(shell)
        process.close()


def test_errors_that_are_read_as_they_come_are_not_kept_either(tmp_path):
    """Of a process the last words are kept, however many there are: see `_cheap`."""
    attack = hostile_sshd.flood_errors
    with hostile_sshd.running(tmp_path, attack) as (host, options), open_shell(host, config=options) as shell:
        process = shell.start("cat")
        time.sleep(3)
        process.close()


def _wait_for_loss(shell, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        shell.check_alive("waiting")
        time.sleep(0.1)


@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-x\r\n" + struct.pack(">I", 0xFFFFFFF0) + bytes(60), b"x" * 4096, b"\n" * 4096]
)
def test_a_greeting_without_an_end(greeting):
    """Four bytes announce a packet of 4 GiB; or the greeting never ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                link, _ = listening.accept()
                with link:
                    link.sendall(greeting)
                    while not greeting.startswith(b"SSH"):
                        link.sendall(greeting)
                    while link.recv(1 << 16):
                        pass
            except OSError:
                pass

        threading.Thread(target=serve, daemon=True).start()
        options = SshOptions(agent=False, connect_timeout=2)
        with pytest.raises(DeviceError):
            open_shell(f"me@127.0.0.1:{listening.getsockname()[1]}", config=options)
