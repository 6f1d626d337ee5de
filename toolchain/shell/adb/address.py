"""The address of an adb device: `adb:SERIAL`, or `adb:` for the only one."""

from __future__ import annotations

import re

from toolchain.errors import InputError
from toolchain.shell.address import SshOptions

PREFIX = "adb:"  # what the address of such a device begins with

# Serials of USB devices and emulators, `usb:1-4`, HOST:PORT and [IPv6]:PORT, and names that network devices announce.
# None begins with a hyphen, so no serial can be read as an option.
_SERIAL = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:%\[\]()-]{0,126}")
_NETWORK = re.compile(r"(\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[A-Za-z0-9][A-Za-z0-9.-]*):[0-9]{1,5}")
_PORTLESS = re.compile(r"\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")


def is_adb(host: str | None) -> bool:
    return host is not None and host.startswith(PREFIX)


def serial_of(host: str) -> str:
    """Return the serial of an address; empty for the only device."""
    return check_serial(host.removeprefix(PREFIX), host)


def check_serial(serial: str, where: str) -> str:
    """Return a serial, which may be empty, or refuse one that is not valid; `where` is what the user wrote."""
    if serial and not _SERIAL.fullmatch(serial):
        raise InputError(
            f"{where!r:.200} is not a valid adb address",
            details="a serial has letters, digits and . : _ - and begins with a letter, a digit or _",
            hint="write adb:SERIAL with a serial that `adb devices` lists, or adb: if only one device is attached",
        )
    return serial


def is_network(serial: str) -> bool:
    """Whether a serial is the address of a network device, to which adb's server can connect."""
    return bool(_NETWORK.fullmatch(serial)) and not serial.startswith("usb:")


def lacks_port(serial: str) -> bool:
    """Whether a serial looks like the address of a network device without the port that adb needs."""
    return bool(_PORTLESS.fullmatch(serial))


def is_same_device(serial: str, other: str) -> bool:
    """Whether two serials denote one device: network names ignore case, and ports leading zeros."""
    return _normalized(serial) == _normalized(other)


def _normalized(serial: str) -> str:
    if not is_network(serial):
        return serial
    host, _, port = serial.rpartition(":")
    return f"{host.lower()}:{int(port)}"


def refuse_ssh(host: str, options: SshOptions) -> None:
    """Refuse options of SSH, which adb has no use for: a device accepts our key on its screen."""
    settings = [
        ("-i / --identity", options.identity),
        ("--known-hosts", options.known_hosts),
        ("--ssh-config", options.config_file),
    ]
    if used := [name for name, value in settings if value]:
        raise InputError(
            f"{host} is reached over adb, so {' and '.join(used)} do not apply",
            details="adb uses keys of its own, which the user accepts on the device's screen, and no host keys",
            hint="leave these options out, or pass the device's SSH address with --host",
        )
