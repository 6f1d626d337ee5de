"""The first words with servers that do not behave."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import socket
import struct
import threading
import time

import pytest

import toolchain
from tests.support.rpc_servers import RPC_MAGIC, closes, leaving_nothing, says, server, silent, to, versions_then
from toolchain.errors import DeviceError, VerificationError
from toolchain.rpc import handshake
from toolchain.rpc.handshake import Terms

SOON_S = 0.5
HERE = {"device": "0.1.0", "tvm": "0.27.0", "tvm_ffi": "0.1.14.post1", "machine": "aarch64"}


def greet(port: int, timeout_s: float = SOON_S, stop: threading.Event | None = None):
    terms = Terms(timeout_s, stop=stop)
    handshake.check(to(port), "board-1", terms)
    return handshake.open_session(to(port), "board-1", "key", terms)


def fails_soon(port: int) -> DeviceError:
    """Expect a device error about when the timeout is over, and no socket or thread left."""
    with leaving_nothing(), pytest.raises(DeviceError) as caught:
        greet(port)
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_nobody_listens(closed_port):
    assert "no board server listens at board-1" in fails_soon(closed_port).message


@pytest.mark.parametrize("first", [lambda talk: talk, versions_then], ids=["when asked", "when connected"])
@pytest.mark.parametrize(
    "talk",
    [
        silent,
        says(struct.pack("<i", RPC_MAGIC)),
        says(struct.pack("<ii", RPC_MAGIC, 7)),
        says(struct.pack("<ii", RPC_MAGIC, 7) + b"server"),
        says(*[b"x"] * 3, pause=0.3),
    ],
    ids=["nothing", "half a greeting", "a greeting without its key", "half a key", "byte by byte"],
)
def test_a_server_that_falls_silent(first, talk):
    with server(first(talk)) as port:
        fault = fails_soon(port)
    assert fault.message == f"board-1 did not open a session within {SOON_S:g} s"


def test_a_server_that_does_not_accept():
    """A full backlog: the connection itself hangs."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            pending = stack.enter_context(socket.socket())
            pending.settimeout(0)
            pending.connect_ex(listener.getsockname())
        fault = fails_soon(listener.getsockname()[1])
    assert "did not open a session" in fault.message


@pytest.mark.parametrize(
    "talk",
    [
        says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        says(struct.pack("<ii", RPC_MAGIC, 1 << 30)),
        says(struct.pack("<ii", RPC_MAGIC, -1)),
        closes,
        versions_then(says(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
    ],
    ids=["another", "huge", "negative", "closes", "another when connected"],
)
def test_no_board_server(talk):
    with server(talk) as port:
        assert "is not a board server" in fails_soon(port).message


def test_a_wrong_key():
    refusing = versions_then(says(struct.pack("<i", RPC_MAGIC + 2)))
    with server(refusing) as port, pytest.raises(handshake.KeyRefusedError):
        greet(port)


@pytest.mark.parametrize("talk", [silent, versions_then(silent)], ids=["when asked", "when connected"])
def test_waiting_ends_when_it_is_told_to(talk):
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    start = time.monotonic()
    with server(talk) as port, pytest.raises(DeviceError):
        greet(port, 60, stop)
    assert 0.3 <= time.monotonic() - start < 30


@pytest.mark.parametrize("has_limit", [True, False])
def test_the_limit_of_a_session_is_passed_on(has_limit):
    received = []

    def talk(link):
        received.append(link.recv(4096))
        link.sendall(struct.pack("<ii", RPC_MAGIC, 6) + b"server")
        silent(link)

    terms = Terms(SOON_S * 20, session_s=7.5 if has_limit else 0.0)
    with server(versions_then(talk)) as port:
        handshake.open_session(to(port), "board-1", "key", terms).close()
    assert received[0][8:] == (b"client:key -timeout=7.5" if has_limit else b"client:key")


# --- the versions ----------------------------------------------------------------------------------------------------


def check(text: str, expected=HERE) -> None:
    def talk(link):
        link.recv(4096)
        link.sendall(struct.pack("<ii", RPC_MAGIC, len(text)) + text.encode())

    with server(talk) as port:
        assert not handshake.check(to(port), "board:9090", Terms(10.0, expected=expected))


def test_the_same_versions_pass():
    check(json.dumps(HERE))
    check(json.dumps({**HERE, "machine": "armv7l"}), {name: HERE[name] for name in ("device", "tvm", "tvm_ffi")})


def test_tvm_ffi_counts_to_its_third_number():
    check(json.dumps({**HERE, "tvm_ffi": "0.1.14"}))


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("tvm", "0.26.0", "the board server has TVM 0.26.0, but this toolchain has TVM 0.27.0"),
        ("tvm_ffi", "0.1.15", "the board server has tvm-ffi 0.1.15, but this toolchain has tvm-ffi 0.1.14.post1"),
        ("device", "0.0.9", "the board server has version 0.0.9, but this toolchain includes version 0.1.0"),
        ("machine", "armv7l", "the board server runs on armv7l, but aarch64 is expected"),
    ],
)
def test_each_other_version_is_refused_by_name(name, version, message):
    with pytest.raises(VerificationError) as caught:
        check(json.dumps({**HERE, name: version}))
    assert caught.value.message.startswith(message)
    assert caught.value.exit_code == 5
    assert "board:9090" in caught.value.details
    assert "board_server" in caught.value.hint


def test_all_differences_are_named():
    with pytest.raises(VerificationError) as caught:
        check(json.dumps({"device": "0.1.0"}))
    assert "an unknown version" in caught.value.message
    assert caught.value.details.count("\n") == 2


@pytest.mark.parametrize("text", ["[1]", "null", "{"])
def test_versions_in_an_unknown_form(text):
    with pytest.raises(VerificationError, match="in an unknown form"):
        check(text)


def test_a_server_that_cannot_say_its_versions():
    with server(says(struct.pack("<i", RPC_MAGIC + 2))) as port:
        with pytest.raises(VerificationError, match="not this toolchain's"):
            greet(port)
        assert handshake.check(to(port), "board-1", Terms(10.0, stock_allowed=True))


def test_versions_of_this_toolchain():
    assert handshake.versions() == {
        "device": toolchain.__version__,
        "tvm": importlib.metadata.version("apache-tvm"),
        "tvm_ffi": importlib.metadata.version("apache-tvm-ffi"),
    }
    assert handshake.versions("armv7l")["machine"] == "armv7l"
