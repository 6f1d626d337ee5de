"""What the daemon and its clients say to each other."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from tests.support import stranger
from toolchain.errors import DeviceError, InputError, VerificationError
from toolchain.farm import protocol
from toolchain.farm.protocol import Link, ServedDevice
from toolchain.native.programs import Program
from toolchain.shell import SshOptions

PROGRAM = Program(Path("/cache/board_server"), "ab" * 32, "2.28", "x86_64", {"device": "1", "tvm": "2"})
PLAIN = ServedDevice("a", "rpi4", "me@there:22", "~/store", emulated=False, program=PROGRAM, ssh=SshOptions())


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with Link(left) as first, Link(right) as second:
        yield first, second


@pytest.mark.parametrize(
    "ssh",
    [
        SshOptions(),
        SshOptions(
            config_file=Path("/a/config"),
            known_hosts=(Path("/b"), Path("/c")),
            identity=Path("/d"),
            password="a secret",  # noqa: S106 - of nobody
        ),
    ],
)
def test_a_device_arrives_as_it_was_sent(pair, ssh):
    sent = ServedDevice("a", "rpi4", "me@there:22", "~/store", emulated=True, program=PROGRAM, ssh=ssh)
    pair[0].send(sent.message())
    assert ServedDevice.of(pair[1].receive(5)) == sent


def test_a_password_is_not_shown():
    assert "secret" not in repr(ServedDevice.of({**PLAIN.message(), "password": "secret"}))


@pytest.mark.parametrize("kind", [DeviceError, InputError, VerificationError])
def test_an_error_arrives_as_it_was_raised(pair, kind):
    pair[0].send(protocol.fault_message(kind("no", details="because", hint="do")))
    fault = protocol.parse_fault(pair[1].receive(5))
    assert type(fault) is kind
    assert (fault.message, fault.details, fault.hint) == ("no", "because", "do")


def test_messages_that_arrive_together_or_in_pieces(pair):
    pair[0].send({"a": 1})
    pair[0].send({"b": "é" * 10_000})
    assert [pair[1].receive(5), len(pair[1].receive(5)["b"])] == [{"a": 1}, 10_000]


def test_what_came_in_time_is_heard_however_late_we_look(pair):
    pair[0].send({"a": 1})
    assert pair[1].receive(0) == {"a": 1}


def test_an_end_and_a_silence(pair):
    with pytest.raises(TimeoutError):
        pair[1].receive(0.05)
    assert pair[1].alive
    assert pair[1].peer_pid == os.getpid()
    pair[0].close()
    assert not pair[1].alive
    assert pair[1].receive(5) is None
    pair[1].close()
    assert not pair[1].alive


def test_a_waiting_thread_wakes_up_when_its_link_is_closed(pair):
    messages = []
    thread = threading.Thread(target=lambda: messages.append(pair[0].receive()), daemon=True)
    thread.start()
    pair[1].close()
    thread.join(5)
    assert messages == [None]


@pytest.fixture
def folder(tmp_path):
    """A folder whose name is longer than a socket's may be."""
    folder = tmp_path / ("long" * 30)
    protocol.make_folder(folder)
    return folder


def test_only_the_user_gets_in(folder):
    with protocol.listen(folder) as listener, protocol.connect(folder) as link:
        assert stat.S_IMODE((folder / protocol.SOCKET).stat().st_mode) == 0o600
        other = Link(listener.accept()[0])
        link.send({"do": "hello"})
        assert other.receive(5) == {"do": "hello"}
        other.close()


def test_what_a_killed_daemon_left_is_replaced(folder):
    assert protocol.connect(folder) is None
    protocol.listen(folder).close()
    assert (folder / protocol.SOCKET).exists()
    assert protocol.connect(folder) is None
    with protocol.listen(folder), protocol.connect(folder) as link:
        assert link.alive


def test_no_folder(tmp_path):
    assert protocol.connect(tmp_path / "none") is None


def test_a_socket_without_messages(pair):
    pair[0].send({"do": "session"})
    assert pair[1].receive(5) == {"do": "session"}
    left, right = (link.raw() for link in pair)
    left.sendall(b"\0bytes\n")
    assert (right.gettimeout(), right.recv(64)) == (None, b"\0bytes\n")


# --- other users ---


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o740, 0o755, 0o777])
def test_a_folder_that_is_open_to_others_is_refused(folder, mode):
    with protocol.listen(folder):
        folder.chmod(mode)
        for use in (protocol.connect, protocol.make_folder, protocol.listen):
            with pytest.raises(VerificationError, match="other users can access") as caught:
                use(folder)
            assert "chmod 700" in caught.value.hint


def test_a_folder_that_is_made_is_closed(tmp_path):
    before = os.umask(0)
    try:
        protocol.make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    with pytest.raises(InputError, match="cannot write"):
        protocol.make_folder(tmp_path / "link")
    assert protocol.connect(tmp_path / "link") is None


def test_a_folder_that_a_stranger_made_is_refused():
    """Where all may write, somebody may be there first, and wait for passwords and for keys."""
    with stranger.shared_folder() as shared:
        folder = shared / "serving"
        stranger.run(
            "os.mkdir(sys.argv[1], 0o700); socket.socket(socket.AF_UNIX).bind(sys.argv[1] + '/socket')", folder
        )
        for use in (protocol.connect, protocol.make_folder, protocol.listen):
            with pytest.raises(VerificationError, match="belongs to another user") as caught:
                use(folder)
            assert (caught.value.exit_code, str(stranger.UID) in caught.value.details) == (5, True)


CONNECT = """
found = socket.socket(socket.AF_UNIX)
try:
    found.connect(sys.argv[1] + "/socket")
except OSError as fault:
    print(type(fault).__name__)
else:
    print("connected")
    found.sendall(b'{"do": "status"}\\n')
"""


def test_a_stranger_does_not_get_to_the_socket():
    with stranger.shared_folder() as shared:
        protocol.make_folder(folder := shared / "serving")
        with protocol.listen(folder):
            assert stranger.run(CONNECT, folder) == "PermissionError"


def test_each_end_asks_who_the_other_is():
    """Modes alone would not do where a backup or a careless command has changed them."""
    with stranger.shared_folder() as shared:
        protocol.make_folder(folder := shared / "serving")
        listener = protocol.listen(folder)
        folder.chmod(0o777)
        (folder / protocol.SOCKET).chmod(0o666)
        assert stranger.run(CONNECT, folder) == "connected"
        with listener, Link(listener.accept()[0]) as link:
            assert not link.is_same_user


SERVE = """
path = sys.argv[1] + "/socket"
os.unlink(path)
found = socket.socket(socket.AF_UNIX)
found.bind(path)
os.chmod(path, 0o666)
found.listen()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_stranger_that_answers_as_the_daemon_is_refused():
    with stranger.shared_folder() as shared:
        protocol.make_folder(folder := shared / "serving")
        protocol.listen(folder).close()
        folder.chmod(0o777)
        with stranger.running(SERVE, folder):
            folder.chmod(0o700)
            with pytest.raises(VerificationError, match="a process of another user answers"):
                protocol.connect(folder)
