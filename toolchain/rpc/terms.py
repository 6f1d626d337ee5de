"""The conditions for opening a session, and reading from a socket within its time."""

from __future__ import annotations

import functools
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping

_TURN_S = 0.25  # between looks at `stop`


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
