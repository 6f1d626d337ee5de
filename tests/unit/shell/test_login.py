"""Proving who we are to a real SSH server."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import sshd
from tests.support.parts import require
from toolchain.errors import DeviceError, InputError
from toolchain.shell import SshOptions, open_shell


@pytest.fixture(autouse=True)
def _no_keys_of_the_tester(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(scope="module")
def options(server):
    return SshOptions(known_hosts=(server.known_hosts,), identity=server.key_file, connect_timeout=5)


def _fails(host, options):
    with pytest.raises(DeviceError) as caught:
        open_shell(host, config=options)
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value


def test_wrong_key(server, options, tmp_path):
    fault = _fails(server.host, replace(options, identity=sshd.keygen(tmp_path / "wrong")))
    assert f"key file {tmp_path}/wrong: refused" in fault.details
    assert "publickey" in fault.details
    assert f"-p {server.port}" in fault.hint


def test_encrypted_key(server, options, tmp_path):
    locked = sshd.keygen(tmp_path / "locked", passphrase="hard to guess")  # noqa: S106
    fault = _fails(server.host, replace(options, identity=locked))
    assert "encrypted" in fault.details
    assert fault.hint == "ssh-add ~/locked"


@pytest.mark.parametrize("content", ["garbage\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END\n"])
def test_broken_key_file(server, options, tmp_path, content):
    (tmp_path / "broken").write_text(content)
    assert "not a valid private key" in _fails(server.host, replace(options, identity=tmp_path / "broken")).details


def test_missing_key_file(server, options, tmp_path):
    with pytest.raises(InputError, match="missing"):
        open_shell(server.host, config=replace(options, identity=tmp_path / "missing"))


def test_nothing_to_try(server, options):
    assert "nothing" in _fails(server.host, replace(options, identity=None)).details


def test_too_many_keys(tmp_path):
    keys = [sshd.keygen(tmp_path / f"key{number}") for number in range(4)]
    config = tmp_path / "config"
    config.write_text("".join(f"IdentityFile {key}\n" for key in keys))
    with sshd.running(tmp_path / "sshd", options="MaxAuthTries 2") as server:
        mine = SshOptions(config_file=config, known_hosts=(server.known_hosts,))
        assert "closed the connection" in _fails(server.host, mine).details


def test_agent_key(server, options, monkeypatch):
    socket_path = f"/tmp/agent-{os.getpid()}.sock"  # noqa: S108 - a socket's path must be short
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket_path], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket_path)
        deadline = time.monotonic() + 5
        while not Path(socket_path).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        subprocess.run(["ssh-add", "-q", server.key_file], check=True)
        open_shell(server.host, config=replace(options, identity=None)).close()
        fault = _fails(server.host, replace(options, identity=None, agent=False))
        assert "nothing" in fault.details
    finally:
        agent.kill()
        agent.wait()
        Path(socket_path).unlink(missing_ok=True)


def test_wrong_password(options, tmp_path):
    with sshd.running(tmp_path / "sshd", options="PasswordAuthentication yes") as server:
        mine = replace(options, known_hosts=(server.known_hosts,), identity=None, password="wrong")  # noqa: S106
        fault = _fails(server.host, mine)
        assert "password: refused" in fault.details
        assert "wrong" not in fault.details
        assert "password" in fault.hint


def test_right_password(options, tmp_path):
    require("a test account", "passwd and openssl, and run as root", os.geteuid() == 0)
    name = f"tc{os.getpid()}"
    secret = "correct horse"  # noqa: S105
    hashed = subprocess.run(["openssl", "passwd", "-6", secret], capture_output=True, text=True, check=True)
    account = ["useradd", "--no-create-home", "--home-dir", "/", "--shell", "/bin/sh", "-p", hashed.stdout.strip()]
    subprocess.run([*account, name], check=True)
    try:
        with sshd.running(tmp_path / "sshd", options="PasswordAuthentication yes") as server:
            mine = replace(options, known_hosts=(server.known_hosts,), identity=None, password=secret)
            with open_shell(f"{name}@127.0.0.1:{server.port}", config=mine) as shell:
                assert shell.run("id -un").stdout.strip() == name
    finally:
        subprocess.run(["userdel", "--force", name], check=True, capture_output=True)
