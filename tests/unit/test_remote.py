"""Opening sessions against servers that do not behave; real board servers are in integration/test_board_server.py."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

import toolchain
from toolchain import remote
from toolchain.errors import DeviceError, VerificationError

RPC_MAGIC, TRACKER_MAGIC = 0xFF271, 0x2F271
SOON_S = 0.5
HERE = {"device": "0.1.0", "tvm": "0.27.0", "tvm_ffi": "0.1.14.post1", "machine": "aarch64"}


@contextlib.contextmanager
def server(talk):
    """Listen on loopback, and let `talk` have every connection until the client has closed it."""

    def serve():
        with contextlib.suppress(OSError):  # the listener is closed at the end
            while True:
                link, _ = listener.accept()
                threading.Thread(target=speak, args=(link,), daemon=True).start()

    def speak(link):
        with link, contextlib.suppress(OSError):
            talk(link)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def silent(link):
    """Read what comes and say nothing, until the client has gone."""
    while link.recv(4096):
        pass


def says(*parts: bytes, pause: float = 0.0):
    def talk(link):
        link.recv(4096)
        for part in parts:
            link.sendall(part)
            time.sleep(pause)
        silent(link)

    return talk


def versions_then(talk, found=None):
    """Answer the question for the versions, and then `talk`."""
    text = json.dumps(found or {}).encode()

    def first(link):
        if b"edge-toolchain:version" in link.recv(4096, socket.MSG_PEEK):
            link.sendall(struct.pack("<ii", RPC_MAGIC, len(text)) + text)
        else:
            talk(link)

    return first


def closes(link):
    link.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def connect(port: int, timeout_s: float = SOON_S):
    return remote.connect("127.0.0.1", port, timeout_s=timeout_s, expected={})


def request(port: int, timeout_s: float = SOON_S):
    return remote.request("127.0.0.1", port, "rpi4", timeout_s=timeout_s, expected={})


def fails_soon(call, port: int) -> DeviceError:
    """Expect a device error about when the timeout is over, and no socket or thread left."""
    before, threads, start = descriptors(), threading.active_count(), time.monotonic()
    with pytest.raises(DeviceError) as caught:
        call(port)
    assert time.monotonic() - start < SOON_S + 1
    while (descriptors(), threading.active_count()) != (before, threads):  # the fake server's end takes a moment
        assert time.monotonic() - start < SOON_S + 2, (before, descriptors(), threads, threading.active_count())
        time.sleep(0.01)
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value


# --- connect ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_nobody_listens(closed_port):
    assert "no board server listens" in fails_soon(connect, closed_port).message


def test_an_unknown_host():
    with pytest.raises(DeviceError, match="no address"):
        remote.connect("nowhere.invalid", 9090, timeout_s=SOON_S, expected={})


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
        fault = fails_soon(connect, port)
    assert fault.message == f"127.0.0.1:{port} opens no session within {SOON_S:g} s"


def test_a_server_that_does_not_accept():
    """A full backlog: the connection itself hangs."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.settimeout(0)
            one.connect_ex(listener.getsockname())
        fault = fails_soon(connect, listener.getsockname()[1])
    assert "opens no session" in fault.message


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
        assert "does not answer as a board server" in fails_soon(connect, port).message


def test_a_wrong_key():
    with server(versions_then(says(struct.pack("<i", RPC_MAGIC + 2)))) as port:
        assert "does not serve the key ''" in fails_soon(connect, port).message


def test_one_thread_does_not_cut_the_others_off():
    """Sessions with one address are opened one after the other, since they could not be told apart."""
    faults = []

    def attempt(seconds):
        with pytest.raises(DeviceError) as caught:
            connect(port, seconds)
        faults.append((seconds, caught.value.message))

    with server(versions_then(silent)) as port:
        threads = [threading.Thread(target=attempt, args=(seconds,)) for seconds in (0.3, 0.6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
    assert sorted(faults) == [(s, f"127.0.0.1:{port} opens no session within {s:g} s") for s in (0.3, 0.6)]


def test_connections_of_others_are_left_alone():
    with server(versions_then(silent)) as port, socket.create_connection(("127.0.0.1", port)) as other:
        time.sleep(0.1)  # until the fake server has its thread
        fails_soon(connect, port)
        other.sendall(b"still here")
        other.settimeout(0.1)
        with pytest.raises(TimeoutError):
            other.recv(1)


@pytest.mark.parametrize("talk", [silent, versions_then(silent)], ids=["when asked", "when connected"])
def test_waiting_ends_when_it_is_told_to(talk):
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    start = time.monotonic()
    with server(talk) as port, pytest.raises(DeviceError):
        remote.connect("127.0.0.1", port, timeout_s=60, expected={}, stop=stop)
    assert 0.3 <= time.monotonic() - start < 5


def test_waiting_for_a_tracker_ends_when_it_is_told_to():
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    start = time.monotonic()
    with server(tracker()) as port, pytest.raises(DeviceError):
        remote.request("127.0.0.1", port, "rpi4", timeout_s=60, expected={}, stop=stop)
    assert 0.3 <= time.monotonic() - start < 5


# --- a session -------------------------------------------------------------------------------------------------------


class Rpc:
    """TVM's session, as far as it has to be closed."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.closed = 0

    def get_function(self, name):
        assert name == "CloseRPCConnection"
        return self.close

    def close(self):
        self.closed += 1
        if self.fault:
            raise self.fault


@contextlib.contextmanager
def opened(rpc=None, address=("127.0.0.1", 9)):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield remote.Session(rpc or Rpc(), address, stock=False, link=ours.dup()), ours


def test_a_session_is_cut_from_any_thread():
    with opened() as (session, waiting):
        cutter = threading.Timer(0.1, session.cut)
        cutter.start()
        waiting.settimeout(10)
        assert waiting.recv(1) == b""
        cutter.join()  # it holds the session, whose descriptor the next test would see go


def test_a_session_is_closed_once_for_all():
    before = descriptors()
    rpc = Rpc()
    with opened(rpc) as (session, _):
        with session:
            pass
        session.close()
        session.cut()
    assert rpc.closed == 2
    assert descriptors() == before


def test_a_lost_session_is_closed_as_well():
    before = descriptors()
    with opened(Rpc(RuntimeError("broken pipe"))) as (session, _):
        session.close()
    assert descriptors() == before


def test_a_forgotten_session_leaves_no_descriptor():
    before = descriptors()
    with opened() as (session, _):
        del session
    assert descriptors() == before


def test_a_deadline_cuts_and_says_so():
    with opened() as (session, waiting):
        waiting.settimeout(10)
        start = time.monotonic()
        match = r"127.0.0.1:9 says nothing for 0\.2 s"
        with pytest.raises(DeviceError, match=match) as caught, remote.deadline(session, 0.2):
            raise RuntimeError(f"Channel closes: {waiting.recv(1)!r}")
        assert 0.2 <= time.monotonic() - start < 5
        assert isinstance(caught.value, DeviceError)
        assert str(caught.value.__cause__) == "Channel closes: b''"


def test_a_deadline_that_went_unnoticed():
    with opened() as (session, _), pytest.raises(DeviceError), remote.deadline(session, 0.05):
        time.sleep(0.3)


def test_a_deadline_that_is_kept():
    threads = threading.active_count()
    with opened() as (session, waiting):
        with remote.deadline(session, 60):
            pass
        with pytest.raises(KeyError), remote.deadline(session, 60):
            raise KeyError
        assert threading.active_count() <= threads
        waiting.settimeout(0.05)
        with pytest.raises(TimeoutError):
            waiting.recv(1)


@pytest.mark.parametrize(
    ("talk", "answers"),
    [(versions_then(silent), True), (says(struct.pack("<i", RPC_MAGIC + 2)), True), (silent, False), (closes, False)],
    ids=["ours", "TVM's own", "silent", "closes"],
)
def test_a_sign_of_life(talk, answers):
    with server(talk) as port, opened(address=("127.0.0.1", port)) as (session, _):
        assert session.answers(SOON_S) is answers


def test_no_sign_of_life(closed_port):
    with opened(address=("127.0.0.1", closed_port)) as (session, _):
        assert not session.answers(SOON_S)


# --- the versions ----------------------------------------------------------------------------------------------------


def check(text: str, expected=HERE) -> None:
    def talk(link):
        link.recv(4096)
        link.sendall(struct.pack("<ii", RPC_MAGIC, len(text)) + text.encode())

    with server(talk) as port:
        terms = remote._Terms(1.0, 0.0, expected, stock_allowed=False)
        remote._check(remote._asked(("127.0.0.1", port), "board:9090", terms), "board:9090", terms)


def test_the_same_versions_pass():
    check(json.dumps(HERE))
    check(json.dumps({**HERE, "machine": "armv7l"}), {name: HERE[name] for name in ("device", "tvm", "tvm_ffi")})


def test_tvm_ffi_counts_to_its_third_number():
    check(json.dumps({**HERE, "tvm_ffi": "0.1.14"}))


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("tvm", "0.26.0", "the board server has TVM 0.26.0, and this toolchain has TVM 0.27.0"),
        ("tvm_ffi", "0.1.15", "the board server has tvm-ffi 0.1.15, and this toolchain has tvm-ffi 0.1.14.post1"),
        ("device", "0.0.9", "the board server is of version 0.0.9, and this toolchain brings version 0.1.0"),
        ("machine", "armv7l", "the board server runs on armv7l, and aarch64 is expected"),
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
    with pytest.raises(VerificationError, match="in no known form"):
        check(text)


def test_a_server_that_cannot_say_its_versions():
    with server(says(struct.pack("<i", RPC_MAGIC + 2))) as port, pytest.raises(VerificationError) as caught:
        connect(port)
    assert "not this toolchain's" in caught.value.message


def test_versions_of_this_toolchain():
    assert remote.versions() == {
        "device": toolchain.__version__,
        "tvm": importlib.metadata.version("apache-tvm"),
        "tvm_ffi": importlib.metadata.version("apache-tvm-ffi"),
    }
    assert remote.versions("armv7l")["machine"] == "armv7l"


# --- the tracker -----------------------------------------------------------------------------------------------------


def message(value) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack("<i", len(text)) + text


def tracker(*answers):
    def talk(link):
        link.recv(4)
        link.sendall(struct.pack("<i", TRACKER_MAGIC))
        for answer in answers:
            link.recv(4096)
            link.sendall(answer)
        silent(link)

    return talk


def test_no_tracker(closed_port):
    assert "no tracker" in fails_soon(request, closed_port).message


@pytest.mark.parametrize("talk", [silent, tracker()], ids=["nothing at all", "no board"])
def test_a_tracker_without_a_board(talk):
    with server(talk) as port:
        fault = fails_soon(request, port)
    assert "no free board rpi4" in fault.message
    assert "query_rpc_tracker" in fault.hint


@pytest.mark.parametrize(
    "talk",
    [
        says(struct.pack("<i", RPC_MAGIC)),
        closes,
        tracker(struct.pack("<i", 1 << 30)),
        tracker(struct.pack("<i", -1)),
        tracker(message([-1, "no"])),
        tracker(message([0, ["127.0.0.1"]])),
        tracker(struct.pack("<i", 3) + b"}{}"),
    ],
    ids=["another magic", "closes", "huge", "negative", "refusal", "half an answer", "no JSON"],
)
def test_no_tracker_at_all(talk):
    with server(talk) as port:
        assert "tracker" in fails_soon(request, port).message


def test_a_board_that_hangs(closed_port):
    with server(silent) as board, server(tracker(message([0, ["127.0.0.1", board, "rpi4:0.1"]]))) as port:
        assert f"127.0.0.1:{board} opens no session" in fails_soon(request, port).message


def test_a_key_that_grew_old_is_asked_for_again():
    asked = []

    def talk(link):
        asked.append(1)
        tracker(message([0, ["127.0.0.1", board, f"rpi4:0.{len(asked)}"]]))(link)

    def refuse_once(link):
        header = link.recv(4096)
        while b"rpi4" not in header:
            header += link.recv(4096)
        link.sendall(struct.pack("<i", RPC_MAGIC + 2 if b"rpi4:0.1" in header else 7))

    with server(versions_then(refuse_once)) as board, server(talk) as port:
        assert "does not answer as a board server" in fails_soon(request, port).message
    assert len(asked) == 2


def test_a_board_that_refuses_every_key():
    with (
        server(versions_then(says(struct.pack("<i", RPC_MAGIC + 2)))) as board,
        server(tracker(message([0, ["127.0.0.1", board, "rpi4:0.1"]]))) as port,
    ):
        assert f"{board} refuses its key" in fails_soon(request, port).message
