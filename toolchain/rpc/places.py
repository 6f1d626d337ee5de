"""Where trials run: boards of the farm, a server on this machine, boards behind a tracker of the user's own."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from toolchain import rpc
from toolchain.board import Board
from toolchain.native import programs
from toolchain.rpc import Client, Dial, Session
from toolchain.rpc import server as board_server
from toolchain.shell import LocalShell


class Place(Protocol):
    """Where one trial at a time runs."""

    @property
    def name(self) -> str:
        """Its name in tables and records."""

    @property
    def emulated(self) -> bool:
        """Whether its timings mean nothing."""

    def open(self, timeout_s: float, session_s: float, stop: threading.Event) -> Session:
        """Open a session; there may be one at a time.

        Args:
            timeout_s: Seconds that this may take.
            session_s: Seconds after which the server ends the session.
            stop: Ends the waiting when it is set.

        Raises:
            DeviceError: There is no session in time.
            VerificationError: The server is another one than expected.
        """

    def close(self) -> None:
        """End what holds its sessions; it may be opened again."""


@dataclass(frozen=True)
class TrackerPlace:
    """Any one board that a tracker of the user's own knows by a key.

    Attributes:
        name: Its name in tables and records.
        tracker: Host and port of the tracker.
        key: What the board servers' `--key` says.
        machine: What `uname -m` says there; empty if any will do.
        emulated: Whether its timings mean nothing.
    """

    name: str
    tracker: tuple[str, int]
    key: str
    machine: str = ""
    emulated: bool = False
    _client: Client = field(default_factory=Client, repr=False, compare=False)

    def open(self, timeout_s: float, session_s: float, stop: threading.Event) -> Session:
        """See `Place.open`. TVM's own server is taken, too."""
        return rpc.request(
            self.tracker,
            self.key,
            self._client,
            timeout_s=timeout_s,
            session_s=session_s,
            expected=rpc.versions(self.machine),
            stock_allowed=True,
            stop=stop,
        )

    def close(self) -> None:
        """See `Place.close`."""
        self._client.kill()


@dataclass(frozen=True)
class ServerPlace:
    """One board server of this toolchain.

    Attributes:
        name: Its name in tables and records.
        dial: Opens a stream to it.
        key: Its key.
        machine: What `uname -m` says there; empty if any will do.
        emulated: Whether its timings mean nothing.
    """

    name: str
    dial: Dial
    key: str = field(default="", repr=False)
    machine: str = ""
    emulated: bool = False
    _client: Client = field(default_factory=Client, repr=False, compare=False)

    def open(self, timeout_s: float, session_s: float, stop: threading.Event) -> Session:
        """See `Place.open`."""
        return rpc.connect(
            self.dial,
            self.name,
            self._client,
            key=self.key,
            timeout_s=timeout_s,
            session_s=session_s,
            expected=rpc.versions(self.machine),
            stop=stop,
        )

    def close(self) -> None:
        """See `Place.close`."""
        self._client.kill()


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
    program = programs.build(programs.BOARD_SERVER, here.triple, here.machine, tell)
    with LocalShell() as shell:
        server = board_server.start(shell, str(program.path))
        key = board_server.new_key()
        try:
            server.offer(key)

            def dial(timeout_s: float) -> socket.socket:
                return board_server.dial(shell, server, timeout_s)

            yield ServerPlace(board.name, dial, key, here.machine, emulated=board.emulated)
        finally:
            server.stop()
