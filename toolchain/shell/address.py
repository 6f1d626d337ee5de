"""Addresses of devices, and options of SSH connections."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolchain.errors import InputError

_PORTS = range(1, 1 << 16)
_NUMBER = re.compile(r"[0-9]{1,9}")
_NAME = re.compile(r"[\w.][\w.-]*")
# Directory services have names such as me@corp.example, CORP\me and me+x. OpenSSH's client refuses the same ones.
_USER = re.compile(r"(?!-)[^\s'\"`;&<>|(){}\x00-\x1f\x7f]*[^\s'\"`;&<>|(){}\x00-\x1f\x7f\\]")


def _ignore(_line: str) -> None: ...


@dataclass(frozen=True)
class SshOptions:
    """How SSH connections are made; the defaults are those of the `ssh` command."""

    config_file: Path | None = None  # configuration to read instead of ~/.ssh/config
    known_hosts: tuple[Path, ...] = ()  # replace the configured and the system-wide files
    identity: Path | None = None  # private key to try first
    password: str | None = field(default=None, repr=False)  # tried last
    agent: bool = True  # whether the keys of a running SSH agent are tried
    connect_timeout: float | None = None  # seconds to reach each server; None: its ConnectTimeout, or 10
    stall_timeout: float = 60.0  # seconds without progress after which a transfer is aborted
    keepalive: int = 15  # seconds between keep-alives; the connection is lost after three without an answer; 0: never
    # Called with a line about something unusual or slow in a connection.
    report: Callable[[str], None] = field(default=_ignore, repr=False, compare=False)
    # logins of which that was reported, for all connections that are made with these options
    noted: set[str] = field(default_factory=set, repr=False, compare=False)

    def before(self, config_file: Path | None) -> SshOptions:
        """Return these options with a device's own SSH configuration, unless the user has named one."""
        if self.config_file or config_file is None:
            return self
        return replace(self, config_file=config_file)


@dataclass(frozen=True)
class Address:
    """What a user wrote: a host name, an alias of the SSH configuration or an IP address."""

    host: str
    user: str | None = None
    port: int | None = None


def parse_address(text: str) -> Address:
    """Parse `[user@]host[:port]`, where an IPv6 address with a port stands in brackets."""
    user, separator, location = text.rpartition("@")
    host, port = _split_port(text, location)
    name = host
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        name = host.partition("%")[2] or "none"  # Python takes anything for a zone; a ProxyCommand may get it to read
    if not _NAME.fullmatch(name):
        raise _no_address(text, f"{host!r} is not a valid host name or IP address")
    if separator and not _USER.fullmatch(user):
        raise _no_address(text, f"{user!r} is not a valid user name")
    return Address(host, user or None, port)


def _split_port(text: str, location: str) -> tuple[str, int | None]:
    """Split `host:port`, `[v6]:port` or a bare IPv6 address."""
    if location.startswith("["):
        host, _, rest = location[1:].partition("]")
        if ":" not in host or (rest and not rest.startswith(":")) or "]" not in location:
            raise _no_address(text, "brackets enclose an IPv6 address, and only a port may follow them")
        return host, _port(text, rest[1:]) if rest else None
    if location.count(":") != 1:
        return location, None
    host, _, number = location.partition(":")
    return host, _port(text, number)


def _port(text: str, number: str) -> int:
    if not _NUMBER.fullmatch(number) or int(number) not in _PORTS:
        raise _no_address(text, f"{number!r:.50} is not a port from 1 to 65535")
    return int(number)


def _no_address(text: str, why: str) -> InputError:
    return InputError(
        f"{text!r} is not a valid device address",
        details=why,
        hint="write user@host, user@host:port or user@[IPv6 address]:port",
    )
