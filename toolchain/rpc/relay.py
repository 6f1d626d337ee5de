"""Relays TVM's client to a board: passes on requests, and in return only answers.

TVM's protocol is the same in both directions. A client obeys a server that, instead of an answer, requests to look up
and call a function, such as the one that executes a program. So only returns, exceptions and acknowledgements of copies
pass from a board, each of a bounded size and well formed.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from toolchain.rpc.packets import ForgedAnswerError, check_body, check_head

_HEAD = struct.Struct("<QI")  # length of what follows it, and the code, which is the first of that
_CODE_SIZE = 4
_BLOCK = 1 << 16


class Filter:
    """Checks each packet of a stream from a board, however the stream is cut into blocks."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take a block of the stream and yield the complete packets; nothing of a forged packet is yielded."""
        self._data += data
        while len(self._data) >= _HEAD.size:
            size, code = _HEAD.unpack_from(self._data)
            check_head(size, code)
            end = _HEAD.size - _CODE_SIZE + size
            if len(self._data) < end:
                return
            packet = bytes(self._data[:end])
            del self._data[:end]
            check_body(code, packet[_HEAD.size :])
            yield packet


class Relay:
    """Carries one session between TVM's client and a board, both ways, in threads of its own."""

    def __init__(self, client: socket.socket, board: socket.socket) -> None:
        self._client, self._board = client, board
        self.forged = ""  # what the board sent instead of an answer
        self._threads = [
            threading.Thread(target=self._up, name="rpc-up", daemon=True),
            threading.Thread(target=self._down, name="rpc-down", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        """End both connections, from any thread: a thread that waits for one of them fails at once."""
        for link in (self._client, self._board):
            with contextlib.suppress(OSError):  # it is closed, or its other end is gone
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and wait for its threads."""
        self.cut()
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._board.close()

    def _up(self) -> None:
        _pump(self._client, self._board.sendall)
        with contextlib.suppress(OSError):  # answers that are on their way may still arrive
            self._board.shutdown(socket.SHUT_WR)

    def _down(self) -> None:
        stream = Filter()

        def send(data: bytes) -> None:
            for packet in stream.feed(data):
                self._client.sendall(packet)

        try:
            _pump(self._board, send)
        except ForgedAnswerError as fault:
            self.forged = str(fault)
        self.cut()


def _pump(source: socket.socket, send: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):  # one end is gone, which the caller passes on
        while data := source.recv(_BLOCK):
            send(data)
