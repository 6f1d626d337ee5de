"""The way to a device: what ~/.ssh/config says of it and of every jump host before it."""

from __future__ import annotations

import getpass
import glob
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import paramiko

from toolchain.errors import InputError
from toolchain.shell import Address, SshOptions, parse_address

_DEFAULT_TIMEOUT = 10.0
_DEFAULT_PORT = 22
_MAX_HOPS = 8
_GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_USER_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class Hop:
    """One SSH server on the way to a device, as the configuration describes it."""

    alias: str
    host: str
    port: int
    user: str
    key_alias: str | None
    known_hosts: tuple[Path, ...]
    identities: tuple[Path, ...]
    identities_only: bool
    timeout: float
    proxy_command: str | None
    config_file: Path | None
    jumps: tuple[str, ...]
    via: str

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"

    @property
    def key_name(self) -> str:
        """The name under which known_hosts files hold this server's key."""
        if self.key_alias:
            return self.key_alias.lower()
        host = self.host.lower()
        return host if self.port == _DEFAULT_PORT else f"[{host}]:{self.port}"


class Config:
    """The SSH client configuration, read once per connection."""

    def __init__(self, options: SshOptions) -> None:
        self.options = options
        self._home = Path.home() / ".ssh"
        self.folder = options.ssh_dir or self._home
        self._parsed = self._parse(options.config_file or self.folder / "config")

    def _parse(self, path: Path) -> Any:
        if not path.exists() and self.options.config_file is None:
            return paramiko.SSHConfig()
        try:
            return paramiko.SSHConfig.from_text("\n".join(self._lines(path)))
        except (OSError, UnicodeDecodeError, paramiko.ConfigParseError) as fault:
            raise InputError(f"cannot read the SSH configuration {path}: {fault}") from fault

    def _lines(self, path: Path, depth: int = 0) -> Iterator[str]:
        """Yield the lines of a file and of those it includes, which paramiko would leave out."""
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.strip().replace("=", " ", 1).partition(" ")
            if key.lower() == "match" and "exec" in value.lower().split():
                # paramiko would run it with our standard input connected.
                raise InputError(f"`Match exec` in the SSH configuration {path} is not supported here")
            if key.lower() != "include" or depth >= _MAX_HOPS:
                yield line
                continue
            for pattern in shlex.split(value):
                for found in sorted(glob.glob(str(self.folder / self._path(pattern)))):  # noqa: PTH207 - absolute
                    yield from self._lines(Path(found), depth + 1)

    def _path(self, text: str) -> Path:
        """Expand ~, with `ssh_dir` in the place of ~/.ssh."""
        path = Path(text).expanduser()
        return self.folder / path.relative_to(self._home) if path.is_relative_to(self._home) else path

    def route(self, address: Address, jumps: Sequence[str] | None = None, depth: int = 0) -> tuple[Hop, ...]:
        """Return the servers to go through, the device itself last."""
        if depth > _MAX_HOPS:
            raise InputError(f"ProxyJump of {address.host} goes in circles")
        found = self._lookup(address.host)
        if jumps is None:
            jump = str(found.get("proxyjump") or "none")
            jumps = [] if jump.lower() == "none" else [part.strip() for part in jump.split(",")]
        if not jumps:
            return (self._hop(address, found, (), ""),)
        # As in OpenSSH the rest of the list replaces the last jump's own ProxyJump, unless there is no rest.
        before = self.route(_jump(jumps[-1]), jumps[:-1] or None, depth + 1)
        return (*before, self._hop(address, found, tuple(jumps), before[-1].name))

    def _lookup(self, alias: str) -> dict[str, Any]:
        try:
            return cast("dict[str, Any]", self._parsed.lookup(alias))
        except (KeyError, OSError, ValueError, paramiko.SSHException) as fault:
            raise InputError(f"the SSH configuration does not work out for {alias}: {fault}") from fault

    def _hop(self, address: Address, found: dict[str, Any], jumps: tuple[str, ...], via: str) -> Hop:
        options = self.options
        try:
            port = address.port or int(found.get("port", _DEFAULT_PORT))
            timeout = options.connect_timeout or float(found.get("connecttimeout", _DEFAULT_TIMEOUT))
            user = address.user or found.get("user") or getpass.getuser()
        except (KeyError, OSError, ValueError) as fault:
            raise InputError(f"user, port or time limit of {address.host} is wrong: {fault}") from fault
        return Hop(
            alias=address.host,
            host=found["hostname"],
            port=port,
            user=user,
            key_alias=found.get("hostkeyalias"),
            known_hosts=self._known_hosts(found),
            identities=self._identities(found),
            identities_only=str(found.get("identitiesonly", "no")).lower() == "yes",
            timeout=timeout,
            proxy_command=None if via else found.get("proxycommand"),
            config_file=options.config_file,
            jumps=jumps,
            via=via,
        )

    def _known_hosts(self, found: dict[str, Any]) -> tuple[Path, ...]:
        if self.options.known_hosts:
            return self.options.known_hosts
        user = found.get("userknownhostsfile", _USER_KNOWN_HOSTS)
        everyone = found.get("globalknownhostsfile", _GLOBAL_KNOWN_HOSTS)
        words = [word for word in shlex.split(f"{user} {everyone}") if word.lower() != "none"]
        return tuple(self._path(word) for word in words)

    def _identities(self, found: dict[str, Any]) -> tuple[Path, ...]:
        if "identityfile" in found:
            return tuple(self._path(text) for text in found["identityfile"] if text.lower() != "none")
        return tuple(path for path in (self.folder / name for name in _DEFAULT_KEYS) if path.exists())


def _jump(text: str) -> Address:
    return parse_address(text.removeprefix("ssh://").rstrip("/"))
