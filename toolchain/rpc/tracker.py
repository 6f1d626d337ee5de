"""A TVM RPC tracker of the user's own, and the boards that are registered there.

Whoever reaches a tracker can offer boards there and take those of others: it is for a network that its user trusts, and
is asked only where it is named. The farm needs none.
"""

from __future__ import annotations

import functools
import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolchain.errors import DeviceError, reason
from toolchain.rpc.client import Client
from toolchain.rpc.greeting import KeyRefusedError
from toolchain.rpc.session import Session, connected
from toolchain.rpc.terms import Terms

_MAGIC, _REQUEST, _SUMMARY, _SUCCESS = 0x2F271, 4, 6, 0
_MOST_BYTES = 1 << 20
_ANSWER_S, _ASK_AGAIN_S = 5.0, 0.1


@dataclass(frozen=True)
class Registered:
    """A server that is registered at a tracker."""

    key: str
    host: str
    port: int


def registered(address: tuple[str, int], timeout_s: float = _ANSWER_S) -> tuple[Registered, ...]:
    """Ask a tracker who is registered there.

    Args:
        address: Its host and port.
        timeout_s: Seconds for all of its answers.

    Raises:
        DeviceError: It does not answer in time, or not as a tracker.
    """
    try:
        found = _asked(address, [_SUMMARY], Terms(timeout_s))
        rows = [(one["key"].removeprefix("server:"), *one["addr"]) for one in found["server_info"]]
        return tuple(Registered(str(key), str(host), int(port)) for key, host, port in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        hint = f"python -m tvm.exec.rpc_tracker --host {address[0]} --port {address[1]}"
        raise DeviceError(
            f"the tracker at {address[0]}:{address[1]} does not answer", details=reason(fault), hint=hint
        ) from fault


def request(  # noqa: PLR0913 - as `connect`
    address: tuple[str, int],
    kind: str,
    client: Client,
    *,
    timeout_s: float,
    expected: Mapping[str, str],
    session_s: float = 0.0,
    stock_allowed: bool = False,
    stop: Any = None,
) -> Session:
    """Ask a tracker for a free board, open a session with it, and check its versions.

    Args:
        address: Host and port of the tracker.
        kind: The kind of board, as the board servers' `--key` names it.
        client: Holds the session.
        timeout_s: Seconds for all of this, waiting for a free board included.
        expected: As for `connect`.
        session_s: As for `connect`.
        stock_allowed: As for `connect`.
        stop: As for `connect`.

    Returns:
        The session.

    Raises:
        DeviceError: There is no tracker, no board is free in time, or the board does not answer.
        VerificationError: As for `connect`.
    """
    terms = Terms(timeout_s, session_s, expected, stock_allowed=stock_allowed, stop=stop)
    while True:
        host, port, match_key = _granted(address, kind, terms)
        try:
            return connected(functools.partial(dial, (host, port)), f"{host}:{port}", client, match_key, terms)
        except KeyRefusedError as fault:  # the board has offered itself anew in the meantime: ask again
            if terms.left() <= _ASK_AGAIN_S:
                raise DeviceError(
                    f"the board at {host}:{port}, which the tracker assigned for {kind}, refuses its key",
                    hint="check whether two board servers use the same address: python -m tvm.exec.query_rpc_tracker",
                ) from fault
            time.sleep(_ASK_AGAIN_S)


def dial(address: tuple[str, int], timeout_s: float) -> socket.socket:
    """Open a stream to a board server at an address that a user or a user's tracker has named.

    Raises:
        OSError: Nobody listens there.
    """
    try:
        return socket.create_connection(address, timeout=timeout_s)
    except OverflowError as fault:  # the port is none
        raise OSError(str(fault)) from fault


def _granted(address: tuple[str, int], kind: str, terms: Terms) -> tuple[str, int, str]:
    place = f"{address[0]}:{address[1]}"
    try:
        host, port, match_key = _asked(address, [_REQUEST, kind, "", 1], terms)
        return str(host), int(port), str(match_key)
    except TimeoutError as fault:
        raise DeviceError(
            f"the tracker at {place} has no free board {kind} within {terms.timeout_s:g} s",
            details="all boards are busy, none is registered, or the tracker hangs",
            hint=f"see its boards: python -m tvm.exec.query_rpc_tracker --host {address[0]} --port {address[1]}",
        ) from fault
    except (OSError, ValueError, TypeError) as fault:
        raise DeviceError(
            f"there is no tracker at {place}", details=reason(fault), hint="start python -m tvm.exec.rpc_tracker"
        ) from fault


def _asked(address: tuple[str, int], message: list[Any], terms: Terms) -> Any:
    """Return a tracker's answer to a message."""
    with socket.create_connection(address, timeout=max(terms.left(), 0.01)) as link:
        link.sendall(struct.pack("<i", _MAGIC))
        if struct.unpack("<i", terms.receive(link, 4))[0] != _MAGIC:
            raise ValueError("it is not a tracker")
        data = json.dumps(message).encode()
        link.sendall(struct.pack("<i", len(data)) + data)
        size = struct.unpack("<i", terms.receive(link, 4))[0]
        if not 0 < size <= _MOST_BYTES:
            raise ValueError(f"a message of {size} bytes")
        answer = json.loads(terms.receive(link, size))
    if not isinstance(answer, list) or len(answer) != 2 or answer[0] != _SUCCESS:  # noqa: PLR2004 - status and answer
        raise ValueError(f"an unexpected answer: {answer}")
    return answer[1]
