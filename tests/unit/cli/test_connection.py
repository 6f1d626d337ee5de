"""Which device options name; tests/integration has some that are connected to."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import socket
from pathlib import Path

import click
import pytest

from toolchain import board, shell
from toolchain.adoption import selection
from toolchain.cli.common import KernelOptions
from toolchain.cli.connection import AddressOptions, BoardOptions, DeviceOptions, Selected, open_device
from toolchain.cli.console import Console
from toolchain.errors import DeviceError, InputError
from toolchain.places import labgrid


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
def device_options(lab):
    def options_of(**options: object) -> DeviceOptions:
        return DeviceOptions("rpi4", devices=lab, ssh_config=Path("none"), **options)

    return options_of


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


def test_bfloat16_and_half_precision_exclude_each_other():
    kernels = KernelOptions(bfloat16=True)
    assert kernels.precision_arguments == ["--bfloat16"]
    target = BoardOptions("x86_64-v3").board(**kernels.precision).target
    assert (target.float16, target.bfloat16, target.reduced_precision) == (False, True, "bfloat16")
    for other in ({"float16": True}, {"half_sums": True}):
        with pytest.raises(InputError, match="--bfloat16 cannot be combined"):
            _ = KernelOptions(bfloat16=True, **other).precision


def test_rounded_weights_exclude_other_precisions():
    kernels = KernelOptions(weights="int4")
    assert kernels.precision_arguments == ["--weights", "int4"]
    target = BoardOptions("x86_64-v3").board(**kernels.precision).target
    assert (target.float16, target.weights, target.reduced_precision) == (False, "int4", "int4")
    for other in ({"float16": True}, {"half_sums": True}, {"bfloat16": True}):
        with pytest.raises(InputError, match="--weights int4 cannot be combined"):
            _ = KernelOptions(weights="int4", **other).precision


def test_the_device_is_the_only_one_the_named_one_or_an_address(device_options):
    kind = device_options().board()
    assert device_options().device(kind).host == device_options(host="bench").device(kind).host == "me@127.0.0.1:1"
    assert device_options(host="pi@there").device(kind).host == "pi@there"
    with pytest.raises(InputError, match="which rpi3b device"):
        DeviceOptions("rpi3b", devices=device_options().devices).device(BoardOptions("rpi3b").board())


def test_this_machine_needs_no_file_of_devices():
    options = DeviceOptions()
    assert options.lab(options.board()) == {}
    assert options.device(options.board()).host == "local"


def test_a_file_of_devices_that_is_named_must_be_there():
    options = DeviceOptions(devices=Path("no-such-file"))
    with pytest.raises(InputError, match="cannot read no-such-file"):
        options.device(options.board())


RPI4 = selection.Selection(board.load("rpi4"), "its CPU is a cortex-a72", is_new=False, emulated=False)


@pytest.fixture
def probes(monkeypatch):
    """A probe that finds a Raspberry Pi 4 at each address, and the addresses that were asked."""
    importlib.import_module("toolchain.pipeline.preflight")  # imported later, it would keep what is patched here
    addresses: list[str] = []

    @contextlib.contextmanager
    def connected(address, **_config):
        addresses.append(address)
        yield None

    monkeypatch.setattr(shell, "open_shell", connected)
    monkeypatch.setattr(selection, "select", lambda _shell: RPI4)
    return addresses


@pytest.fixture
def messages():
    """What a command that runs for the time of a test tells."""
    lines: list[str] = []
    with click.Context(click.Command("x"), obj=Console(lines.append)):
        yield lines


def test_without_a_board_and_a_host_it_is_this_machine(probes, lab):
    for options in (DeviceOptions(), AddressOptions(), DeviceOptions(devices=lab)):
        assert options.board().name == "local"
    assert not probes


def test_a_named_device_is_of_the_type_of_its_entry(probes, messages, lab):
    for options in (DeviceOptions(host="bench", devices=lab), AddressOptions(host="bench", devices=lab)):
        resolved = options.resolve()
        assert (resolved.board.name, resolved.reason) == ("rpi4", "")
        assert options.device(resolved.board).host == "me@127.0.0.1:1"
    assert (probes, messages) == ([], [])


def test_an_address_with_an_entry_is_of_its_type_and_that_is_told_once(probes, messages, lab):
    options = DeviceOptions(host="me@127.0.0.1:1", devices=lab)
    assert options.board() == options.board() == board.load("rpi4").resolved()
    assert probes == []
    assert messages == ["board rpi4: from the entry of devices.toml with the address me@127.0.0.1:1"]


@pytest.mark.parametrize("host", ["me@10.0.0.7", "adb:serial", "alias"])
def test_another_device_is_probed_once(probes, messages, lab, host):
    options = DeviceOptions(host=host, devices=lab)
    assert options.resolve() == options.resolve() == Selected(RPI4.board.resolved(), RPI4.reason)
    assert options.device(options.board()).host == host
    assert list(options.board_request(options.board(), "mlp").devices) == ["bench", host]
    assert probes == [host]
    assert messages[1:] == ["board rpi4: its CPU is a cortex-a72"]


def test_a_board_that_is_named_needs_no_probe(probes, lab):
    assert DeviceOptions("rpi3b", host="me@10.0.0.7", devices=lab).board().name == "rpi3b"
    with pytest.raises(InputError, match="device bench is a rpi4, not a rpi3b"):
        DeviceOptions("rpi3b", host="bench", devices=lab).device(board.load("rpi3b"))
    with pytest.raises(InputError, match="takes no host") as caught:
        DeviceOptions("local", host="bench", devices=lab).device(board.load("local"))
    assert caught.value.hint.startswith("leave --board")
    assert not probes


def test_an_emulator_that_a_probe_has_found_is_marked(probes, messages, lab, monkeypatch):
    monkeypatch.setattr(selection, "select", lambda _shell: dataclasses.replace(RPI4, emulated=True))
    options = DeviceOptions(host="me@10.0.0.7", devices=lab)
    assert options.device(options.board()).emulated
    assert not DeviceOptions(host="me@10.0.0.8", board_name="rpi4", devices=lab).device(RPI4.board).emulated


def test_a_list_of_devices_that_is_missing(probes):
    with pytest.raises(InputError, match="cannot read"):
        DeviceOptions(host="me@10.0.0.7", devices=Path("none.toml")).board()
    assert not probes


def test_a_host_and_a_place_exclude_each_other(probes, lab):
    with pytest.raises(InputError, match="--host and --place cannot be combined"):
        DeviceOptions(host="me@10.0.0.7", place="desk", devices=lab).board()


def test_a_place_is_of_its_entrys_type_or_probed(probes, messages, lab, monkeypatch):
    placed = labgrid.AcquiredPlace("desk", "root", "10.0.0.9", 22)
    monkeypatch.setattr(labgrid, "acquire", lambda _name: contextlib.nullcontext(placed))
    options = DeviceOptions(place="desk", devices=lab)
    assert (options.board().name, probes) == ("rpi4", ["root@10.0.0.9:22"])
    assert options.device(options.board()).host == "root@10.0.0.9:22"
    assert DeviceOptions(place="bench", devices=lab).board().name == "rpi4"
    assert len(probes) == 1


def test_an_entry_cannot_name_a_board_file(lab):
    """Its compiler would run here, and the list may have come with a checkout."""
    lab.write_text('[devices.bench]\nboard = "evil.toml"\nhost = "me@127.0.0.1:1"\n')
    with pytest.raises(InputError, match="is a file and not a name"):
        DeviceOptions(host="bench", devices=lab).board()


def test_a_package_for_a_device_without_an_entry_says_its_board_type(probes, messages, lab, tiny):
    address = DeviceOptions(host="me@10.0.0.7", devices=lab)
    assert address.for_bundle(str(tiny.folder)).board_name == tiny.manifest.board
    for options in (DeviceOptions(host="bench", devices=lab), DeviceOptions("rpi3b", host="x", devices=lab)):
        assert options.for_bundle(str(tiny.folder)) is options
    assert DeviceOptions().for_bundle(str(tiny.folder)).board_name == ""
    assert not probes


def test_how_a_device_is_reached(device_options, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_SSH_PASSWORD", "secret")
    ssh = device_options(identity=Path("key"), known_hosts=(Path("a"), Path("b"))).ssh()
    assert (ssh.config_file, ssh.identity) == (Path("none"), Path("key"))
    assert (ssh.known_hosts, ssh.password) == ((Path("a"), Path("b")), "secret")


def test_boards_to_measure_on(device_options):
    options = device_options(host="bench", root="~/here")
    request = options.board_request(options.board(), "mlp")
    assert (request.board.name, request.host, request.root, request.purpose) == ("rpi4", "bench", "~/here", "tune mlp")
    assert (list(request.devices), request.ssh, request.tracker, request.key) == (["bench"], options.ssh(), None, "")
    request = device_options().board_request(options.board(), "mlp", "127.0.0.1:9190", "mine")
    assert (request.tracker, request.key) == (("127.0.0.1", 9190), "mine")


def test_a_folder_that_is_none(device_options):
    for ask in (lambda options: options.board_request(options.board(), ""), opened):
        with pytest.raises(InputError, match="'a b' is not a valid folder on a device"):
            ask(device_options(root="a b"))


def opened(options: DeviceOptions) -> list[str]:
    """Connect; return what is told."""
    lines: list[str] = []
    with open_device(options.board(), options, lines.append) as lab:
        assert lab.shell.run("true").returncode == 0
    return lines


def test_this_machine_is_a_device(tmp_path):
    root = tmp_path / "root"
    assert opened(DeviceOptions(root=str(root))) == []
    with open_device(BoardOptions().board(), DeviceOptions(root=str(root))) as lab:
        assert (lab.store.root, lab.entry.host, lab.store.releases.current()) == (str(root), "local", None)


def test_whoever_is_not_there_is_told_with_the_file_that_names_them(device_options, lab):
    lines: list[str] = []
    kind = device_options().board()
    with pytest.raises(DeviceError, match=r"127\.0\.0\.1"), open_device(kind, device_options(), lines.append):
        pytest.fail("there is nothing")
    assert lines == [f"device me@127.0.0.1:1 of {lab}"]


def test_a_misspelt_device(device_options, monkeypatch):
    def unknown(*_words, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a server of names would be told what the user looks for
    with pytest.raises(InputError, match="there is no device 'bensh'") as caught:
        opened(device_options(host="bensh"))
    assert caught.value.hint == "did you mean bench?"


def test_a_command_has_one_patience(device_options):
    """The place, the device and the farm's boards are waited for within the same seconds, and all of it is told."""
    options = device_options(wait_s=5.0)
    with click.Context(click.Command("x"), obj=None):
        first = options.patience()
        assert options.patience() is first
        assert options.board_request(options.board(), "mlp").patience is first
        with open_device(BoardOptions().board(), dataclasses.replace(options, board_name="local", host=None)) as lab:
            assert lab.store._patience is first


def test_a_place_with_an_entry_tells_nothing_more(probes, messages, lab, monkeypatch):
    placed = labgrid.AcquiredPlace("bench", "root", "10.0.0.9", 22)
    monkeypatch.setattr(labgrid, "acquire", lambda _name: contextlib.nullcontext(placed))
    options = DeviceOptions(place="bench", devices=lab)
    assert options.device(options.board()).host == "root@10.0.0.9:22"
    assert (probes, messages) == ([], [])
