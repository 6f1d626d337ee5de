"""The time that is left for opening a session, and reading from a socket within it."""

from __future__ import annotations

import functools
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping

_TURN_S = 0.25


class Terms:
    """What a session is opened under, and the time left for it.

    Args:
        timeout_s: Seconds for all of it.
        session_s: Seconds after which the server ends the session; 0 for no limit.
        expected: What the server must say of itself.
        stock_allowed: Whether TVM's own server is taken too.
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
        """Return the seconds that are left."""
        return 0.0 if self._stop.is_set() else self._end - time.monotonic()

    def wait(self, done: Callable[[float], bool]) -> bool:
        """Wait until something is done, in short turns, for as long as there is time; return whether it was."""
        while (left := self.left()) > 0:
            if done(min(left, _TURN_S)):
                return True
        return False

    def receive(self, link: socket.socket, size: int) -> bytes:
        """Receive so many bytes.

        Raises:
            TimeoutError: They did not come in time.
            ConnectionResetError: The other end has closed.
        """
        data = b""
        while len(data) < size:
            if not self.wait(functools.partial(readable, link.fileno())):  # for the whole: no single byte prolongs it
                raise TimeoutError
            part = link.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the connection was closed")
            data += part
        return data


def readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read, or the end."""
    poll = select.poll()  # select itself knows no descriptor above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
