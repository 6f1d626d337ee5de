"""Commands and files on a device: one Protocol, served by this host or by an SSH connection."""

from __future__ import annotations

from toolchain.shell.address import Address, SshOptions, parse_address
from toolchain.shell.bounds import LineBuffer
from toolchain.shell.local import LocalShell
from toolchain.shell.protocol import Shell
from toolchain.shell.remote import RemoteProcess

__all__ = ["Address", "LineBuffer", "LocalShell", "RemoteProcess", "Shell", "SshOptions", "open_shell", "parse_address"]

_DEFAULTS = SshOptions()


def open_shell(host: str | None, *, config: SshOptions = _DEFAULTS) -> Shell:
    """Return a shell on this host if `host` is None, else one over SSH.

    Args:
        host: `[user@]host[:port]`, where host may be an alias of the SSH configuration.
        config: Files, credentials and time limits of the connection.

    Raises:
        InputError: The address or the SSH configuration is wrong.
        VerificationError: The host key is unknown, changed or revoked; nothing was sent to the device.
        DeviceError: The device cannot be reached or refuses us.
    """
    if host is None:
        return LocalShell()
    from toolchain.shell.ssh import SshShell  # noqa: PLC0415 - paramiko takes 0.1 s that a local run need not pay

    return SshShell(parse_address(host), config)
