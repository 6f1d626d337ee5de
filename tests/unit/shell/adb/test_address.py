"""Addresses of adb's devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolchain.errors import InputError
from toolchain.shell.adb import client
from toolchain.shell.address import SshOptions


@pytest.mark.parametrize(
    "serial",
    ["R58M123456", "emulator-5554", "10.0.0.7:5555", "[fe80::1%wlan0]:5555", "usb:1-4.2", "adb-1A-b._adb-tls._tcp", ""],
)
def test_serials(serial):
    assert client.is_adb(f"adb:{serial}")
    assert client.serial_of(f"adb:{serial}") == serial


@pytest.mark.parametrize("serial", ["-s", "-d", "a b", "a;b", "a\nb", "../a", "a" * 200, "$(id)", "\x1b[2J"])
def test_what_is_none_is_refused(serial):
    with pytest.raises(InputError, match="is not a valid adb address") as caught:
        client.serial_of(f"adb:{serial}")
    assert "adb devices" in caught.value.hint


@pytest.mark.parametrize("host", [None, "", "me@adb:22", "adb", "me@board"])
def test_other_addresses_are_of_ssh(host):
    assert not client.is_adb(host)


def test_devices_in_a_network_are_told_from_others():
    network_devices = {
        address: client.is_network(address) for address in ("10.0.0.7:5555", "phone.lan:5555", "[fe80::1%eth0]:5555")
    }
    assert all(network_devices.values()), network_devices
    others = {address: client.is_network(address) for address in ("R58M", "emulator-5554", "usb:1-4", "usb:5", "")}
    assert not any(others.values()), others


def test_addresses_in_a_network_have_more_than_one_spelling():
    assert client.is_same_device("Phone.LAN:05555", "phone.lan:5555")
    assert client.is_same_device("[FE80::1]:5555", "[fe80::1]:5555")
    assert not client.is_same_device("phone.lan:5555", "phone.lan:5556")
    assert not client.is_same_device("r58m", "R58M")


def test_a_missing_port_is_noticed():
    assert all(client.lacks_port(address) for address in ("10.0.0.7", "phone.lan", "[fe80::1]"))
    others = ("10.0.0.7:5555", "R58M123456", "usb:1-4.2", "adb-1A-b._adb-tls._tcp", "")
    assert not any(client.lacks_port(address) for address in others)


def test_options_of_ssh_are_named():
    client.refuse_ssh("adb:x", SshOptions(password="from the environment"))  # noqa: S106
    with pytest.raises(InputError, match="--known-hosts and --ssh-config do not apply"):
        client.refuse_ssh("adb:x", SshOptions(config_file=Path("a"), known_hosts=(Path("b"),)))
