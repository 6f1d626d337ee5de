from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Alu, AluOp, Finish, Gemm, Load, Memory, Store, Tokens, Uop
from toolchain.backends.vta.isa.stream import UOPS, Buffer, Stream
from toolchain.errors import BuildError, InputError

STREAM = Stream(
    DEFAULT,
    Revision.V2020_12,
    (Buffer(Memory.INP, written=False, elements=9), Buffer(Memory.OUT, written=True, elements=4)),
    (
        Load(Memory.UOP, 0, 0, 1, 2, 2),
        Load(Memory.INP, 0, 1, 2, 3, 4, 1, 1, 1, 1, Tokens(push_next=True)),
        Gemm(0, 2, 3, 4, 5, 6, 7, 8, 9, 10, reset=True, tokens=Tokens(pop_prev=True)),
        Alu(AluOp.SHR, 0, 1, 2, 3, 4, 5, 6, 7, use_imm=True, imm=-3),
        Store(Memory.OUT, 0, 0, 1, 4, 4),
        Finish(),
    ),
    (Uop(1, 2, 3), Uop(4, 5, 6)),
    ((0, UOPS), (1, 0), (4, 1)),
)
DATA = STREAM.encoded()
BODY = 48


def sealed(data: bytes) -> bytes:
    """Put the right checksum into a changed stream."""
    return data[:40] + struct.pack("<I", zlib.crc32(data[44:])) + data[44:]


def changed(offset: int, *values: int) -> bytes:
    return sealed(DATA[:offset] + bytes(values) + DATA[offset + len(values) :])


def test_bytes():
    head = b"VTASTRM\x01" + bytes([2, 0, 0, 0, 3, 3, 5, 0, 4, 15, 15, 18, 17, 0, 0, 0])
    counts = struct.pack("<4I", 2, 6, 2, 3)
    assert DATA[:40] == head + counts
    assert DATA[40:48] == struct.pack("<I", zlib.crc32(DATA[44:])) + bytes(4)
    assert DATA[BODY : BODY + 16] == struct.pack("<BBHIBBHI", 2, 0, 0, 9, 4, 1, 0, 4)
    assert DATA[-24:] == struct.pack("<6I", 0, UOPS, 1, 0, 4, 1)
    assert len(DATA) == BODY + 2 * 8 + 6 * 16 + 2 * 4 + 3 * 8


@pytest.mark.parametrize("revision", Revision)
@pytest.mark.parametrize("config", [DEFAULT, VtaConfig(log_uop_buff_size=14, log_inp_buff_size=14)])
def test_what_is_written_is_read(config, revision):
    stream = replace(STREAM, config=config, revision=revision)
    assert Stream.decode(stream.encoded()) == stream


def test_the_smallest():
    empty = Stream(DEFAULT, Revision.V2020_12, (), (), (), ())
    assert Stream.decode(empty.encoded()) == empty


@pytest.mark.parametrize("size", [0, 7, 47, 48, 63, len(DATA) - 1])
def test_truncated(size):
    with pytest.raises(InputError, match="not a stream") as caught:
        Stream.decode(DATA[:size])
    assert str(size) in caught.value.details


def test_too_long():
    with pytest.raises(InputError) as caught:
        Stream.decode(DATA + b"\0")
    assert f"{len(DATA) + 1} bytes" in caught.value.details


@settings(deadline=None)
@given(st.integers(40, len(DATA) - 1), st.integers(1, 255))
def test_no_changed_byte_goes_unseen(offset, mask):
    with pytest.raises(InputError):
        Stream.decode(DATA[:offset] + bytes([DATA[offset] ^ mask]) + DATA[offset + 1 :])


@settings(deadline=None)
@given(st.integers(0, 39) | st.integers(44, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_no_crash(offset, mask):
    data = sealed(DATA[:offset] + bytes([DATA[offset] ^ mask]) + DATA[offset + 1 :])
    try:
        assert Stream.decode(data) != STREAM
    except InputError:
        return


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (changed(7, 2), "not with"),
        (changed(8, 3), "no revision 3"),
        (changed(22, 1), "unused bytes"),
        (changed(45, 1), "unused bytes"),
        (changed(24, 3), "its header counts"),
        (changed(28, 255, 255, 255, 255), "its header counts"),
        (changed(BODY, 7), "buffer 0 is of memory 7"),
        (changed(BODY + 9, 2), "buffer 1 is of memory 4, direction 2"),
        (changed(BODY + 2, 1), "buffer 0"),
    ],
)
def test_what_no_writer_writes(data, cause):
    with pytest.raises(InputError) as caught:
        Stream.decode(data)
    assert cause in caught.value.details


def test_an_impossible_machine():
    with pytest.raises(InputError, match="LOG_INP_WIDTH"):
        Stream.decode(changed(12, 4))


def test_an_unknown_instruction():
    with pytest.raises(InputError):
        Stream.decode(changed(BODY + 16, 7))


def test_a_value_without_room():
    with pytest.raises(BuildError, match="uop_bgn"):
        replace(STREAM, instructions=(Gemm(1 << 13, 1, 1, 1, 0, 0, 0, 0, 0, 0), Finish())).encoded()
