"""Whose certificates are trusted."""

from __future__ import annotations

import ssl

import pytest

from tests.support import registries
from toolchain.errors import InputError
from toolchain.registry.access import trusted


def test_the_system_is_trusted_unless_a_file_is_named(tmp_path, monkeypatch):
    certificate = registries.certify(tmp_path)
    assert trusted(certificate) == str(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert trusted(None) == str(certificate)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: ssl.DefaultVerifyPaths(None, None, "", "", "", ""))
    assert trusted(None) is True


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_file_without_certificates_is_refused(tmp_path, content):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="contains no CA certificates"):
        trusted(path)
