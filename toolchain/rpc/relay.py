"""What stands between TVM's client and a board: it passes on questions, and of what comes back only answers.

TVM's protocol is the same in both directions. A client obeys a server that, instead of an answer, asks it to look up
and to call a function, such as the one that executes a program. From a board therefore come returns, exceptions and
acknowledgements of copies, each of a bounded size and well formed, and nothing else.
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
_PART = 1 << 16


class Filter:
    """Looks at each packet of a stream from a board, however the stream is cut into parts."""

    def __init__(self) -> None:
        self._data = bytearray()

    def passed(self, data: bytes) -> Iterator[bytes]:
        """Take a part of the stream and yield the packets that are whole by now.

        Raises:
            ForgedAnswerError: A packet is no answer; nothing of it was yielded.
        """
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
    """Carries one session between TVM's client and a board, both ways, in threads of its own.

    Args:
        client: The socket of TVM's client.
        board: The stream to the board.

    Attributes:
        forged: What the board sent instead of an answer; empty if it only answered.
    """

    def __init__(self, client: socket.socket, board: socket.socket) -> None:
        self._client, self._board = client, board
        self.forged = ""
        self._threads = [
            threading.Thread(target=self._up, name="rpc-up", daemon=True),
            threading.Thread(target=self._down, name="rpc-down", daemon=True),
        ]

    def start(self) -> None:
        """Begin to carry."""
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        """End both connections, from any thread: whoever waits for one of them learns it at once."""
        for link in (self._client, self._board):
            with contextlib.suppress(OSError):  # it is closed, or its other end is gone
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and wait until nothing of it is left."""
        self.cut()
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._board.close()

    def _up(self) -> None:
        _pump(self._client, self._board.sendall)
        with contextlib.suppress(OSError):  # what is still on its way down may arrive
            self._board.shutdown(socket.SHUT_WR)

    def _down(self) -> None:
        stream = Filter()

        def send(data: bytes) -> None:
            for packet in stream.passed(data):
                self._client.sendall(packet)

        try:
            _pump(self._board, send)
        except ForgedAnswerError as fault:
            self.forged = str(fault)
        self.cut()


def _pump(source: socket.socket, send: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):  # one end is gone, which the caller passes on
        while data := source.recv(_PART):
            send(data)
