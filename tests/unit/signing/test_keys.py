"""Keys in files and in a real SSH agent."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support import signers
from toolchain.errors import InputError
from toolchain.signing import keys, sshsig
from toolchain.signing.sshsig import Signature


def nobody_asks():
    raise AssertionError("there is no passphrase")


def holds(key):
    return sshsig.is_valid(Signature(key.public, sshsig.HASH, key.sign(sshsig.to_sign(b"it"))), b"it")


def test_signs_with_a_file(alice):
    assert holds(keys.load(alice.path, nobody_asks))


@pytest.mark.parametrize("cipher", ["aes256-ctr", "aes256-gcm@openssh.com"])
def test_asks_for_a_passphrase(tmp_path, cipher):
    pair = signers.pair(tmp_path, "locked")
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-Z", cipher, "-f", pair.path], check=True)
    assert holds(keys.load(pair.path, lambda: "secret"))
    for wrong in ("guess", ""):
        with pytest.raises(InputError, match="not the passphrase"):
            keys.load(pair.path, lambda wrong=wrong: wrong)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """A real agent without any key."""
    address = tmp_path / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", address], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert "SSH_AUTH_SOCK" in process.stdout.readline()
            monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
            yield
        finally:
            process.terminate()


def test_signs_with_an_agent(agent, alice):
    subprocess.run(["ssh-add", "-q", alice.path], check=True, env=os.environ)
    assert holds(keys.load(alice.path.with_suffix(".pub"), nobody_asks))


def test_says_that_no_agent_has_the_key(agent, alice):
    with pytest.raises(InputError, match="no SSH agent has the key SHA256:"):
        keys.load(alice.path.with_suffix(".pub"), nobody_asks).sign(b"it")


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
@pytest.mark.parametrize("suffix", ["", ".pub"])
def test_refuses_another_kind_of_key(tmp_path, kind, suffix):
    pair = signers.pair(tmp_path, kind, kind)
    with pytest.raises(InputError, match="not an Ed25519 key"):
        keys.load(pair.path.with_suffix(suffix), nobody_asks)


@pytest.mark.parametrize("data", [b"", b"hello", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", b"\xff" * 100])
def test_refuses_what_is_no_key(tmp_path, data):
    path = tmp_path / "key"
    path.write_bytes(data)
    with pytest.raises(InputError):
        keys.load(path, nobody_asks)


def test_refuses_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        keys.load(tmp_path / "key", nobody_asks)
