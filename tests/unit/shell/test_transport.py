"""Algorithms that a real SSH server and this host agree on, or not."""

from __future__ import annotations

import pytest

from tests.support import sshd
from toolchain.errors import DeviceError
from toolchain.shell import SshOptions, open_shell
from toolchain.shell.connections import signal_number


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def _connected(server):
    return open_shell("board", config=SshOptions(config_file=server.config, agent=False, connect_timeout=5))


@pytest.mark.parametrize("name", ["curve25519-sha256", "curve25519-sha256@libssh.org"])
def test_each_name_of_the_key_exchange(tmp_path, name):
    with sshd.running(tmp_path / "sshd", options=f"KexAlgorithms {name}") as server, _connected(server) as shell:
        assert shell.run("echo up").stdout == "up\n"


REFUSED = {
    "KexAlgorithms sntrup761x25519-sha512@openssh.com": ("key exchange", "sntrup761x25519-sha512@openssh.com"),
    "Ciphers chacha20-poly1305@openssh.com": ("cipher", "chacha20-poly1305@openssh.com"),
    "Ciphers aes256-ctr\nMACs umac-128-etm@openssh.com": ("MAC", "umac-128-etm@openssh.com"),
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_a_strict_server_and_this_host_lack_is_named(tmp_path, options):
    kind, name = REFUSED[options]
    with sshd.running(tmp_path / "sshd", options=options) as server, pytest.raises(DeviceError) as caught:
        _connected(server)
    fault = caught.value
    assert f"no common {kind}" in fault.message
    assert f"the server offers: {name}" in fault.details
    assert "this host supports: " in fault.details
    assert "sshd_config" in fault.hint


def test_signals_have_the_numbers_of_this_host():
    assert (signal_number("KILL"), signal_number("XFSZ"), signal_number("ODD@lab")) == (9, 25, 0)
