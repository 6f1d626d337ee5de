"""The packets of TVM's RPC protocol, as far as a board may send them: answers, and whether they are well formed.

TVM's client reads on behind an answer that is shorter or longer than its packet says, and takes what it finds there for
the next packet. So the values of an answer must fill it to the byte.
"""

from __future__ import annotations

import struct

# RPCCode, in src/runtime/rpc/minrpc/rpc_reference.h.
RETURN, EXCEPTION, COPY_ACK = 4, 5, 8
CODES = {1: "kShutdown", 2: "kInitServer", 3: "kCallFunc", 6: "kCopyFromRemote", 7: "kCopyToRemote"}
CODES |= {9: "kGetGlobalFunc", 10: "kFreeHandle"}
MOST_BYTES = 64 << 20
"""Of one packet; TVM's client takes memory for all of it before the first byte."""

# TVMFFITypeIndex, in tvm_ffi/include/tvm/ffi/c_api.h.
_NONE, _DL_TENSOR, _RAW_STR, _BYTE_ARRAY, _SMALL_STR, _SMALL_BYTES, _STR, _BYTES = 0, 7, 8, 9, 11, 12, 65, 66
_EIGHT_BYTES = {1, 2, 3, 4, 5, 6}  # numbers, a handle, a data type with its padding, a device
_TENSOR_HEAD, _DIM, _OFFSET = struct.Struct("<Q8si4s"), 8, 8  # handle, device, dimensions, data type
_OBJECT_REF = 115  # kRuntimeRPCObjectRef, in src/runtime/rpc/rpc_session.h
_MOST_VALUES, _MOST_DIMS = 8, 32


class ForgedAnswerError(Exception):
    """What a board sent is no answer."""


def check_head(size: int, code: int) -> None:
    """Check the first bytes of a packet.

    Args:
        size: Bytes that follow the size itself.
        code: What the packet is.

    Raises:
        ForgedAnswerError: It is no answer, or too large.
    """
    if code not in {RETURN, EXCEPTION, COPY_ACK}:
        raise ForgedAnswerError(f"it sends {CODES.get(code, f'code {code}')} instead of an answer")
    if not struct.calcsize("<I") <= size <= MOST_BYTES:
        raise ForgedAnswerError(f"it sends an answer of {size} bytes")


def check_body(code: int, body: bytes) -> None:
    """Check what follows the code of an answer.

    Raises:
        ForgedAnswerError: Its values do not fill it, or are of a kind that no board returns.
    """
    if code == COPY_ACK:  # data alone, of which the client knows how much it asked for
        return
    try:
        kinds = _kinds(body)
    except struct.error as fault:
        raise ForgedAnswerError("it sends an answer that ends too early") from fault
    if code == EXCEPTION and kinds not in ([_RAW_STR], [_STR]):
        raise ForgedAnswerError("it sends an error without a message")


def _kinds(body: bytes) -> list[int]:
    """Walk through the values and return their kinds."""
    (count,) = struct.unpack_from("<i", body)
    if not 0 <= count <= _MOST_VALUES:
        raise ForgedAnswerError(f"it sends an answer of {count} values")
    place, kinds = 4, []
    for _ in range(count):
        (kind,) = struct.unpack_from("<i", body, place)
        place = _behind(kind, body, place + 4)
        kinds.append(kind)
    if place != len(body):
        raise ForgedAnswerError("it sends an answer with extra data after its values")
    return kinds


def _behind(kind: int, body: bytes, place: int) -> int:
    """Return where a value of a kind ends that begins at a place."""
    if kind == _NONE:
        return place
    if kind in _EIGHT_BYTES:
        return place + 8
    if kind == _DL_TENSOR:
        dims = int(_TENSOR_HEAD.unpack_from(body, place)[2])
        if not 0 <= dims <= _MOST_DIMS:
            raise ForgedAnswerError(f"it sends a tensor of {dims} dimensions")
        return place + _TENSOR_HEAD.size + dims * _DIM + _OFFSET
    if kind in {_RAW_STR, _BYTE_ARRAY}:
        return _behind_text(body, place)
    if kind in {_SMALL_STR, _SMALL_BYTES, _STR, _BYTES, _OBJECT_REF}:
        (what,) = struct.unpack_from("<I", body, place)
        if what == _OBJECT_REF:
            return place + 12
        if what in {_STR, _BYTES}:
            return _behind_text(body, place + 4)
    raise ForgedAnswerError(f"it sends a value of type {kind}")


def _behind_text(body: bytes, place: int) -> int:
    (size,) = struct.unpack_from("<Q", body, place)
    return int(place + 8 + size)
