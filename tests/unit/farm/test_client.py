"""What the farm is told of a device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from toolchain import board, devices
from toolchain.farm import client
from toolchain.shell import SshOptions


@pytest.mark.parametrize("own", [True, False])
def test_a_devices_configuration_runs_commands_only_if_its_list_is_the_users(tmp_path, monkeypatch, own):
    monkeypatch.delenv("TOOLCHAIN_DEVICES", raising=False)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client.programs, "build", lambda *_: SimpleNamespace(board_server=None))
    (tmp_path / "devices.toml").write_text('[a]\nboard = "rpi4"\nhost = "a"\nssh_config = "config"\n')
    device = devices.load_devices()["a"]
    if not own:
        somebody = (tmp_path / "devices.toml").stat().st_uid + 1
        monkeypatch.setattr("os.getuid", lambda: somebody)
        monkeypatch.setattr("toolchain.state._ADMINISTRATOR", -1)  # whose these files are where tests run as root
    kind = board.load("rpi4").resolved()
    told = client.described(client.Place("a", kind, device), lambda _: None)
    assert (told.ssh.config_file, told.ssh.commands) == (tmp_path / "config", own)
    mine = client.Place("a", kind, device, SshOptions(config_file=tmp_path / "config"))
    assert client.described(mine, lambda _: None).ssh.commands
