"""What the farm is told of a device."""

from __future__ import annotations

from types import SimpleNamespace

from toolchain import board
from toolchain.devices import Device
from toolchain.farm import client
from toolchain.shell import SshOptions


def test_a_devices_own_configuration_stands_behind_the_users(tmp_path, monkeypatch):
    monkeypatch.setattr(client.programs, "build", lambda *_: SimpleNamespace(board_server=None))
    device, kind = Device("rpi4", "a", ssh_config=tmp_path / "its"), board.load("rpi4").resolved()
    served = client.to_serve(client.FarmDevice("a", kind, device), lambda _: None)
    assert served.ssh.config_file == tmp_path / "its"
    mine = client.FarmDevice("a", kind, device, SshOptions(config_file=tmp_path / "mine"))
    assert client.to_serve(mine, lambda _: None).ssh.config_file == tmp_path / "mine"
