"""A TVM RPC tracker of the user's own, and the boards that are registered there.

Any client of a tracker can offer boards there and take those of others: it is for a network that its user trusts, and
is only used if it is named. The farm needs none.
"""

from __future__ import annotations

import functools
import json
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from toolchain.errors import DeviceError, reason
from toolchain.rpc.client import Client
from toolchain.rpc.handshake import KeyRefusedError, Terms
from toolchain.rpc.session import Session, start_session

_MAGIC, _REQUEST, _SUMMARY, _SUCCESS = 0x2F271, 4, 6, 0
_MAX_BYTES = 1 << 20
_ANSWER_S, _ASK_AGAIN_S = 5.0, 0.1


@dataclass(frozen=True)
class Registered:
    """A server that is registered at a tracker."""

    key: str
    host: str
    port: int


def registered(address: tuple[str, int], timeout_s: float = _ANSWER_S) -> tuple[Registered, ...]:
    """Return the servers at a tracker, or raise a DeviceError if it does not answer, or not as a tracker."""
    try:
        summary = _ask(address, [_SUMMARY], Terms(timeout_s))
        rows = [(server["key"].removeprefix("server:"), *server["addr"]) for server in summary["server_info"]]
        return tuple(Registered(str(key), str(host), int(port)) for key, host, port in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        hint = f"python -m tvm.exec.rpc_tracker --host {address[0]} --port {address[1]}"
        raise DeviceError(
            f"the tracker at {address[0]}:{address[1]} does not answer", details=reason(fault), hint=hint
        ) from fault


def request(address: tuple[str, int], kind: str, client: Client, terms: Terms) -> Session:
    """Get a free board from a tracker, open a session with it, and check its versions.

    `kind` is the kind of board, the board servers' `--key`. The time of `terms` includes waiting for a free board.

    Raises:
        DeviceError: There is no tracker, no board is free in time, or the board does not answer.
        VerificationError: As for `connect`.
    """
    while True:
        host, port, match_key = _request_board(address, kind, terms)
        try:
            return start_session(functools.partial(dial, (host, port)), f"{host}:{port}", client, match_key, terms)
        except KeyRefusedError as fault:  # the board has a new key in the meantime: ask again
            if terms.left() <= _ASK_AGAIN_S:
                raise DeviceError(
                    f"the board at {host}:{port}, which the tracker assigned for {kind}, refuses its key",
                    hint="check whether two board servers use the same address: python -m tvm.exec.query_rpc_tracker",
                ) from fault
            time.sleep(_ASK_AGAIN_S)


def dial(address: tuple[str, int], timeout_s: float) -> socket.socket:
    """Open a stream to a board server at an address, or raise an OSError."""
    try:
        return socket.create_connection(address, timeout=timeout_s)
    except OverflowError as fault:  # of a port above 65535
        raise OSError(str(fault)) from fault


def _request_board(address: tuple[str, int], kind: str, terms: Terms) -> tuple[str, int, str]:
    name = f"{address[0]}:{address[1]}"
    try:
        host, port, match_key = _ask(address, [_REQUEST, kind, "", 1], terms)
        return str(host), int(port), str(match_key)
    except TimeoutError as fault:
        raise DeviceError(
            f"the tracker at {name} has no free board {kind} within {terms.timeout_s:g} s",
            details="all boards are busy, none is registered, or the tracker hangs",
            hint=f"see its boards: python -m tvm.exec.query_rpc_tracker --host {address[0]} --port {address[1]}",
        ) from fault
    except (OSError, ValueError, TypeError) as fault:
        raise DeviceError(
            f"there is no tracker at {name}", details=reason(fault), hint="start python -m tvm.exec.rpc_tracker"
        ) from fault


def _ask(address: tuple[str, int], message: list[Any], terms: Terms) -> Any:
    with socket.create_connection(address, timeout=max(terms.left(), 0.01)) as link:
        link.sendall(struct.pack("<i", _MAGIC))
        if struct.unpack("<i", terms.receive(link, 4))[0] != _MAGIC:
            raise ValueError("it is not a tracker")
        data = json.dumps(message).encode()
        link.sendall(struct.pack("<i", len(data)) + data)
        size = struct.unpack("<i", terms.receive(link, 4))[0]
        if not 0 < size <= _MAX_BYTES:
            raise ValueError(f"a message of {size} bytes")
        answer = json.loads(terms.receive(link, size))
    if not isinstance(answer, list) or len(answer) != 2 or answer[0] != _SUCCESS:  # noqa: PLR2004 - status and answer
        raise ValueError(f"an unexpected answer: {answer}")
    return answer[1]
