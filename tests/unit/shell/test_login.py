"""Proving who we are to a real SSH server."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import logins, sshd
from toolchain.errors import DeviceError, InputError
from toolchain.shell import SshOptions, open_shell
from toolchain.shell.login import _Answers


@pytest.fixture(autouse=True)
def _no_keys_of_the_tester(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


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


def test_agent_key(server, options, tmp_path, monkeypatch):
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
        monkeypatch.delenv("SSH_AUTH_SOCK")
        (tmp_path / "config").write_text(f"IdentityAgent {socket_path}\n")
        open_shell(server.host, config=replace(options, identity=None, config_file=tmp_path / "config")).close()
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


def test_right_password(tmp_path):
    with logins.serving(tmp_path / "sshd") as login, open_shell(login.host, config=login.options) as shell:
        assert shell.run("id -un").stdout.strip() == login.host.rpartition("@")[0]


@pytest.mark.parametrize("name", ["od@corp.example", "CORP\\oduser", "od+plus", "od$"])
def test_names_of_directory_services(tmp_path, name):
    with logins.serving(tmp_path / "sshd", name=name) as login, open_shell(login.host, config=login.options) as shell:
        assert shell.run("id -un").stdout == f"{name}\n"
        assert shell.name == login.host


# --- two factors ---


@contextlib.contextmanager
def _two_factors(tmp_path, methods):
    """A login that requires a key and one of the other methods, which PAM asks for by keyboard-interactive."""
    options = f"AuthenticationMethods {methods}\nUsePAM yes\nKbdInteractiveAuthentication yes"
    authorized = Path("/tmp", f"authorized-{os.getpid()}")  # noqa: S108 - the login must be able to read it
    key = sshd.keygen(tmp_path / "key")
    authorized.write_text(Path(f"{key}.pub").read_text())
    authorized.chmod(0o644)
    try:
        with logins.serving(tmp_path / "sshd", options=f"{options}\nAuthorizedKeysFile {authorized}") as login:
            yield login.host, replace(login.options, identity=key)
    finally:
        authorized.unlink()


@pytest.mark.parametrize("second", ["password", "keyboard-interactive"])
def test_a_key_and_a_password(tmp_path, second):
    with _two_factors(tmp_path, f"publickey,{second}") as (host, options):
        with open_shell(host, config=options) as shell:
            assert shell.run("echo up").stdout == "up\n"
        fault = _fails(host, replace(options, password=None))
        assert f"accepted, but the server also requires {second}" in fault.details
        assert "TOOLCHAIN_SSH_PASSWORD" in fault.hint
        assert "ssh-copy-id" not in fault.hint
        fault = _fails(host, replace(options, password="wrong"))  # noqa: S106
        assert "check the password" in fault.hint


def test_a_missing_password_is_named_where_keys_are_refused(tmp_path):
    with logins.serving(tmp_path / "sshd") as login:
        fault = _fails(login.host, replace(login.options, password=None))
    assert "TOOLCHAIN_SSH_PASSWORD" in fault.hint
    assert "ssh-copy-id" in fault.hint


def test_only_the_password_is_answered_and_only_once():
    answers = _Answers("secret")
    assert answers("", "", []) == []
    assert answers("", "", [("Password: ", False)]) == ["secret"]
    assert answers("", "", [("Code: ", False), ("Name: ", True)]) == ["", ""]
    assert answers.unanswered == ["Code:", "Name:"]
