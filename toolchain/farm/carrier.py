"""What is on its way between a board and those who have a session there: bytes that nobody here reads."""

from __future__ import annotations

import contextlib
import socket
import threading

_BLOCK = 1 << 16


class Carrier:
    """The connections to one board."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def carry(self, client: socket.socket, board: socket.socket) -> None:
        """Carry bytes both ways until both ends have said all, or one is gone, or `cut` is called."""
        ends = {client, board}
        with self._lock:
            self._open |= ends
        try:
            back = threading.Thread(target=_pump, args=(board, client), name="from the board", daemon=True)
            back.start()
            _pump(client, board)
            back.join()
        finally:
            with self._lock:
                self._open -= ends
            board.close()

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            for end in self._open:
                _end(end)

    def __len__(self) -> int:
        return len(self._open) // 2


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(_BLOCK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # one end is gone, so the other has to go
        _end(source)
        _end(sink)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
