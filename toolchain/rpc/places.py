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
from toolchain.rpc import Client, Dial, Session, Terms
from toolchain.rpc import server as board_server
from toolchain.shell import LocalShell


class Place(Protocol):
    """Where one trial at a time runs."""

    @property
    def name(self) -> str: ...

    @property
    def emulated(self) -> bool:
        """Whether its timings mean nothing."""

    def open(self, timeout_s: float, session_s: float, stop: threading.Event) -> Session:
        """Open a session, of which there may be one at a time, within `timeout_s`.

        The server ends it after `session_s`. `stop` ends the waiting when it is set.

        Raises:
            DeviceError: There is no session in time.
            VerificationError: The server is another one than expected.
        """

    def close(self) -> None:
        """End the process that holds its sessions; it may be opened again."""


@dataclass(frozen=True)
class TrackerPlace:
    """Any one board that a tracker of the user's own has under a key."""

    name: str  # in tables and records
    tracker: tuple[str, int]  # host and port
    key: str  # the board servers' `--key`
    machine: str = ""  # `uname -m` there; empty if any will do
    emulated: bool = False  # whether its timings mean nothing
    _client: Client = field(default_factory=Client, repr=False, compare=False)

    def open(self, timeout_s: float, session_s: float, stop: threading.Event) -> Session:
        # A tracker's boards may run TVM's own server.
        terms = Terms(timeout_s, session_s, rpc.versions(self.machine), stock_allowed=True, stop=stop)
        return rpc.request(self.tracker, self.key, self._client, terms)

    def close(self) -> None:
        self._client.kill()


@dataclass(frozen=True)
class ServerPlace:
    """One board server of this toolchain."""

    name: str  # in tables and records
    dial: Dial  # opens a stream to it
    key: str = field(default="", repr=False)
    machine: str = ""  # `uname -m` there; empty if any will do
    emulated: bool = False  # whether its timings mean nothing
    _client: Client = field(default_factory=Client, repr=False, compare=False)

    def open(self, timeout_s: float, session_s: float, stop: threading.Event) -> Session:
        terms = Terms(timeout_s, session_s, rpc.versions(self.machine), stop=stop)
        return rpc.connect(self.dial, self.name, self._client, self.key, terms)

    def close(self) -> None:
        self._client.kill()


@contextlib.contextmanager
def local_server(board: Board, tell: Callable[[str], None] | None = None) -> Iterator[ServerPlace]:
    """Run a board server on this machine for the time of a block; `tell` is called before it has to be built."""
    resolved = board.resolved()
    program = programs.build(programs.BOARD_SERVER, resolved.triple, resolved.machine, tell)
    with LocalShell() as shell:
        server = board_server.start(shell, str(program.path))
        key = board_server.new_key()
        try:
            server.offer(key)

            def dial(timeout_s: float) -> socket.socket:
                return board_server.dial(shell, server, timeout_s)

            yield ServerPlace(board.name, dial, key, resolved.machine, emulated=board.emulated)
        finally:
            server.stop()
