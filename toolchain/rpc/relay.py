"""Relays TVM's client to a board: passes on requests, and in return only answers.

TVM's protocol is the same in both directions. A client obeys a server that, instead of an answer, requests to look up
and call a function, such as the one that executes a program. So only returns, exceptions and acknowledgements of copies
pass from a board, each of a bounded size and well formed.

TVM's client reads on behind an answer that is shorter or longer than its packet says, and takes those bytes for the
next packet. So the values of an answer must fill it to the byte.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

# RPCCode, in src/runtime/rpc/minrpc/rpc_reference.h.
RETURN, EXCEPTION, COPY_ACK = 4, 5, 8
CODES = {1: "kShutdown", 2: "kInitServer", 3: "kCallFunc", 6: "kCopyFromRemote", 7: "kCopyToRemote"}
CODES |= {9: "kGetGlobalFunc", 10: "kFreeHandle"}
MAX_BYTES = 64 << 20  # of one packet; TVM's client allocates all of it before the first byte

# TVMFFITypeIndex, in tvm_ffi/include/tvm/ffi/c_api.h.
_NONE, _DL_TENSOR, _RAW_STR, _BYTE_ARRAY, _SMALL_STR, _SMALL_BYTES, _STR, _BYTES = 0, 7, 8, 9, 11, 12, 65, 66
_EIGHT_BYTES = {1, 2, 3, 4, 5, 6}  # numbers, a handle, a data type with its padding, a device
_TENSOR_HEAD, _DIM, _OFFSET = struct.Struct("<Q8si4s"), 8, 8  # handle, device, dimensions, data type
_OBJECT_REF = 115  # kRuntimeRPCObjectRef, in src/runtime/rpc/rpc_session.h
_MAX_VALUES, _MAX_DIMS = 8, 32

_HEAD = struct.Struct("<QI")  # length of what follows it, and the code, which is the first of that
_CODE_SIZE = 4
_BLOCK = 1 << 16


class ForgedAnswerError(Exception):
    """A board sent something other than an answer."""


def check_head(size: int, code: int) -> None:
    """Check the first bytes of a packet; `size` counts the bytes after the size itself."""
    if code not in {RETURN, EXCEPTION, COPY_ACK}:
        raise ForgedAnswerError(f"it sends {CODES.get(code, f'code {code}')} instead of an answer")
    if not struct.calcsize("<I") <= size <= MAX_BYTES:
        raise ForgedAnswerError(f"it sends an answer of {size} bytes")


def check_body(code: int, body: bytes) -> None:
    """Check the values of an answer: they must fill it, and be of kinds that a board returns."""
    if code == COPY_ACK:  # only data, of which the client knows the size
        return
    try:
        (count,) = struct.unpack_from("<i", body)
        if not 0 <= count <= _MAX_VALUES:
            raise ForgedAnswerError(f"it sends an answer of {count} values")
        offset, kinds = 4, []
        for _ in range(count):
            (kind,) = struct.unpack_from("<i", body, offset)
            offset = _end_of_value(kind, body, offset + 4)
            kinds.append(kind)
        if offset != len(body):
            raise ForgedAnswerError("it sends an answer with extra data after its values")
    except struct.error as fault:
        raise ForgedAnswerError("it sends an answer that ends too early") from fault
    if code == EXCEPTION and kinds not in ([_RAW_STR], [_STR]):
        raise ForgedAnswerError("it sends an error without a message")


def _end_of_value(kind: int, body: bytes, offset: int) -> int:
    """Return the offset behind a value of a kind that begins at an offset."""
    if kind == _NONE:
        return offset
    if kind in _EIGHT_BYTES:
        return offset + 8
    if kind == _DL_TENSOR:
        dims = int(_TENSOR_HEAD.unpack_from(body, offset)[2])
        if not 0 <= dims <= _MAX_DIMS:
            raise ForgedAnswerError(f"it sends a tensor of {dims} dimensions")
        return offset + _TENSOR_HEAD.size + dims * _DIM + _OFFSET
    if kind in {_RAW_STR, _BYTE_ARRAY}:
        return _end_of_text(body, offset)
    if kind in {_SMALL_STR, _SMALL_BYTES, _STR, _BYTES, _OBJECT_REF}:
        (inner,) = struct.unpack_from("<I", body, offset)
        if inner == _OBJECT_REF:
            return offset + 12
        if inner in {_STR, _BYTES}:
            return _end_of_text(body, offset + 4)
    raise ForgedAnswerError(f"it sends a value of type {kind}")


def _end_of_text(body: bytes, offset: int) -> int:
    (size,) = struct.unpack_from("<Q", body, offset)
    return int(offset + 8 + size)


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
