import itertools
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rpc_servers import COPY_ACK, DONE, RETURN, packet, program_to_run, text, values
from toolchain.rpc.relay import Filter, ForgedAnswerError, Relay

ANSWERS = [DONE, packet(COPY_ACK, bytes(1000)), packet(RETURN, values(text("x" * 300))), packet(COPY_ACK)]


def cut_at(stream: bytes, cuts: list[int]) -> list[bytes]:
    offsets = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:end] for start, end in itertools.pairwise(offsets)]


@given(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=6), st.lists(st.integers(0, 10**6), max_size=12))
def test_answers_pass_however_they_are_cut(answers, cuts):
    stream = Filter()
    assert [answer for piece in cut_at(b"".join(answers), cuts) for answer in stream.feed(piece)] == answers


@given(st.lists(st.sampled_from(ANSWERS), max_size=4), st.lists(st.integers(0, 10**6), max_size=12))
def test_nothing_of_a_request_passes(answers, cuts):
    stream, passed = Filter(), []

    def feed() -> None:
        for piece in cut_at(b"".join(answers) + program_to_run("true"), cuts):
            passed.extend(stream.feed(piece))

    with pytest.raises(ForgedAnswerError, match="kInitServer"):
        feed()
    assert passed == answers


def test_a_request_inside_an_answer_is_found():
    """TVM's client reads on behind the values of an answer, and takes what is there for the next packet."""
    hidden = values(text("")) + program_to_run("true")[8:]
    with pytest.raises(ForgedAnswerError, match="after its values"):
        list(Filter().feed(packet(RETURN, hidden)))


@pytest.fixture
def connected_relay():
    """A relay with both of its far ends."""
    client, client_end = socket.socketpair()
    board, board_end = socket.socketpair()
    started = Relay(client_end, board_end)
    started.start()
    for link in (client, board):
        link.settimeout(10)
    with client, board:
        yield started, client, board
        started.close()
    assert not [thread for thread in threading.enumerate() if thread.name in {"rpc-up", "rpc-down"}]


def test_it_carries_both_ways(connected_relay):
    _, client, board = connected_relay
    client.sendall(b"any question")
    assert board.recv(100) == b"any question"
    board.sendall(DONE)
    assert client.recv(100) == DONE


def test_a_forged_answer_cuts_both_ends(connected_relay):
    relay, client, board = connected_relay
    board.sendall(DONE + program_to_run("true"))
    data = b""
    while piece := client.recv(100):
        data += piece
    assert data == DONE
    assert board.recv(100) == b""
    assert "kInitServer" in relay.forged


@pytest.mark.parametrize("gone", ["client", "board"])
def test_the_end_of_one_is_the_end_of_the_other(connected_relay, gone):
    relay, client, board = connected_relay
    closed, remaining = (client, board) if gone == "client" else (board, client)
    closed.close()
    assert remaining.recv(1) == b""
    assert relay.forged == ""


def test_it_is_cut_from_any_thread(connected_relay):
    relay, client, board = connected_relay
    threading.Timer(0.1, relay.cut).start()
    assert client.recv(1) == board.recv(1) == b""


def test_a_huge_answer_is_refused_before_it_comes(connected_relay):
    relay, client, board = connected_relay
    board.sendall(struct.pack("<QI", 1 << 40, RETURN))
    assert client.recv(1) == b""
    assert f"{1 << 40} bytes" in relay.forged
