"""The first words with a board server: which versions it has, and whether it opens a session.

board_server tells its versions to whoever greets it with a certain key, also while it serves somebody else. TVM's own
server refuses that key, which does it no harm; it cannot be asked at all.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping

from toolchain.errors import DeviceError, VerificationError
from toolchain.native import programs
from toolchain.rpc.terms import Terms
from toolchain.versions import abi

Dial = Callable[[float], socket.socket]
"""Opens a fresh stream to a board server within so many seconds; raises DeviceError or OSError."""

MAGIC = 0xFF271
_MISMATCH = MAGIC + 2
_VERSION_KEY = "edge-toolchain:version"  # the same word as in runtime/server/server.cc
_MOST_WORDS = 4096


class KeyRefusedError(Exception):
    """The server does not know the key; one from a tracker may have grown too old."""


def versions(machine: str = "") -> dict[str, str]:
    """Return what a board server must say of itself to work with this toolchain.

    Args:
        machine: What `uname -m` must say on the board; empty if any will do.
    """
    return {**programs.versions(), "machine": machine} if machine else programs.versions()


def check(dial: Dial, place: str, terms: Terms) -> bool:
    """Ask a server for its versions and check them.

    Returns:
        Whether it is TVM's own server, which cannot say any.

    Raises:
        DeviceError: Nobody answers there, or not as a board server does.
        VerificationError: It is of another version, for another machine, or TVM's own where that is not allowed.
    """
    found = ask(dial, place, terms)
    if found is None and not terms.stock_allowed:
        raise VerificationError(
            f"the RPC server at {place} does not report its versions: it is not this toolchain's board_server",
            hint="start this toolchain's board_server there",
        )
    faults = _differences(found, terms.expected) if found is not None else []
    if faults:
        raise VerificationError(
            faults[0],
            details="\n".join([f"at {place}", *faults[1:]]),
            hint="start this toolchain's board_server on the board instead of the other server",
        )
    return found is None


def ask(dial: Dial, place: str, terms: Terms) -> dict[str, str] | None:
    """Return what a board server says of itself; None if it is another RPC server.

    Raises:
        DeviceError: Nobody answers there in time, or not as a board server does.
    """
    with _speaking(place, terms), _dialled(dial, terms) as link:
        _greet(link, _VERSION_KEY)
        try:
            return _parsed(_welcome(link, place, terms), place)
        except KeyRefusedError:
            return None


def open_session(dial: Dial, place: str, key: str, terms: Terms) -> socket.socket:
    """Open a session.

    Returns:
        The stream, on which TVM's packets follow. The caller closes it.

    Raises:
        KeyRefusedError: The server does not accept this key.
        DeviceError: There is no session in time, or no board server.
    """
    limit = f" -timeout={terms.session_s}" if terms.session_s else ""
    with _speaking(place, terms):
        link = _dialled(dial, terms)
        try:
            _greet(link, f"client:{key}{limit}")
            _welcome(link, place, terms)
        except BaseException:
            link.close()
            raise
        link.settimeout(None)
        return link


def stranger(place: str, details: str) -> DeviceError:
    """Say that something else than a board server answers."""
    return DeviceError(
        f"{place} is not a board server",
        details=details,
        hint="check the port: board_server prints its port when it starts",
    )


def silent(place: str, terms: Terms) -> DeviceError:
    """Say that there is no session in time."""
    return DeviceError(
        f"{place} did not open a session within {terms.timeout_s:g} s",
        details="it serves another session, it hangs, or it is not a board server",
        hint="read the board server's log, wait for the other session to end, or allow more time",
    )


@contextlib.contextmanager
def _speaking(place: str, terms: Terms) -> Iterator[None]:
    try:
        yield
    except ConnectionRefusedError as fault:
        raise DeviceError(
            f"no board server listens at {place}", hint="start board_server there, or the tunnel to it"
        ) from fault
    except TimeoutError as fault:
        raise silent(place, terms) from fault
    except OSError as fault:
        raise stranger(place, str(fault)) from fault


def _dialled(dial: Dial, terms: Terms) -> socket.socket:
    left = terms.left()
    if left <= 0:
        raise TimeoutError
    link = dial(left)
    link.settimeout(max(terms.left(), 0.01))
    return link


def _greet(link: socket.socket, key: str) -> None:
    link.sendall(struct.pack("<ii", MAGIC, len(key)) + key.encode("ascii"))


def _welcome(link: socket.socket, place: str, terms: Terms) -> bytes:
    """Return the server's words to a greeting."""
    code = struct.unpack("<i", terms.receive(link, 4))[0]
    if code == _MISMATCH:
        raise KeyRefusedError
    size = struct.unpack("<i", terms.receive(link, 4))[0] if code == MAGIC else 0
    if not 0 < size <= _MOST_WORDS:
        raise stranger(place, f"its answer was {code} and {size}")
    return terms.receive(link, size)


def _parsed(text: bytes, place: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise VerificationError(f"the board server at {place} reports its versions in an unknown form") from fault
    if not isinstance(found, dict):
        raise VerificationError(f"the board server at {place} reports its versions in an unknown form")
    return {str(name): str(value) for name, value in found.items()}


def _differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    sentences = {
        "tvm": "the board server has TVM {}, but this toolchain has TVM {}",
        "tvm_ffi": "the board server has tvm-ffi {}, but this toolchain has tvm-ffi {}: their binary interfaces differ",
        "device": "the board server has version {}, but this toolchain includes version {}",
        "machine": "the board server runs on {}, but {} is expected",
    }
    faults = []
    for name, wanted in expected.items():
        seen = found.get(name, "an unknown version")
        same = abi(seen) == abi(wanted) if name == "tvm_ffi" else seen == wanted
        if not same:
            faults.append(sentences[name].format(seen, wanted))
    return faults
