import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rpc_servers import COPY_ACK, EXCEPTION, NOTHING, RETURN, text, values
from toolchain.rpc.relay import MAX_BYTES, ForgedAnswerError, check_body, check_head

NUMBER = struct.pack("<iq", 1, 7)
TENSOR = struct.pack("<i", 7) + bytes(8) + bytes(8) + struct.pack("<i", 2) + bytes(4) + bytes(16) + bytes(8)
STRING = struct.pack("<iIQ", 65, 65, 2) + b"ok"
OBJECT = struct.pack("<iIq", 115, 115, 1)


@pytest.mark.parametrize("code", [RETURN, EXCEPTION, COPY_ACK])
def test_answers_may_come(code):
    check_head(4, code)
    check_head(MAX_BYTES, code)


@pytest.mark.parametrize("code", [*sorted(set(range(24)) - {RETURN, EXCEPTION, COPY_ACK}), 2**31, 2**32 - 1])
def test_nothing_else_may(code):
    with pytest.raises(ForgedAnswerError, match="instead of an answer"):
        check_head(100, code)


def test_a_request_is_named():
    with pytest.raises(ForgedAnswerError, match="kCallFunc"):
        check_head(100, 3)


@pytest.mark.parametrize("size", [0, 3, MAX_BYTES + 1, 2**64 - 1])
def test_a_packet_has_a_sensible_size(size):
    with pytest.raises(ForgedAnswerError, match=f"of {size} bytes"):
        check_head(size, RETURN)


@pytest.mark.parametrize(
    "body",
    [
        values(),
        values(NOTHING),
        values(NUMBER, TENSOR),
        values(text("hello")),
        values(text("")),
        values(STRING),
        values(OBJECT),
        values(NUMBER, NUMBER, NUMBER, STRING),
    ],
)
def test_what_a_board_returns(body):
    check_body(RETURN, body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "too early"),
        (values(NUMBER)[:-1], "too early|extra data"),
        (values(text("hello"))[:-1], "extra data"),
        (values(NOTHING) + struct.pack("<I", 2), "extra data after its values"),
        (struct.pack("<i", -1), "-1 values"),
        (struct.pack("<i", 9), "9 values"),
        (values(struct.pack("<iQ", 68, 1)), "type 68"),
        (values(struct.pack("<iQ", 73, 1)), "type 73"),
        (values(struct.pack("<iI", 65, 71)), "type 65"),
        (values(struct.pack("<i", 7) + bytes(16) + struct.pack("<i", -5) + bytes(12)), "-5 dimensions"),
        (values(struct.pack("<iQ", 8, 2**64 - 8)), "extra data"),
    ],
)
def test_what_none_returns(body, why):
    with pytest.raises(ForgedAnswerError, match=why):
        check_body(RETURN, body)


def test_an_error_has_words():
    check_body(EXCEPTION, values(text("RPCError: no")))
    check_body(EXCEPTION, values(STRING))
    for body in (values(), values(NUMBER), values(text("a"), text("b"))):
        with pytest.raises(ForgedAnswerError, match="without a message"):
            check_body(EXCEPTION, body)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_refused(body):
    try:
        check_body(RETURN, body)
    except ForgedAnswerError:
        return
    assert len(body) >= 4
