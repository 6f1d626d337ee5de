"""What the keeper and its clients say to each other."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from toolchain import _farm_protocol as protocol
from toolchain._farm_protocol import Link, Served
from toolchain.device_runtime import Program
from toolchain.errors import DeviceError, InputError, VerificationError
from toolchain.shell import SshOptions

PROGRAM = Program(Path("/cache/board_server"), "ab" * 32, "2.28", "x86_64", {"device": "1", "tvm": "2"})
PLAIN = Served("a", "rpi4", "rpi4", "me@there:22", "~/store", emulated=False, program=PROGRAM, ssh=SshOptions())


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with Link(left) as one, Link(right) as other:
        yield one, other


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
    sent = Served("a", "rpi4", "key", "me@there:22", "~/store", emulated=True, program=PROGRAM, ssh=ssh)
    pair[0].send(sent.message())
    assert Served.of(pair[1].receive(5)) == sent


def test_a_password_is_not_shown():
    assert "secret" not in repr(Served.of({**PLAIN.message(), "password": "secret"}))


@pytest.mark.parametrize("kind", [DeviceError, InputError, VerificationError])
def test_an_error_arrives_as_it_was_raised(pair, kind):
    pair[0].send(protocol.fault_message(kind("no", details="because", hint="do")))
    found = protocol.fault_of(pair[1].receive(5))
    assert type(found) is kind
    assert (found.message, found.details, found.hint) == ("no", "because", "do")


def test_messages_that_arrive_together_or_in_pieces(pair):
    pair[0].send({"a": 1})
    pair[0].send({"b": "é" * 10_000})
    assert [pair[1].receive(5), len(pair[1].receive(5)["b"])] == [{"a": 1}, 10_000]


def test_an_end_and_a_silence(pair):
    with pytest.raises(TimeoutError):
        pair[1].receive(0.05)
    assert pair[1].alive
    assert pair[1].peer == os.getpid()
    pair[0].close()
    assert not pair[1].alive
    assert pair[1].receive(5) is None
    pair[1].close()
    assert not pair[1].alive


def test_a_waiting_thread_wakes_up_when_its_link_is_closed(pair):
    found = []
    thread = threading.Thread(target=lambda: found.append(pair[0].receive()), daemon=True)
    thread.start()
    pair[1].close()
    thread.join(5)
    assert found == [None]


@pytest.fixture
def place(tmp_path):
    """A folder whose name is longer than a socket's may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    return folder


def test_only_the_user_gets_in(place):
    with protocol.listen(place) as listener, protocol.connect(place) as link:
        assert stat.S_IMODE((place / protocol.SOCKET).stat().st_mode) == 0o600
        other = Link(listener.accept()[0])
        link.send({"do": "hello"})
        assert other.receive(5) == {"do": "hello"}
        other.close()


def test_what_a_killed_keeper_left_is_replaced(place):
    assert protocol.connect(place) is None
    protocol.listen(place).close()
    assert (place / protocol.SOCKET).exists()
    assert protocol.connect(place) is None
    with protocol.listen(place), protocol.connect(place) as link:
        assert link.alive


def test_no_folder(tmp_path):
    assert protocol.connect(tmp_path / "none") is None
