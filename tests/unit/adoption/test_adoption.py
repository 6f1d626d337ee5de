"""Where a device will stand, and which fingerprint it must have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.devices_said import probed
from toolchain import adoption
from toolchain.adoption import AdoptionRequest, Entry, choice
from toolchain.device import probe
from toolchain.devices import Device
from toolchain.errors import DeviceError, InputError, VerificationError
from toolchain.shell import LocalShell, SshOptions

SSH = SshOptions()
LIST = '[devices.bench-1]\nboard = "rpi4"\nhost = "me@10.0.0.7:2222"\n'


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user without lists, in a folder that is no project."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TOOLCHAIN_DEVICES", raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return tmp_path


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("me@10.0.0.7", "10-0-0-7"),
        ("me@bench.lab:2222", "bench-lab"),
        ("me@[fe80::1]:22", "fe80-1"),
        ("alias", "alias"),
    ],
)
def test_a_name_is_made_of_the_address(home, host, name):
    entry = adoption.choose_entry(AdoptionRequest(host, SSH))
    assert (entry.name, entry.old) == (name, None)
    assert entry.file == home / "config" / "edge-toolchain" / "devices.toml"


def test_a_project_has_a_list_of_its_own(home):
    Path("devices.toml").write_text(LIST)
    assert adoption.choose_entry(AdoptionRequest("me@10.0.0.9", SSH)).file == Path("devices.toml")


def test_an_ssh_configuration_goes_to_the_users_list(home):
    """A list that nobody named may not have one."""
    Path("devices.toml").write_text(LIST)
    options = SshOptions(config_file=Path("ssh_config"))
    assert (
        adoption.choose_entry(AdoptionRequest("alias", options)).file
        == home / "config" / "edge-toolchain" / "devices.toml"
    )


def test_a_device_is_found_again(home):
    Path("devices.toml").write_text(LIST)
    entry = adoption.choose_entry(AdoptionRequest("me@10.0.0.7:2222", SSH))
    assert entry.name == "bench-1"
    assert entry.old


def test_a_name_is_one_devices(home):
    Path("devices.toml").write_text(LIST)
    with pytest.raises(InputError, match="another device"):
        adoption.choose_entry(AdoptionRequest("me@10.0.0.8", SSH, name="bench-1"))
    assert adoption.choose_entry(AdoptionRequest("me@bench-1", SSH)).name == "bench-1-2"


@pytest.mark.parametrize(
    ("host", "config"),
    [
        ("me@10.0.0.7:22", ""),
        ("10.0.0.7", "Host *\n  User me\n"),
        ("bench", "Host bench\n  HostName 10.0.0.7\n  User me\n"),
        ("me@BENCH.lab", "Host BENCH.lab\n  HostName 10.0.0.7\n"),
    ],
)
def test_a_device_is_found_again_however_it_is_written(home, monkeypatch, host, config):
    monkeypatch.setenv("HOME", str(home))
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text(config)
    Path("devices.toml").write_text('[devices.bench-1]\nboard = "rpi4"\nhost = "me@10.0.0.7"\n')
    assert adoption.choose_entry(AdoptionRequest(host, SSH)).name == "bench-1"
    for other in ("me@10.0.0.7:2222", "you@10.0.0.7", "me@10.0.0.8"):
        assert adoption.choose_entry(AdoptionRequest(other, SSH)).old is None


def test_another_way_is_another_device(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text("Host far\n  HostName 10.0.0.7\n  ProxyJump me@jump\n")
    Path("devices.toml").write_text('[devices.bench-1]\nboard = "rpi4"\nhost = "me@10.0.0.7"\n')
    assert adoption.choose_entry(AdoptionRequest("me@far", SSH)).old is None


def test_no_configuration_but_the_users_is_read(home):
    """One that an entry names runs commands."""
    Path("evil").write_text(f"Match exec 'touch {home}/ran'\n  User me\n")
    Path("devices.toml").write_text('[devices.x]\nboard = "rpi4"\nhost = "10.0.0.7"\nssh_config = "evil"\n')
    assert adoption.choose_entry(AdoptionRequest("me@10.0.0.7", SSH)).old is None
    assert not (home / "ran").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("/etc/x", "is not a valid name"), ("../x", "is not a valid name"), ("no/such.toml", "no board"), ("", "")],
)
def test_a_board_type_is_looked_at_before_the_device(home, name, message):
    if not message:
        assert adoption.choose_entry(AdoptionRequest("me@10.0.0.8", SSH, board=name))
        return
    with pytest.raises(InputError, match=message):
        adoption.choose_entry(AdoptionRequest("me@10.0.0.8", SSH, board=name))


def test_the_command_that_goes_on_says_all_that_was_said():
    ssh = SshOptions(config_file=Path("lab"), known_hosts=(Path("a b"), Path("c")), identity=Path("key"))
    request = AdoptionRequest(
        "me@h", ssh, "", "one", "rpi4", "/x", Path("list.toml"), emulated=True, more=("--wait", "9")
    )
    assert request.command(root="/y") == (
        "toolchain board add me@h --root /y --name one --board rpi4 --devices list.toml -i key --ssh-config lab "
        "--known-hosts 'a b' --known-hosts c --emulated --wait 9"
    )
    assert request.for_another_login().startswith("toolchain board add OTHER@h --root /x ")


class Here(LocalShell):
    """This machine, as if it were reached by SSH."""

    server = "SSH-2.0-here"


@pytest.fixture
def one_board(home, monkeypatch):
    """There is one board type, which fits this machine, with a folder of its own."""
    folder = home / "boards"
    folder.mkdir()
    monkeypatch.setenv("TOOLCHAIN_BOARDS", str(folder))
    monkeypatch.setenv("HOME", str(home / "work"))
    text = choice.choose(probe.ask(LocalShell(), ""), "here", "").text

    def write(root: str) -> None:
        (folder / "here.toml").write_text(f'root = "{root}"\n{text}')

    return write


def test_the_folder_that_is_looked_at_is_the_types(home, one_board):
    one_board(f"{home}/opt/edge")
    request = AdoptionRequest("me@10.0.0.8", SSH)
    adopted = adoption.adopt(request, adoption.choose_entry(request), Here())
    assert (adopted.choice.board.name, adopted.board_file) == ("here", None)
    assert (adopted.probe.place.root, adopted.device.root) == (f"{home}/opt/edge", None)
    assert adopted.probe.server == "SSH-2.0-here"


def test_a_machine_that_is_not_supported_is_refused_and_not_listed(home, monkeypatch):
    monkeypatch.setattr(probe, "ask", lambda *_arguments: probed({"machine": "s390x"}))
    request = AdoptionRequest("me@10.0.0.8", SSH)
    with pytest.raises(VerificationError, match="is Linux on s390x, and there are no device programs") as caught:
        adoption.adopt(request, adoption.choose_entry(request), Here())
    assert "aarch64, armv7l, riscv64, x86_64" in caught.value.details
    assert not (home / "config").exists()


def test_a_folder_of_the_type_that_will_not_do_is_told(home, one_board):
    one_board("/proc/edge")
    request = AdoptionRequest("me@10.0.0.8", SSH, name="x")
    with pytest.raises(DeviceError, match="/proc of ") as caught:
        adoption.adopt(request, adoption.choose_entry(request), Here())
    assert "toolchain board add me@10.0.0.8 --root /FOLDER/edge-toolchain --name x" in caught.value.hint
    assert not (home / "config").exists()
    request_with_root = AdoptionRequest("me@10.0.0.8", SSH, root=f"{home}/mine")
    assert (
        adoption.adopt(request_with_root, adoption.choose_entry(request_with_root), Here()).device.root
        == f"{home}/mine"
    )


@pytest.mark.parametrize(
    ("signs", "old", "emulated", "expected"),
    [
        ({"dmi": "QEMU"}, None, None, True),
        ({"dmi": "QEMU"}, None, False, False),
        ({"dmi": "QEMU"}, False, None, False),
        ({"dmi": "QEMU"}, True, False, False),
        ({"kernel_arch": "x86_64"}, False, None, True),
        ({}, None, None, False),
        ({}, None, True, True),
        ({}, True, None, True),
    ],
)
def test_emulators(signs, old, emulated, expected):
    request = AdoptionRequest("me@h", SSH, emulated=emulated)
    device = None if old is None else Device(board="rpi4", host="me@h", emulated=old)
    assert adoption._is_emulated(request, Entry(Path("x"), "h", device), probed(signs)) is expected


def test_an_emulator_that_shows_it_is_one():
    with pytest.raises(VerificationError, match="is emulated") as caught:
        adoption._is_emulated(
            AdoptionRequest("me@h", SSH, emulated=False), Entry(Path("x"), "h", None), probed({"kernel_arch": "x86_64"})
        )
    assert caught.value.hint == "toolchain board add me@h"


@pytest.mark.parametrize("name", ["a b", "../x", "-x", "a\n", "x" * 100, "a=b"])
def test_names_are_words(home, name):
    with pytest.raises(InputError, match="is not a valid device name"):
        adoption.choose_entry(AdoptionRequest("me@10.0.0.8", SSH, name=name))


@pytest.mark.parametrize("host", ["", "me@", "me@a b", "me@host:99999", "-oProxyCommand=x", "me@ho;st"])
def test_hosts_are_addresses(home, host):
    with pytest.raises(InputError):
        adoption.choose_entry(AdoptionRequest(host, SSH))


@pytest.mark.parametrize("fingerprint", ["nonsense", "MD5:16:27:ac", "SHA256:", "SHA256:" + "a" * 42])
def test_what_is_no_fingerprint_is_told_before_anything_is_asked(home, fingerprint):
    with pytest.raises(InputError, match="is not a valid fingerprint"):
        adoption.choose_entry(AdoptionRequest("me@10.0.0.8", SSH, fingerprint=fingerprint))


def test_fingerprints():
    adoption.check_fingerprint("board", "SHA256:abc", "")
    adoption.check_fingerprint("board", "SHA256:abc", "SHA256:abc")
    adoption.check_fingerprint("board", "SHA256:abc", "abc=")
    for wrong in ("SHA256:abd", "MD5:abc", "SHA256:", "x"):
        with pytest.raises(VerificationError, match="another fingerprint"):
            adoption.check_fingerprint("board", "SHA256:abc", wrong)
