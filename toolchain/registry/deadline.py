"""A deadline for a whole answer: a limit for each read is never exceeded by a server that sends one byte at a time."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from requests import adapters
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class Deadline:
    """Ends the connections of a session after a time, whatever is being read from them or sent."""

    def __init__(self) -> None:
        self.passed = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()

    def watch(self, connection: socket.socket) -> None:
        """Watch a new connection.

        Raises:
            TimeoutError: The deadline has passed.
        """
        with self._lock:
            if self.passed:
                raise TimeoutError("the time for this request is over")
            # A descriptor of its own: TLS takes over the connection's.
            self._sockets.append(connection.dup())

    @contextlib.contextmanager
    def running(self, seconds: float) -> Iterator[None]:
        """End the connections if a block takes longer than `seconds`."""
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            for connection in self._sockets:
                with contextlib.suppress(OSError):  # it has ended already
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give up the connections that were watched."""
        with self._lock:
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()


class WatchedAdapter(adapters.HTTPAdapter):
    def __init__(self, deadline: Deadline, **options: Any) -> None:
        self._pools = _pools(deadline)
        super().__init__(**options)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


def _pools(deadline: Deadline) -> dict[str, type[HTTPConnectionPool]]:
    """Return connection pools by scheme, whose connections the deadline watches."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _watch(super()._new_conn(), deadline)

    class Encrypted(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _watch(super()._new_conn(), deadline)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class EncryptedPool(HTTPSConnectionPool):
        ConnectionCls = Encrypted

    return {"http": PlainPool, "https": EncryptedPool}


def _watch(connection: socket.socket, deadline: Deadline) -> socket.socket:
    try:
        deadline.watch(connection)
    except TimeoutError:
        connection.close()
        raise
    return connection
