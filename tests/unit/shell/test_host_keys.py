"""Which lines of known_hosts files are about a server."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from toolchain.shell import host_keys


def _hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        ("board", "board", True),
        ("Board", "board", True),
        ("other,board", "board", True),
        ("board", "board2", False),
        ("*.lab", "a.lab", True),
        ("b?", "b1", True),
        ("*.lab,!bad.lab", "bad.lab", False),
        ("[10.0.0.1]:2222", "[10.0.0.1]:2222", True),
        ("10.0.0.1", "[10.0.0.1]:2222", False),
        ("[::1]:22", "[::1]:22", True),
        (_hashed("board"), "board", True),
        (_hashed("board"), "other", False),
        ("|1|broken", "board", False),
    ],
)
def test_known_hosts_patterns(patterns, name, expected):
    assert host_keys._matches(patterns, name) is expected


def test_known_hosts_lines(tmp_path):
    (tmp_path / "known").write_text("# comment\n\nshort line\nboard ssh-ed25519 QUJD me\n@revoked * ssh-rsa QUJD\n")
    keys = list(host_keys._known_keys(tmp_path / "known"))
    assert [(key.marker, key.kind, key.blob, key.place[1]) for key in keys] == [
        ("", "ssh-ed25519", b"ABC", 4),
        ("@revoked", "ssh-rsa", b"ABC", 5),
    ]
    assert list(host_keys._known_keys(tmp_path / "missing")) == []
