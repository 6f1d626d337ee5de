"""Certificates of hosts and users that ssh-keygen has made, with a real SSH server."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import sshd
from toolchain.errors import DeviceError, VerificationError
from toolchain.shell import SshOptions, host_keys, open_shell

HOST = ("-h", "-n", "127.0.0.1")


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(params=["ed25519", "rsa", "ecdsa"])
def authority(tmp_path, request):
    return sshd.keygen(tmp_path / "authority", request.param)


def _signed(authority: Path, key: Path, *options: str) -> Path:
    command = ["ssh-keygen", "-q", "-s", authority, "-I", "lab", *options, f"{key}.pub"]
    subprocess.run(command, check=True, capture_output=True)
    return Path(f"{key}-cert.pub")


def _trusting(tmp_path, authority, patterns="*", marker="@cert-authority"):
    known_hosts = tmp_path / "known"
    kind, key = Path(f"{authority}.pub").read_text().split()[:2]
    known_hosts.write_text(f"{marker} {patterns} {kind} {key}\n")
    return known_hosts


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_host_key_that_a_known_authority_signed(tmp_path, kind):
    authority = sshd.keygen(tmp_path / "authority")
    key = sshd.keygen(tmp_path / "host", kind)
    certificate = _signed(authority, key, *HOST)
    with sshd.running(tmp_path / "sshd", host_key=key, options=f"HostCertificate {certificate}") as server:
        known_hosts = _trusting(tmp_path, authority, "127.0.0.*")
        options = SshOptions(known_hosts=(known_hosts,), identity=server.key_file, agent=False)
        with open_shell(server.host, config=options) as shell:
            assert shell.run("echo up").stdout == "up\n"


REFUSED = {
    "another name": (("-h", "-n", "board"), "it is for board, not for 127.0.0.1"),
    "no name": (("-h",), "it is for no name"),
    "a user": (("-n", "127.0.0.1"), "it is for a user"),
    "expired": ((*HOST, "-V", "20200101:20200102"), "it has expired"),
    "early": ((*HOST, "-V", "20980101:20980102"), "it is not valid yet"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_certificate_that_does_not_count(tmp_path, case):
    options, why = REFUSED[case]
    authority, key = sshd.keygen(tmp_path / "authority"), sshd.keygen(tmp_path / "host")
    certificate = host_keys.read(base64.b64decode(_signed(authority, key, *options).read_text().split()[1]))
    assert why in certificate.fault("127.0.0.1")


def test_the_signature_is_checked(tmp_path, authority):
    key = sshd.keygen(tmp_path / "host")
    blob = base64.b64decode(_signed(authority, key, *HOST).read_text().split()[1])
    certificate = host_keys.read(blob)
    assert certificate.fault("127.0.0.1") == ""
    changed = bytearray(certificate.signed)
    changed[60] ^= 1
    assert replace(certificate, signed=bytes(changed)).fault("127.0.0.1") == "its signature is wrong"
    assert replace(certificate, critical=b"x").fault("127.0.0.1").startswith("it has a critical option")


def test_another_authority_or_a_revoked_one_is_refused(tmp_path):
    authority, other = sshd.keygen(tmp_path / "authority"), sshd.keygen(tmp_path / "other")
    key = sshd.keygen(tmp_path / "host")
    certificate = _signed(authority, key, *HOST)
    with sshd.running(tmp_path / "sshd", host_key=key, options=f"HostCertificate {certificate}") as server:
        options = SshOptions(known_hosts=(_trusting(tmp_path, other),), identity=server.key_file, agent=False)
        with pytest.raises(VerificationError, match="not in a known_hosts file") as caught:
            open_shell(server.host, config=options)
        assert "an authority that no known_hosts file names" in caught.value.details
        known_hosts = _trusting(tmp_path, authority)
        known_hosts.write_text(known_hosts.read_text() + known_hosts.read_text().replace("@cert-authority", "@revoked"))
        with pytest.raises(VerificationError) as caught:
            open_shell(server.host, config=options)
        assert "is revoked" in caught.value.details
        # The key itself may be known, whatever its certificate is worth.
        with open_shell(server.host, config=replace(options, known_hosts=(server.known_hosts,))) as shell:
            assert shell.run("echo up").stdout == "up\n"


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
@pytest.mark.parametrize("configured", [False, True])
def test_a_certificate_of_a_user(tmp_path, kind, configured):
    authority, key = sshd.keygen(tmp_path / "authority"), sshd.keygen(tmp_path / "user", kind)
    with sshd.running(tmp_path / "sshd", options=f"TrustedUserCAKeys {authority}.pub") as server:
        config = tmp_path / "config"
        text = server.config.read_text().replace(str(server.key_file), str(key))
        options = SshOptions(config_file=config, agent=False)
        config.write_text(text)
        with pytest.raises(DeviceError, match="login to"):
            open_shell("board", config=options)
        certificate = _signed(authority, key, "-n", server.user)
        if configured:
            certificate = certificate.rename(tmp_path / "elsewhere")
            config.write_text(f"{text}  CertificateFile {certificate}\n")
        with open_shell("board", config=options) as shell:
            assert shell.run("echo up").stdout == "up\n"


def test_what_is_no_certificate(tmp_path):
    key = sshd.keygen(tmp_path / "key")
    with pytest.raises(ValueError, match="not a type of certificate"):
        host_keys.read(base64.b64decode(Path(f"{key}.pub").read_text().split()[1]))
