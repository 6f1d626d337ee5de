"""Which lines of known_hosts files are about a server."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from toolchain.errors import InputError
from toolchain.shell import host_keys
from toolchain.shell.host_keys import OfferedKey


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
    assert [(key.marker, key.kind, key.blob, key.location[1]) for key in keys] == [
        ("", "ssh-ed25519", b"ABC", 4),
        ("@revoked", "ssh-rsa", b"ABC", 5),
    ]
    assert list(host_keys._known_keys(tmp_path / "missing")) == []


def offered(file: Path | None) -> OfferedKey:
    return OfferedKey("board", "[board]:2222", "ssh-ed25519", b"ABC", "SHA256:x", file)


@pytest.mark.parametrize("before", ["", "other ssh-rsa QUJD\n", "other ssh-rsa QUJD", "# a comment\r\n"])
def test_a_trusted_key_is_added_and_other_lines_stay(tmp_path, before):
    file = tmp_path / "known"
    file.write_text(before, newline="")
    file.chmod(0o640)
    host_keys.trust(offered(file))
    after = file.read_bytes().decode()
    assert after.startswith(before)
    assert after.removeprefix(before).lstrip("\n") == "[board]:2222 ssh-ed25519 QUJD\n"
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_first_key_makes_a_private_file(tmp_path):
    file = tmp_path / "ssh" / "known"
    host_keys.trust(offered(file))
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_there_must_be_a_file_to_trust_a_key_in(tmp_path):
    with pytest.raises(InputError, match="no known_hosts file"):
        host_keys.trust(offered(None))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        host_keys.trust(offered(tmp_path / "file" / "known"))
