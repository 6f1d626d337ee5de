"""TVM's tracker: asked by our own words, and back soon after whatever happens to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.sshd import free_port
from toolchain import _farm_tracker as trackers
from toolchain._farm_tracker import Registered, Tracker
from toolchain.errors import DeviceError


@pytest.fixture(scope="module")
def tracker(tmp_path_factory):
    one = Tracker(tmp_path_factory.mktemp("tracker") / "log", ())
    one.start()
    group = its_processes(one)
    assert len(group) > 1
    yield one
    group = its_processes(one)
    one.stop()
    one.join(10)
    until(lambda: not group & alive())


def until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def answers(tracker: Tracker) -> bool:
    with contextlib.suppress(DeviceError):
        return trackers.registered(tracker.port, 2) == ()
    return False


def alive() -> set[int]:
    """Name all processes; one that only waits for its parent to notice its end is none."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] != "Z":
                found.add(int(stat.parent.name))
    return found


def its_processes(tracker: Tracker) -> set[int]:
    """Name the processes of the tracker: TVM's command and its second process, and the shell that guards them."""
    mark = f"--port\0{tracker.port}\0".encode()
    groups = {group_of(pid) for pid in alive() if mark in command(pid)}
    return {pid for pid in alive() if group_of(pid) in groups}


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_it_answers(tracker):
    assert trackers.registered(tracker.port) == ()


def test_it_tells_who_is_registered(tracker):
    from tvm import rpc

    port = free_port()
    server = rpc.Server("127.0.0.1", port, port + 1, key="some", tracker_addr=tracker.address, silent=True)
    try:
        until(lambda: trackers.registered(tracker.port) == (Registered("some", "127.0.0.1", server.port),))
    finally:
        server.terminate()
    until(lambda: answers(tracker))


def test_it_is_back_on_its_port_after_a_kill(tracker):
    until(lambda: answers(tracker))
    pids = its_processes(tracker)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: answers(tracker) and not pids & alive())


def test_it_is_back_after_half_of_it_was_killed(tracker):
    """TVM's command would leave its second process behind."""
    until(lambda: answers(tracker))
    pids = its_processes(tracker)
    os.kill(next(pid for pid in pids if b"-m\0tvm.exec.rpc_tracker\0" in command(pid)), signal.SIGKILL)
    until(lambda: answers(tracker) and not pids & alive())


def test_it_is_replaced_when_it_hangs(tracker, monkeypatch):
    monkeypatch.setattr(trackers, "_ASK_EVERY_S", 0.2)
    monkeypatch.setattr(trackers, "_ANSWER_S", 0.5)
    until(lambda: answers(tracker))
    pids = its_processes(tracker)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: answers(tracker) and not pids & alive(), 120)


def test_a_wanted_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert trackers.free_port([port]) not in {0, port}
    free = trackers.free_port()
    assert trackers.free_port([free]) == free


@pytest.mark.parametrize("said", [b"", b"HTTP", b"\x71\xf2\x02\0\xff\xff\xff\x7f", b"\x71\xf2\x02\0\4\0\0\0null"])
def test_a_stranger_is_no_tracker(said):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection = listener.accept()[0]
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while connection.recv(64):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(DeviceError, match="does not answer"):
            trackers.registered(listener.getsockname()[1], 5)
    with pytest.raises(DeviceError, match="does not answer"):
        trackers.registered(1, 5)
