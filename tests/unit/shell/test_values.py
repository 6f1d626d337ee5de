"""The values of an SSH configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolchain.shell import config


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a # b", "a"),
        ("a#b", "a#b"),
        ('"a # b" # c', '"a # b"'),
        ("'a # b'", "'a # b'"),
        ("# all", ""),
        ("", ""),
    ],
)
def test_comments(value, expected):
    assert config.without_comment(value) == expected


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1m", 60), ("1h1S", 3601), ("1w2d", 777_600)])
def test_times(text, seconds):
    assert config.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1y", "1 m", "-1", "1.5"])
def test_what_is_not_a_time(text):
    with pytest.raises(ValueError, match="not a valid time"):
        config.seconds(text)


def test_paths(monkeypatch):
    monkeypatch.setenv("LAB", "/lab")
    monkeypatch.setenv("HOME", "/home/me")
    assert config.as_path("${LAB}/%n", {"n": "board"}) == Path("/lab/board")
    assert config.as_path("~/%%", {}) == Path("/home/me/%")
    with pytest.raises(ValueError, match="not a valid token"):
        config.as_path("%z", {"n": "board"})
    with pytest.raises(ValueError, match="not set"):
        config.as_path("${NO_SUCH_VARIABLE}", {})
