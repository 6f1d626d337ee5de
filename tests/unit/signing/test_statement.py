"""The statement that is signed, and documents that are no statement."""

from __future__ import annotations

import dataclasses
import json

import pytest

from toolchain.errors import InputError, VerificationError
from toolchain.signing import statement
from toolchain.signing.statement import Order, Statement

DIGEST = "ab" * 32
GOOD = {"schema": 1, "bundle": DIGEST, "model": "net", "board": "rk3399", "sequence": 7}


def read(**changes):
    return statement.read(json.dumps({**GOOD, **changes}).encode(), "it")


def test_comes_back_as_it_was_written():
    for minimum in (None, 3):
        written_statement = Statement(1, DIGEST, "net", "rk3399", 7, minimum)
        assert statement.read(written_statement.encoded(), "it") == written_statement
    assert b"minimum" not in Statement(1, DIGEST, "net", "rk3399", 7).encoded()


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"bundle": "AB" * 32},
        {"bundle": "ab"},
        {"model": "../net"},
        {"model": ""},
        {"model": "a" * 129},
        {"board": ".hidden"},
        {"sequence": 0},
        {"sequence": -1},
        {"sequence": 1.0},
        {"sequence": "7"},
        {"sequence": True},
        {"sequence": 2**53},
        {"minimum": 0},
        {"minimum": 8},
        {"expires": "tomorrow"},
    ],
    ids=str,
)
def test_refuses(changes):
    with pytest.raises(VerificationError):
        read(**changes)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b'{"schema": 1}', b"[" * 10000])
def test_refuses_what_is_no_statement_at_all(data):
    with pytest.raises(VerificationError):
        statement.read(data, "it")


def test_refuses_a_key_twice():
    encoded = statement.read(read().encoded(), "it").encoded()
    with pytest.raises(VerificationError, match="a key twice"):
        statement.read(encoded.replace(b'"sequence"', b'"sequence": 9, "sequence"'), "it")


def test_is_about_a_bundle(tiny):
    about = statement.about(tiny.manifest, tiny.digest, Order(2, 1))
    assert (about.bundle, about.model, about.board) == (tiny.digest, tiny.manifest.name, tiny.manifest.board)


def test_a_minimum_above_the_sequence_is_refused_before_it_is_signed(tiny):
    with pytest.raises(InputError, match="no device would accept"):
        statement.about(tiny.manifest, tiny.digest, Order(2, 3))


def test_a_name_that_is_none_of_a_file_is_refused_before_it_is_signed(tiny):
    odd = dataclasses.replace(tiny.manifest, name="a/b")
    with pytest.raises(InputError, match="cannot be signed"):
        statement.about(odd, tiny.digest, Order(1))
