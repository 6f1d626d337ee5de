"""A slow and distant network in front of a server: so many bytes a second, so late, with the buffers of a kernel."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

_PART = 2048


@contextlib.contextmanager
def slow(port: int, *, rate: float, delay: float) -> Iterator[int]:
    """Stand between a client and a server of this host for the time of a block.

    Args:
        port: The server's.
        rate: Bytes in a second, for each direction of a connection.
        delay: Seconds on the way, in each direction.

    Yields:
        The port to connect to.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=_accept, args=(listening, port, rate, delay), daemon=True)
        accepting.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listening: socket.socket, port: int, rate: float, delay: float) -> None:
    with contextlib.suppress(OSError):  # it was closed
        while True:
            client, _ = listening.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for ends in ((client, server), (server, client)):
                _way(*ends, rate, delay)


def _way(source: socket.socket, sink: socket.socket, rate: float, delay: float) -> None:
    on_the_way: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def enter() -> None:
        free = time.monotonic()
        data = b"-"
        while data:
            try:
                data = source.recv(_PART)
            except OSError:
                data = b""
            free = max(free, time.monotonic()) + len(data) / rate
            time.sleep(max(0.0, free - time.monotonic()))
            on_the_way.put((free + delay, data))

    def leave() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = on_the_way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    for transfer in (enter, leave):
        threading.Thread(target=transfer, daemon=True).start()
