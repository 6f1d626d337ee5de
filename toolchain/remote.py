"""Sessions on a board over TVM's RPC: opened within a deadline, and checked before anything is uploaded.

Two things can go wrong before there is a session, and each has its own answer here.

The server may be another one, or none. It is asked first, over a plain socket with a timeout: board_server tells its
versions to whoever greets it with a certain key, also while it serves somebody else. TVM's own server refuses that key,
which does it no harm; it cannot be asked at all.

The server may hang, or be busy. TVM's `rpc.connect` then waits for ever, and can be given neither a socket nor a
timeout. So a second thread watches it: at the deadline it shuts the socket that TVM has opened, which it finds among
the sockets of this process, and TVM's call fails at once. No thread and no connection is left behind.

The server may hang later, too, and TVM waits for it in every call, in some with Python's lock held: when it frees what
a variable held on the board. A session therefore keeps a second descriptor of its socket, by which any thread can cut
it (`Session.cut`, `deadline`). Who works against a deadline keeps all that it gets from the session until the session
is closed or cut; only then do these last calls fail at once in place of waiting.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import select
import socket
import struct
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from tvm import rpc

from toolchain import device_runtime
from toolchain.errors import DeviceError, VerificationError

_MAGIC, _MISMATCH = 0xFF271, 0xFF271 + 2
_VERSION_KEY = b"edge-toolchain:version"  # the same word as in runtime/server/server.cc
_MAX_VERSIONS = 4096
_TRACKER_MAGIC, _TRACKER_REQUEST, _TRACKER_SUCCESS = 0x2F271, 4, 0
_MAX_TRACKER_MESSAGE = 1 << 20
_CUT_AGAIN_S, _ASK_AGAIN_S, _TURN_S = 0.05, 0.1, 0.25

# Each socket is found by the address that it goes to, so that two threads must not open a session with the same board
# server at the same moment; it serves one after the other anyway.
_LOCKS: defaultdict[tuple[str, int], threading.Lock] = defaultdict(threading.Lock)
# Sockets of this module's own, which go to the same address and are no sessions.
_ASKING: set[int] = set()


class _KeyRefusedError(Exception):
    """The server does not know the key; one from a tracker may have grown too old."""


class Session:
    """A session on a board.

    Args:
        rpc: TVM's session, a `tvm.rpc.RPCSession`.
        address: Host and port that it goes to.
        stock: Whether TVM's own server is there, which cannot say its versions.
        link: A second descriptor of its socket.
    """

    def __init__(self, rpc: Any, address: tuple[str, int], *, stock: bool, link: socket.socket) -> None:
        self.rpc = rpc
        self.address = address
        self.stock = stock
        self._link = link
        self._lock = threading.Lock()
        weakref.finalize(self, link.close)  # for who leaves the closing of `rpc` to the garbage collector

    def cut(self) -> None:
        """End the connection, from any thread: calls that wait for the board fail at once, and all later ones."""
        with self._lock, contextlib.suppress(OSError):  # it is closed, or the board's end is gone
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the session, which frees the board for the next one. It may be called twice, and after `cut`."""
        with contextlib.suppress(RuntimeError):  # the connection is lost
            self.rpc.get_function("CloseRPCConnection")()
        with self._lock:
            self._link.close()

    def answers(self, timeout_s: float) -> bool:
        """Ask the server itself for a sign of life, over a connection of its own.

        TVM's own server gives one only while it serves nobody.
        """
        try:
            _asked(self.address, f"{self.address[0]}:{self.address[1]}", _Terms(timeout_s, 0.0, {}, stock_allowed=True))
        except (DeviceError, VerificationError):
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def deadline(session: Session, seconds: float) -> Iterator[None]:
    """Cut a session if the block lasts longer than so many seconds.

    Raises:
        DeviceError: It did; also where the block noticed nothing of it.
    """
    done, expired = threading.Event(), threading.Event()

    def watch() -> None:
        if not done.wait(max(seconds, 0.0)):
            expired.set()
            session.cut()

    thread = threading.Thread(target=watch, name="rpc-deadline", daemon=True)
    thread.start()
    try:
        yield
    except Exception as fault:
        if not expired.is_set():
            raise
        raise _late(session, seconds) from fault
    finally:
        done.set()
        thread.join()
    if expired.is_set():
        raise _late(session, seconds)


def _late(session: Session, seconds: float) -> DeviceError:
    return DeviceError(
        f"the board at {session.address[0]}:{session.address[1]} says nothing for {seconds:g} s",
        hint="read the board server's log; is the board well?",
    )


def versions(machine: str = "") -> dict[str, str]:
    """Return what a board server must say of itself to work with this toolchain.

    Args:
        machine: What `uname -m` must say on the board; empty if any will do.
    """
    return {**device_runtime.versions(), "machine": machine} if machine else device_runtime.versions()


def connect(  # noqa: PLR0913 - a session has these independent parts
    host: str,
    port: int,
    *,
    key: str = "",
    timeout_s: float,
    expected: Mapping[str, str],
    session_s: float = 0.0,
    stock_allowed: bool = False,
    stop: threading.Event | None = None,
) -> Session:
    """Open a session with a board server and check its versions.

    Args:
        host: Address of the server, or this end of a tunnel to it.
        port: Its port.
        key: The server's key; from a tracker, the match key.
        timeout_s: Seconds for all of this. A server that is busy with another session uses them up as well.
        expected: What the server must say of itself, see `versions`.
        session_s: Seconds after which the server ends the session; 0 for no limit.
        stock_allowed: Also take TVM's own server, which cannot be asked for its versions.
        stop: Ends the waiting when it is set, as if the time were over.

    Returns:
        The session. Its `close` frees the board before it is garbage.

    Raises:
        DeviceError: Nobody listens there, the server does not open a session in time, or the key is not its own.
        VerificationError: The server is of another version, or for another machine.
    """
    try:
        return _connected(host, port, key, _Terms(timeout_s, session_s, expected, stock_allowed, stop))
    except _KeyRefusedError as fault:
        raise DeviceError(
            f"the board server at {host}:{port} does not serve the key {key!r}",
            hint="give the --key that the board server was started with; with --tracker, ask the tracker for the board",
        ) from fault


def request(  # noqa: PLR0913 - as above
    tracker_host: str,
    tracker_port: int,
    key: str,
    *,
    timeout_s: float,
    expected: Mapping[str, str],
    session_s: float = 0.0,
    stock_allowed: bool = False,
    priority: int = 1,
    stop: threading.Event | None = None,
) -> Session:
    """Ask a tracker for a free board, open a session with it, and check its versions.

    Args:
        tracker_host: Address of the tracker.
        tracker_port: Its port.
        key: The kind of board, as the board servers' `--key` names it.
        timeout_s: Seconds for all of this, waiting for a free board included.
        expected: As for `connect`.
        session_s: As for `connect`.
        stock_allowed: As for `connect`.
        priority: The tracker serves requests of higher priority first.
        stop: As for `connect`.

    Returns:
        The session.

    Raises:
        DeviceError: There is no tracker, no board is free in time, or the board does not answer.
        VerificationError: As for `connect`.
    """
    terms = _Terms(timeout_s, session_s, expected, stock_allowed, stop)
    while True:
        host, port, match_key = _ask_tracker((tracker_host, tracker_port), key, priority, terms)
        try:
            return _connected(host, port, match_key, terms)
        except _KeyRefusedError as fault:  # the board has offered itself anew in the meantime: ask again
            if terms.left() <= _ASK_AGAIN_S:
                raise DeviceError(
                    f"the board that the tracker named for {key} at {host}:{port} refuses its key",
                    hint="look whether two board servers use one address: python -m tvm.exec.query_rpc_tracker",
                ) from fault
            time.sleep(_ASK_AGAIN_S)


class _Terms:
    """What a session is opened under, and the time left for it."""

    def __init__(
        self,
        timeout_s: float,
        session_s: float,
        expected: Mapping[str, str],
        stock_allowed: bool,  # noqa: FBT001 - passed on
        stop: threading.Event | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.session_s = session_s
        self.expected = expected
        self.stock_allowed = stock_allowed
        self._end = time.monotonic() + timeout_s
        self._stop = stop or threading.Event()

    def left(self) -> float:
        return 0.0 if self._stop.is_set() else self._end - time.monotonic()

    def wait(self, done: Callable[[float], bool]) -> bool:
        """Wait until something is done, in short turns, for as long as there is time; return whether it was."""
        while (left := self.left()) > 0:
            if done(min(left, _TURN_S)):
                return True
        return False


# --- opening and watching --------------------------------------------------------------------------------------------


def _connected(host: str, port: int, key: str, terms: _Terms) -> Session:
    address = _resolved(host, port)
    place = f"{host}:{port}"
    found = _asked(address, place, terms)
    _check(found, place, terms)
    with _turn(address, place, terms), _Watch(address, terms) as watch:
        try:
            opened = watch.open(key, terms.session_s)
        except RuntimeError as fault:  # all of TVM's errors are one of these
            raise _translated(fault, place, terms, expired=watch.expired) from fault
        link = watch.keep()
        if link is None:
            raise _silent(place, terms) if watch.expired else _stranger(place, "it closes the connection")
    return Session(opened, address, stock=found is None, link=link)


def _resolved(host: str, port: int) -> tuple[str, int]:
    """Look the address up once, so that TVM and the watch mean the same one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        raise DeviceError(
            f"there is no address for {host!r}", details=str(fault), hint="check the host's name"
        ) from fault
    return str(found[0][4][0]), port


@contextlib.contextmanager
def _turn(address: tuple[str, int], place: str, terms: _Terms) -> Iterator[None]:
    lock = _LOCKS[address]
    if not terms.wait(lambda seconds: lock.acquire(timeout=seconds)):
        raise _silent(place, terms)
    try:
        yield
    finally:
        lock.release()


def _translated(fault: Exception, place: str, terms: _Terms, *, expired: bool) -> Exception:
    text = str(fault).strip()
    if expired:
        return _silent(place, terms)
    if "cannot find server that matches key" in text:
        return _KeyRefusedError(text)
    words = text.splitlines()[-1].strip() if text else type(fault).__name__
    if type(fault).__name__ == "RPCError":  # told in the protocol's own way
        return DeviceError(f"{place} cannot begin a session", details=words, hint="read the board server's log")
    return _stranger(place, words)


def _stranger(place: str, details: str) -> DeviceError:
    return DeviceError(
        f"{place} does not answer as a board server does",
        details=details,
        hint="check the port; board_server prints its own when it starts",
    )


def _silent(place: str, terms: _Terms) -> DeviceError:
    return DeviceError(
        f"{place} opens no session within {terms.timeout_s:g} s",
        details="it serves another session, it hangs, or it is no board server",
        hint="read the board server's log; wait for the other session, or give this more time",
    )


class _Watch:
    """Ends the connections to an address that are opened in its scope, if the scope lasts too long."""

    def __init__(self, address: tuple[str, int], terms: _Terms) -> None:
        self._address = address
        self._terms = terms
        self._before = {inode for _, inode in _own_sockets()}
        self._cut: set[tuple[int, int]] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rpc-watch", daemon=True)
        self.expired = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def open(self, key: str, session_s: float) -> Any:
        """Let TVM connect; close what it leaves open when it fails."""
        try:
            return rpc.connect(*self._address, key, session_timeout=session_s)
        except RuntimeError:
            self._stop()
            for number, inode in self._cut | self._opened():
                if _inode_of(number) == inode:
                    os.close(number)
            raise

    def keep(self) -> socket.socket | None:
        """Stop watching, let what was opened live on, and notice when the board is gone.

        Returns:
            A second descriptor of the connection; None if it is cut or gone already.
        """
        self._stop()
        kept = None
        for connection in self._copies():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
                connection.setsockopt(socket.IPPROTO_TCP, name, value)
            if kept is not None:
                kept.close()
            kept = connection
        if kept is not None and self.expired:
            kept.close()
        return None if self.expired else kept

    def _stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        if self._terms.wait(self._done.wait) or self._done.is_set():
            return
        self.expired = True
        while not self._done.wait(_CUT_AGAIN_S):  # again: TVM may open its socket only now
            self._cut |= self._opened()
            for connection in self._copies():
                with connection, contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _opened(self) -> set[tuple[int, int]]:
        """Name the descriptors and sockets that were opened to the address since the watch began."""
        remote = _inodes_to(self._address) - self._before - _ASKING
        return {(number, inode) for number, inode in _own_sockets() if inode in remote}

    def _copies(self) -> Iterator[socket.socket]:
        """Yield a second descriptor of each of them; the first stays TVM's."""
        for number, inode in self._opened():
            with contextlib.suppress(OSError):  # TVM has closed it by now
                copy = os.dup(number)
                if _inode_of(copy) == inode:
                    yield socket.socket(fileno=copy)
                else:
                    os.close(copy)


def _inode_of(descriptor: int | str) -> int:
    """Return the number that the kernel knows a socket by; 0 for what is no socket."""
    try:
        link = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:  # closed by another thread
        return 0
    match = re.fullmatch(r"socket:\[(\d+)\]", link)
    return int(match[1]) if match else 0


def _own_sockets() -> list[tuple[int, int]]:
    pairs = [(int(path.name), _inode_of(path.name)) for path in Path("/proc/self/fd").iterdir()]
    return [(number, inode) for number, inode in pairs if inode]


def _inodes_to(address: tuple[str, int]) -> set[int]:
    """Name the TCP sockets that are connected, or about to be, to an address; getpeername tells only the former."""
    six = ":" in address[0]
    raw = socket.inet_pton(socket.AF_INET6 if six else socket.AF_INET, address[0].partition("%")[0])
    words = struct.unpack(f"{len(raw) // 4}I", raw)  # the kernel prints words in the machine's order
    remote = "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
    lines = Path("/proc/self/net/tcp6" if six else "/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    rows = [line.split() for line in lines]
    return {int(row[9]) for row in rows if row[2] == remote}


# --- checking --------------------------------------------------------------------------------------------------------


def _asked(address: tuple[str, int], place: str, terms: _Terms) -> dict[str, str] | None:
    """Return what a board server says of itself; None if it is another RPC server."""
    try:
        with _link_to(address, terms) as link:
            link.sendall(struct.pack("<ii", _MAGIC, len(_VERSION_KEY)) + _VERSION_KEY)
            code = struct.unpack("<i", _received(link, 4, terms))[0]
            if code == _MISMATCH:
                return None
            size = struct.unpack("<i", _received(link, 4, terms))[0] if code == _MAGIC else 0
            if not 0 < size <= _MAX_VERSIONS:
                raise _stranger(place, f"it says {code} and {size}")
            return _parsed(_received(link, size, terms), place)
    except ConnectionRefusedError as fault:
        raise DeviceError(
            f"no board server listens at {place}", hint="start board_server there, or the tunnel that leads to it"
        ) from fault
    except TimeoutError as fault:
        raise _silent(place, terms) from fault
    except OSError as fault:
        raise _stranger(place, str(fault)) from fault


@contextlib.contextmanager
def _link_to(address: tuple[str, int], terms: _Terms) -> Iterator[socket.socket]:
    """Connect to a server; whoever watches for sessions with it takes no notice of this one."""
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as link:
        inode = _inode_of(link.fileno())
        _ASKING.add(inode)
        try:
            link.settimeout(max(terms.left(), 0.01))
            link.connect(address)
            yield link
        finally:
            link.close()
            _ASKING.discard(inode)


def _check(found: Mapping[str, str] | None, place: str, terms: _Terms) -> None:
    if found is None and terms.stock_allowed:
        return
    if found is None:
        raise VerificationError(
            f"the RPC server at {place} cannot say its versions; it is not this toolchain's",
            hint="start this toolchain's board_server there",
        )
    faults = _differences(found, terms.expected)
    if faults:
        raise VerificationError(
            faults[0],
            details="\n".join([f"at {place}", *faults[1:]]),
            hint="put this toolchain's board_server on the board, and start it in place of the other",
        )


def _parsed(text: bytes, place: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as fault:
        raise VerificationError(f"the board server at {place} says its versions in no known form") from fault
    if not isinstance(found, dict):
        raise VerificationError(f"the board server at {place} says its versions in no known form")
    return {str(name): str(value) for name, value in found.items()}


def _abi(version: str) -> list[str]:
    """Only the first three numbers of tvm-ffi's version stand for its binary interface."""
    return re.findall(r"\d+", version)[:3]


def _differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    sentences = {
        "tvm": "the board server has TVM {}, and this toolchain has TVM {}",
        "tvm_ffi": "the board server has tvm-ffi {}, and this toolchain has tvm-ffi {}: their binary interfaces differ",
        "device": "the board server is of version {}, and this toolchain brings version {}",
        "machine": "the board server runs on {}, and {} is expected",
    }
    faults = []
    for name, wanted in expected.items():
        seen = found.get(name, "an unknown version")
        same = _abi(seen) == _abi(wanted) if name == "tvm_ffi" else seen == wanted
        if not same:
            faults.append(sentences[name].format(seen, wanted))
    return faults


# --- the tracker -----------------------------------------------------------------------------------------------------


def _ask_tracker(address: tuple[str, int], key: str, priority: int, terms: _Terms) -> tuple[str, int, str]:
    place = f"{address[0]}:{address[1]}"
    try:
        with socket.create_connection(address, timeout=max(terms.left(), 0.01)) as link:
            link.sendall(struct.pack("<i", _TRACKER_MAGIC))
            if struct.unpack("<i", _received(link, 4, terms))[0] != _TRACKER_MAGIC:
                raise DeviceError(f"{place} is no RPC tracker", hint="check the tracker's port")
            return _granted(link, key, priority, terms)
    except TimeoutError as fault:
        raise DeviceError(
            f"the tracker at {place} has no free board {key} within {terms.timeout_s:g} s",
            details="all are busy, none is registered, or the tracker hangs",
            hint=f"python -m tvm.exec.query_rpc_tracker --host {address[0]} --port {address[1]}",
        ) from fault
    except (OSError, ValueError) as fault:
        raise DeviceError(
            f"there is no tracker at {place}", details=str(fault), hint="start python -m tvm.exec.rpc_tracker"
        ) from fault


def _granted(link: socket.socket, key: str, priority: int, terms: _Terms) -> tuple[str, int, str]:
    message = json.dumps([_TRACKER_REQUEST, key, "", priority]).encode()
    link.sendall(struct.pack("<i", len(message)) + message)
    size = struct.unpack("<i", _received(link, 4, terms))[0]
    if not 0 < size <= _MAX_TRACKER_MESSAGE:
        raise ValueError(f"a message of {size} bytes")
    answer = json.loads(_received(link, size, terms))
    if not isinstance(answer, list) or answer[:1] != [_TRACKER_SUCCESS]:
        raise ValueError(f"an unexpected answer: {answer}")
    host, port, match_key = answer[1]
    return str(host), int(port), str(match_key)


def _received(link: socket.socket, size: int, terms: _Terms) -> bytes:
    data = b""
    while len(data) < size:
        if not terms.wait(functools.partial(_readable, link)):  # for the whole, so that no single byte prolongs it
            raise TimeoutError
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the connection was closed")
        data += part
    return data


def _readable(link: socket.socket, seconds: float) -> bool:
    poll = select.poll()  # select itself knows no descriptor above 1023
    poll.register(link, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
