"""Where a device will stand, and which fingerprint it must have."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolchain import adoption
from toolchain.adoption import Wanted
from toolchain.errors import InputError, VerificationError
from toolchain.shell import SshOptions

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
    entry = adoption.place(Wanted(host, SSH))
    assert (entry.name, entry.old) == (name, None)
    assert entry.file == home / "config" / "edge-toolchain" / "devices.toml"


def test_a_project_has_a_list_of_its_own(home):
    Path("devices.toml").write_text(LIST)
    assert adoption.place(Wanted("me@10.0.0.9", SSH)).file == Path("devices.toml")


def test_an_ssh_configuration_goes_to_the_users_list(home):
    """A list that nobody named may not have one."""
    Path("devices.toml").write_text(LIST)
    options = SshOptions(config_file=Path("ssh_config"))
    assert adoption.place(Wanted("alias", options)).file == home / "config" / "edge-toolchain" / "devices.toml"


def test_a_device_is_found_again(home):
    Path("devices.toml").write_text(LIST)
    entry = adoption.place(Wanted("me@10.0.0.7:2222", SSH))
    assert entry.name == "bench-1"
    assert entry.old


def test_a_name_is_one_devices(home):
    Path("devices.toml").write_text(LIST)
    with pytest.raises(InputError, match="another device"):
        adoption.place(Wanted("me@10.0.0.8", SSH, name="bench-1"))
    assert adoption.place(Wanted("me@bench-1", SSH)).name == "bench-1-2"


@pytest.mark.parametrize("name", ["a b", "../x", "-x", "a\n", "x" * 100, "a=b"])
def test_names_are_words(home, name):
    with pytest.raises(InputError, match="no name"):
        adoption.place(Wanted("me@10.0.0.8", SSH, name=name))


@pytest.mark.parametrize("host", ["", "me@", "me@a b", "me@host:99999", "-oProxyCommand=x", "me@ho;st"])
def test_hosts_are_addresses(home, host):
    with pytest.raises(InputError):
        adoption.place(Wanted(host, SSH))


def test_fingerprints():
    adoption.check_fingerprint("board", "SHA256:abc", "")
    adoption.check_fingerprint("board", "SHA256:abc", "SHA256:abc")
    adoption.check_fingerprint("board", "SHA256:abc", "abc=")
    for wrong in ("SHA256:abd", "MD5:abc", "SHA256:", "x"):
        with pytest.raises(VerificationError, match="another fingerprint"):
            adoption.check_fingerprint("board", "SHA256:abc", wrong)
