"""Commands and files on a device: one interface for this host, SSH connections and adb."""

from __future__ import annotations

from toolchain.shell.adb.client import is_adb, refuse_ssh, serial_of
from toolchain.shell.address import Address, SshOptions, parse_address
from toolchain.shell.bounds import LineBuffer, RemoteProcess
from toolchain.shell.local import LocalShell
from toolchain.shell.protocol import Shell

__all__ = [
    "Address",
    "LineBuffer",
    "LocalShell",
    "RemoteProcess",
    "Shell",
    "SshOptions",
    "check_options",
    "is_adb",
    "open_shell",
    "parse_address",
]

_DEFAULTS = SshOptions()


def check_options(host: str, config: SshOptions) -> None:
    """Refuse an adb address that is not valid, or that has SSH options; SSH addresses are checked on connecting."""
    if is_adb(host):
        serial_of(host)
        refuse_ssh(host, config)


def open_shell(host: str | None, *, config: SshOptions = _DEFAULTS) -> Shell:
    """Return a shell on this host if `host` is None, else one over SSH or adb.

    Args:
        host: `[user@]host[:port]` or an alias of the SSH configuration; `adb:SERIAL`, or `adb:` for the only device.
        config: Files, credentials and time limits of the connection.

    Raises:
        InputError: The address or the SSH configuration is wrong, or there are SSH options for adb.
        VerificationError: The host key is unknown, changed or revoked; nothing was sent to the device.
        DeviceError: The device cannot be reached or refuses us.
    """
    if host is None:
        return LocalShell()
    if is_adb(host):
        from toolchain.shell.adb.shell import AdbShell  # noqa: PLC0415 - as below

        check_options(host, config)
        return AdbShell(serial_of(host), config.stall_timeout)
    from toolchain.shell.ssh import SshShell  # noqa: PLC0415 - paramiko takes 0.1 s that a local run need not pay

    return SshShell(parse_address(host), config)
