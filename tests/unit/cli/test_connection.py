"""Which device options name; tests/integration has some that are connected to."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import click
import pytest

from toolchain.cli.connection import BoardOptions, DeviceOptions, open_device
from toolchain.cli.options import KernelOptions
from toolchain.errors import DeviceError, InputError


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    """A folder with a devices.toml, and nothing of the user's."""
    monkeypatch.chdir(tmp_path)
    for name in ("DEVICES", "SSH_PASSWORD"):
        monkeypatch.delenv(f"TOOLCHAIN_{name}", raising=False)
    path = tmp_path / "lab.toml"
    path.write_text('[devices.bench]\nboard = "rpi4"\nhost = "me@127.0.0.1:1"\n')
    (tmp_path / "none").write_text("")
    return path


@pytest.fixture
def named(lab):
    def made(**given: object) -> DeviceOptions:
        return DeviceOptions("rpi4", devices=lab, ssh_config=Path("none"), **given)

    return made


def test_a_board_type():
    assert BoardOptions().board().name == "local"
    assert not BoardOptions("rk3399").board().target.float16
    assert BoardOptions("rk3399").board(float16=True).target.float16
    assert not BoardOptions("rk3399").board(**KernelOptions(float16=True).precision).target.half_sums
    summing = BoardOptions("rk3399").board(**KernelOptions(half_sums=True).precision).target
    assert summing.float16
    assert summing.half_sums
    with pytest.raises(InputError, match="rpi9"):
        BoardOptions("rpi9").board()


def test_the_device_is_the_only_one_the_named_one_or_an_address(named):
    kind = named().board()
    assert named().device(kind).host == named(host="bench").device(kind).host == "me@127.0.0.1:1"
    assert named(host="pi@there").device(kind).host == "pi@there"
    with pytest.raises(InputError, match="which rpi3b device"):
        DeviceOptions("rpi3b", devices=named().devices).device(BoardOptions("rpi3b").board())


def test_this_machine_needs_no_file_of_devices():
    found = DeviceOptions(devices=Path("no-such-file"))
    assert found.lab(found.board()) == {}
    assert found.device(found.board()).host == "local"


def test_how_a_device_is_reached(named, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_SSH_PASSWORD", "secret")
    found = named(identity=Path("key"), known_hosts=(Path("a"), Path("b"))).ssh()
    assert (found.config_file, found.identity) == (Path("none"), Path("key"))
    assert (found.known_hosts, found.password) == ((Path("a"), Path("b")), "secret")


def test_boards_to_measure_on(named):
    options = named(host="bench", root="~/here")
    found = options.boards(options.board(), "mlp")
    assert (found.board.name, found.host, found.root, found.purpose) == ("rpi4", "bench", "~/here", "tune mlp")
    assert (list(found.devices), found.ssh, found.tracker, found.key) == (["bench"], options.ssh(), None, "")
    found = named().boards(options.board(), "mlp", "127.0.0.1:9190", "mine")
    assert (found.tracker, found.key) == (("127.0.0.1", 9190), "mine")


def test_a_folder_that_is_none(named):
    for ask in (lambda options: options.boards(options.board(), ""), opened):
        with pytest.raises(InputError, match="'a b' is no folder"):
            ask(named(root="a b"))


def opened(options: DeviceOptions) -> list[str]:
    """Connect; return what is told."""
    told: list[str] = []
    with open_device(options.board(), options, told.append) as lab:
        assert lab.shell.run("true").returncode == 0
    return told


def test_this_machine_is_a_device(tmp_path):
    root = tmp_path / "root"
    assert opened(DeviceOptions(root=str(root))) == []
    with open_device(BoardOptions().board(), DeviceOptions(root=str(root))) as lab:
        assert (lab.store.root, lab.device.host, lab.store.current()) == (str(root), "local", None)


def test_whoever_is_not_there_is_told_with_the_file_that_names_them(named, lab):
    told: list[str] = []
    kind = named().board()
    with pytest.raises(DeviceError, match=r"127\.0\.0\.1"), open_device(kind, named(), told.append):
        pytest.fail("there is nothing")
    assert told == [f"device me@127.0.0.1:1 of {lab}"]


def test_a_misspelt_device(named, monkeypatch):
    def unknown(*_words, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a server of names would be told what the user looks for
    with pytest.raises(InputError, match="there is no device 'bensh'") as caught:
        opened(named(host="bensh"))
    assert caught.value.hint == "did you mean bench?"


def test_a_command_has_one_patience(named):
    """The place, the device and the farm's boards are waited for within the same seconds, and all of it is told."""
    options = named(wait_s=5.0)
    with click.Context(click.Command("x"), obj=None):
        first = options.patience()
        assert options.patience() is first
        assert options.boards(options.board(), "mlp").patience is first
        with open_device(BoardOptions().board(), dataclasses.replace(options, board_name="local", host=None)) as lab:
            assert lab.store._patience is first
