"""Logins: what Docker's file and helpers keep, and what a registry asks for."""

from __future__ import annotations

import json

import pytest

from tests.support.registries import docker_config
from toolchain.errors import InputError
from toolchain.registry import access
from toolchain.registry.access import Login


def test_docker_keeps_a_login_for_each_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path, "one.example:5000", "ann", "pass:word")))
    assert access.stored_login("one.example:5000") == Login("ann", "pass:word")
    assert access.stored_login("two.example") is None


def test_a_helper_keeps_it(tmp_path, monkeypatch):
    helper = tmp_path / "docker-credential-chest"
    helper.write_text('#!/bin/sh\nread host\nprintf \'{"Username": "ann", "Secret": "of %s"}\' "$host"\n')
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {"one.example": "chest"}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert access.stored_login("one.example") == Login("ann", "of one.example")
    assert access.stored_login("two.example") is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"credHelpers": {"one.example": "nowhere"}}, "cannot be read"),
        ({"auths": {"one.example": {"auth": "%%%"}}}, "cannot be read"),
        ({"auths": {"one.example": 3}}, "cannot be read"),
        ({"auths": {"one.example": {"auth": 3}}}, "cannot be read"),
        ({"credsStore": 3}, "cannot be read"),
        ({"auths": {"one.example": {"identitytoken": "x"}}}, "identity token"),
    ],
)
def test_what_is_broken_is_told(tmp_path, monkeypatch, config, message):
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(InputError, match=message) as caught:
        access.stored_login("one.example")
    assert "--username" in caught.value.hint


def test_a_login_shows_no_password():
    assert "secret" not in repr(Login("ann", "secret"))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('Basic realm="x"', ("basic", {"realm": "x"})),
        (
            'Bearer realm="https://a/t",service="s",scope="repository:x:pull,push"',
            ("bearer", {"realm": "https://a/t", "service": "s", "scope": "repository:x:pull,push"}),
        ),
        ("", ("", {})),
        ("Negotiate", ("negotiate", {})),
    ],
)
def test_a_challenge_is_read(header, expected):
    assert access.parse_challenge(header) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"token": "a.b"}', "a.b"),
        (b'{"access_token": "c"}', "c"),
        (b'{"token": "a\\r\\nX-Evil: 1"}', ""),
        (b'{"token": 3}', ""),
        (b"[]", ""),
        (b"no JSON", ""),
    ],
)
def test_a_token_is_read(answer, expected):
    assert access.token_of(answer) == expected
