"""The first messages to a board server: its versions, and whether it opens a session, on terms such as a time limit.

board_server sends its versions to a client that greets it with a certain key, also while it serves another one. TVM's
own server refuses that key, which does it no harm; it cannot report versions at all.
"""

from __future__ import annotations

import contextlib
import functools
import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from toolchain.errors import DeviceError, VerificationError
from toolchain.native import programs
from toolchain.versions import abi

_TURN_S = 0.25  # between looks at `stop`

Dial = Callable[[float], socket.socket]
"""Opens a fresh stream to a board server within so many seconds; raises DeviceError or OSError."""
MAGIC = 0xFF271
_MISMATCH = MAGIC + 2
_VERSION_KEY = "edge-toolchain:version"  # the same word as in runtime/server/server.cc
_MAX_WELCOME = 4096


class Terms:
    """The conditions for a session, and the time left for opening it, which runs from here on.

    Args:
        session_s: Seconds after which the server ends the session; 0 for no limit.
        expected: Versions that the server must report; see `handshake.versions`.
        stock_allowed: Whether TVM's own server, which cannot report any, is accepted, too.
        stop: Ends the waiting when it is set, as if the time were over.
    """

    def __init__(
        self,
        timeout_s: float,
        session_s: float = 0.0,
        expected: Mapping[str, str] | None = None,
        *,
        stock_allowed: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.session_s = session_s
        self.expected = expected or {}
        self.stock_allowed = stock_allowed
        self._end = time.monotonic() + timeout_s
        self._stop = stop or threading.Event()

    def left(self) -> float:
        """Return the seconds that remain."""
        return 0.0 if self._stop.is_set() else self._end - time.monotonic()

    def wait(self, attempt: Callable[[float], bool]) -> bool:
        """Call `attempt` with short time limits until it returns true; return false if the time is over before."""
        while (remaining := self.left()) > 0:
            if attempt(min(remaining, _TURN_S)):
                return True
        return False

    def receive(self, link: socket.socket, size: int) -> bytes:
        """Receive `size` bytes.

        Raises:
            TimeoutError: They did not come in time.
            ConnectionResetError: The other end has closed.
        """
        data = b""
        while len(data) < size:
            if not self.wait(
                functools.partial(readable, link.fileno())
            ):  # one deadline for all: no single byte prolongs it
                raise TimeoutError
            block = link.recv(size - len(data))
            if not block:
                raise ConnectionResetError("the connection was closed")
            data += block
        return data


def readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read, or the end."""
    poll = select.poll()  # select itself knows no descriptor above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class KeyRefusedError(Exception):
    """The server does not know the key; one from a tracker may have grown too old."""


def versions(machine: str = "") -> dict[str, str]:
    """Return the versions that a board server must report; `machine` is its `uname -m`, empty if any will do."""
    return {**programs.versions(), "machine": machine} if machine else programs.versions()


def check(dial: Dial, name: str, terms: Terms) -> bool:
    """Check a server's versions; return whether it is TVM's own server, which cannot report any.

    Raises:
        DeviceError: Nobody answers there, or not as a board server does.
        VerificationError: It is of another version, for another machine, or TVM's own where that is not allowed.
    """
    reported = ask(dial, name, terms)
    if reported is None and not terms.stock_allowed:
        raise VerificationError(
            f"the RPC server at {name} does not report its versions: it is not this toolchain's board_server",
            hint="start this toolchain's board_server there",
        )
    faults = _differences(reported, terms.expected) if reported is not None else []
    if faults:
        raise VerificationError(
            faults[0],
            details="\n".join([f"at {name}", *faults[1:]]),
            hint="start this toolchain's board_server on the board instead of the other server",
        )
    return reported is None


def ask(dial: Dial, name: str, terms: Terms) -> dict[str, str] | None:
    """Return the versions that a board server reports, or None for another RPC server; or raise a DeviceError."""
    with _handshake_errors(name, terms), _dial(dial, terms) as link:
        _greet(link, _VERSION_KEY)
        try:
            text = _welcome(link, name, terms)
        except KeyRefusedError:
            return None
    try:
        reported = json.loads(text)
    except (ValueError, RecursionError):
        reported = None
    if not isinstance(reported, dict):
        raise VerificationError(f"the board server at {name} reports its versions in an unknown form")
    return {str(key): str(value) for key, value in reported.items()}


def open_session(dial: Dial, name: str, key: str, terms: Terms) -> socket.socket:
    """Open a session; return the stream on which TVM's packets follow, which the caller closes.

    Raises:
        KeyRefusedError: The server does not accept this key.
        DeviceError: There is no session in time, or no board server.
    """
    limit = f" -timeout={terms.session_s}" if terms.session_s else ""
    with _handshake_errors(name, terms):
        link = _dial(dial, terms)
        try:
            _greet(link, f"client:{key}{limit}")
            _welcome(link, name, terms)
        except BaseException:
            link.close()
            raise
        link.settimeout(None)
        return link


def stranger(name: str, details: str) -> DeviceError:
    """Return the error for a server that is not a board server."""
    return DeviceError(
        f"{name} is not a board server",
        details=details,
        hint="check the port: board_server prints its port when it starts",
    )


def silent(name: str, terms: Terms) -> DeviceError:
    """Return the error for a server that opens no session in time."""
    return DeviceError(
        f"{name} did not open a session within {terms.timeout_s:g} s",
        details="it serves another session, it hangs, or it is not a board server",
        hint="read the board server's log, wait for the other session to end, or allow more time",
    )


@contextlib.contextmanager
def _handshake_errors(name: str, terms: Terms) -> Iterator[None]:
    try:
        yield
    except ConnectionRefusedError as fault:
        raise DeviceError(
            f"no board server listens at {name}", hint="start board_server there, or the tunnel to it"
        ) from fault
    except TimeoutError as fault:
        raise silent(name, terms) from fault
    except OSError as fault:
        raise stranger(name, str(fault)) from fault


def _dial(dial: Dial, terms: Terms) -> socket.socket:
    remaining = terms.left()
    if remaining <= 0:
        raise TimeoutError
    link = dial(remaining)
    link.settimeout(max(terms.left(), 0.01))
    return link


def _greet(link: socket.socket, key: str) -> None:
    link.sendall(struct.pack("<ii", MAGIC, len(key)) + key.encode("ascii"))


def _welcome(link: socket.socket, name: str, terms: Terms) -> bytes:
    """Return the server's answer to a greeting."""
    code = struct.unpack("<i", terms.receive(link, 4))[0]
    if code == _MISMATCH:
        raise KeyRefusedError
    size = struct.unpack("<i", terms.receive(link, 4))[0] if code == MAGIC else 0
    if not 0 < size <= _MAX_WELCOME:
        raise stranger(name, f"its answer was {code} and {size}")
    return terms.receive(link, size)


def _differences(reported: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    sentences = {
        "tvm": "the board server has TVM {}, but this toolchain has TVM {}",
        "tvm_ffi": "the board server has tvm-ffi {}, but this toolchain has tvm-ffi {}: their binary interfaces differ",
        "device": "the board server has version {}, but this toolchain includes version {}",
        "machine": "the board server runs on {}, but {} is expected",
    }
    faults = []
    for name, version in expected.items():
        actual = reported.get(name, "an unknown version")
        # Patch releases of tvm-ffi keep the binary interface.
        same = abi(actual) == abi(version) if name == "tvm_ffi" else actual == version
        if not same:
            faults.append(sentences[name].format(actual, version))
    return faults
