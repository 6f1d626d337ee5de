"""Where trials run: boards behind a tracker, a server at an address, a server on this machine."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from toolchain import board_server, device_runtime, remote
from toolchain.board import Board
from toolchain.remote import Session
from toolchain.shell import LocalShell

_LOOPBACK = "127.0.0.1"


class Place(Protocol):
    """Where one trial at a time runs."""

    @property
    def name(self) -> str:
        """Its name in tables and records."""

    @property
    def emulated(self) -> bool:
        """Whether its timings mean nothing."""

    def open(self, timeout_s: float, session_s: float, stop: threading.Event) -> Session:
        """Open a session.

        Args:
            timeout_s: Seconds that this may take.
            session_s: Seconds after which the server ends the session.
            stop: Ends the waiting when it is set.

        Raises:
            DeviceError: There is no session in time.
            VerificationError: The server is another one than expected.
        """


@dataclass(frozen=True)
class TrackerPlace:
    """Any one board that a tracker knows by a key.

    Attributes:
        name: Its name in tables and records.
        tracker: Host and port of the tracker.
        key: What the board servers' `--key` says.
        machine: What `uname -m` says there; empty if any will do.
        stock_allowed: Whether TVM's own server is taken, too.
        emulated: Whether its timings mean nothing.
    """

    name: str
    tracker: tuple[str, int]
    key: str
    machine: str = ""
    stock_allowed: bool = True
    emulated: bool = False

    def open(self, timeout_s: float, session_s: float, stop: threading.Event) -> Session:
        """See `Place.open`."""
        return remote.request(
            *self.tracker,
            self.key,
            timeout_s=timeout_s,
            session_s=session_s,
            expected=remote.versions(self.machine),
            stock_allowed=self.stock_allowed,
            stop=stop,
        )


@dataclass(frozen=True)
class ServerPlace:
    """The board server at an address.

    Attributes:
        name: Its name in tables and records.
        host: Its address, or this end of a tunnel to it.
        port: Its port.
        key: Its key.
        machine: What `uname -m` says there; empty if any will do.
        stock_allowed: Whether TVM's own server is taken, too.
        emulated: Whether its timings mean nothing.
    """

    name: str
    host: str
    port: int
    key: str = ""
    machine: str = ""
    stock_allowed: bool = False
    emulated: bool = False

    def open(self, timeout_s: float, session_s: float, stop: threading.Event) -> Session:
        """See `Place.open`."""
        return remote.connect(
            self.host,
            self.port,
            key=self.key,
            timeout_s=timeout_s,
            session_s=session_s,
            expected=remote.versions(self.machine),
            stock_allowed=self.stock_allowed,
            stop=stop,
        )


@contextlib.contextmanager
def local_server(board: Board, tell: Callable[[str], None] | None = None) -> Iterator[ServerPlace]:
    """Run a board server on this machine for the time of a block.

    Args:
        board: The board type of this machine.
        tell: Called with one line before the server has to be built.

    Raises:
        BuildError: The server cannot be built.
        DeviceError: It does not start.
    """
    here = board.resolved()
    program = device_runtime.build(here.triple, here.machine, tell).board_server
    key = secrets.token_hex(16)  # so that nobody else gets in by mistake
    with LocalShell() as shell:
        options = ("--host", _LOOPBACK, "--port", "0", "--key", key)
        server = board_server.start(shell, str(program.path), options)
        try:
            yield ServerPlace(
                board.name, _LOOPBACK, server.port, key=key, machine=here.machine, emulated=board.emulated
            )
        finally:
            server.stop()
