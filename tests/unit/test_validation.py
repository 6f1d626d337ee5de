from __future__ import annotations

from dataclasses import dataclass

import pytest

from toolchain.validation import CONFIG, Fault, parse_toml, validate


@dataclass(frozen=True)
class Inner:
    size: int


@dataclass(frozen=True)
class Outer:
    inner: Inner
    title: str = ""
    __pydantic_config__ = CONFIG


def test_fault_without_a_suggestion():
    assert str(Fault("key", "is odd", "")) == "key: is odd"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "inner: is missing (every shelf must set it)"),
        ({"inner": {"size": 1}, "titel": "a"}, "titel: unknown key (did you mean title?)"),
        ({"inner": {"size": "4"}}, "inner.size: '4' should be a valid integer"),
    ],
)
def test_a_fault_names_its_key_and_what_to_write(value, message):
    record, faults = validate(Outer, value, "shelf")
    assert record is None
    assert [str(fault) for fault in faults] == [message]


def test_keys_are_suggested_from_the_table_that_has_the_fault():
    _, faults = validate(dict[str, Outer], {"a": {"inner": {"size": 1}, "colour": 2}}, "shelf")
    assert faults == [Fault("a.colour", "unknown key", "known keys: inner, title")]


def test_what_is_right_becomes_an_object():
    assert validate(Outer, {"inner": {"size": 1}}, "shelf") == (Outer(Inner(1)), [])


def test_a_mark_before_the_text_is_no_fault(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert parse_toml(tmp_path / "a.toml") == {"a": 1}
