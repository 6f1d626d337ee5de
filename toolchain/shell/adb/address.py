"""How a device of adb is addressed: `adb:SERIAL`, or `adb:` for the only one."""

from __future__ import annotations

import re

from toolchain.errors import InputError
from toolchain.shell.address import SshOptions

PREFIX = "adb:"  # what the address of such a device begins with

# Of USB devices, of emulators, `usb:1-4`, HOST:PORT and [IPv6]:PORT, and what devices in a network are announced as.
# Nothing that begins with a hyphen: no serial is to be read as an option.
_SERIAL = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:%\[\]()-]{0,126}")
_NETWORK = re.compile(r"(\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[A-Za-z0-9][A-Za-z0-9.-]*):[0-9]{1,5}")
_PORTLESS = re.compile(r"\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")


def is_adb(host: str | None) -> bool:
    """Whether an address is one of adb's."""
    return host is not None and host.startswith(PREFIX)


def serial_of(host: str) -> str:
    """Return the serial of an address; empty for the only device.

    Raises:
        InputError: It is no serial.
    """
    return checked(host.removeprefix(PREFIX), host)


def checked(serial: str, where: str) -> str:
    """Return a serial, or refuse what is none.

    Args:
        serial: The serial; it may be empty.
        where: What the user wrote.

    Raises:
        InputError: It is none.
    """
    if serial and not _SERIAL.fullmatch(serial):
        raise InputError(
            f"{where!r:.200} is not a valid adb address",
            details="a serial has letters, digits and . : _ - and begins with a letter, a digit or _",
            hint="write adb:SERIAL with a serial that `adb devices` lists, or adb: if only one device is attached",
        )
    return serial


def is_network(serial: str) -> bool:
    """Whether a serial is the address of a device in a network, to which adb's server can connect."""
    return bool(_NETWORK.fullmatch(serial)) and not serial.startswith("usb:")


def lacks_port(serial: str) -> bool:
    """Whether a serial looks like the address of a device in a network, without the port that adb wants."""
    return bool(_PORTLESS.fullmatch(serial))


def alike(one: str, other: str) -> bool:
    """Whether two serials are one device's: names in a network have no case, and ports no leading zeros."""
    return _spelled(one) == _spelled(other)


def _spelled(serial: str) -> str:
    if not is_network(serial):
        return serial
    host, _, port = serial.rpartition(":")
    return f"{host.lower()}:{int(port)}"


def refuse_ssh(host: str, options: SshOptions) -> None:
    """Refuse options of SSH: who a device of adb is, its cable tells, and whom it lets in is asked on its screen.

    Raises:
        InputError: There is one.
    """
    given = [
        ("-i / --identity", options.identity),
        ("--known-hosts", options.known_hosts),
        ("--ssh-config", options.config_file),
    ]
    if named := [name for name, value in given if value]:
        raise InputError(
            f"{host} is reached over adb, so {' and '.join(named)} do not apply",
            details="adb uses keys of its own, which the user accepts on the device's screen, and no host keys",
            hint="leave these options out, or pass the device's SSH address with --host",
        )
