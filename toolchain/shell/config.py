"""The way to a device: what ~/.ssh/config says of it and of every jump host before it."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import paramiko

from toolchain import process, state
from toolchain.errors import InputError
from toolchain.shell.address import Address, SshOptions, parse_address

_DEFAULT_TIMEOUT = 10.0
_DEFAULT_PORT = 22
_MAX_HOPS = 8
_EXEC_S = 60.0  # a command of `Match exec` that hangs would keep a farm from serving its other devices
_KNOWN_HOSTS = {
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_CRITERIA = frozenset({"all", "canonical", "exec", "final", "host", "localuser", "originalhost", "user"})


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
    config_file: Path | None
    proxy_command: str = ""
    jumps: tuple[str, ...] = ()
    via: str = ""
    agent: str = ""
    certificates: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """Who is logged in where, as people write it."""
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
    """The SSH client configuration, read once per connection.

    Args:
        options: Which it is, and what stands before it.

    Raises:
        InputError: It cannot be read.
    """

    def __init__(self, options: SshOptions) -> None:
        self.options = options
        self._path = options.config_file or Path.home() / ".ssh" / "config"
        self._lines: list[str] = []
        if options.config_file or self._path.exists():
            try:
                self._lines = list(_lines(self._path))
            except (OSError, ValueError) as fault:
                raise self._unreadable(fault) from fault

    def _unreadable(self, fault: Exception) -> InputError:
        return InputError(f"cannot read the SSH configuration {self._path}: {fault}")

    def route(self, address: Address, jumps: Sequence[str] | None = None, depth: int = 0) -> tuple[Hop, ...]:
        """Return the servers to go through, the device itself last.

        Raises:
            InputError: The configuration is wrong, or asks for what is not supported or not allowed.
        """
        if depth > _MAX_HOPS:
            raise InputError(f"ProxyJump of {address.host} refers back to itself")
        try:
            found = self._lookup(address)
            tokens = _tokens(found, address.host)
            command = ""
            if jumps is None:
                jumps, command = _proxy(found, tokens)
            # As in OpenSSH the rest of the list replaces the last jump's own ProxyJump, unless there is no rest.
            before = self.route(_jump(jumps[-1]), jumps[:-1] or None, depth + 1) if jumps else ()
            hop = self._hop(address.host, found, tokens)
            via = before[-1].name if before else ""
            return (*before, replace(hop, proxy_command=command, jumps=tuple(jumps), via=via))
        except paramiko.ConfigParseError as fault:
            raise self._unreadable(fault) from fault
        except (KeyError, OSError, ValueError, paramiko.SSHException) as fault:
            raise InputError(f"the SSH configuration is not valid for {address.host}: {fault}") from fault

    def _lookup(self, address: Address) -> dict[str, Any]:
        # The first value wins, and as with `ssh` those of the command line come first.
        given = [f"User {address.user}"] if address.user else []
        given += [f"Port {address.port}"] if address.port else []
        found: dict[str, Any] = _Parsed([*given, *self._lines], self._run).lookup(address.host)
        return found

    def _run(self, command: str) -> bool:
        """Tell whether a command of `Match exec` ends well."""
        words = in_shell(command)
        return process.run(words, timeout=_EXEC_S, check=False, error=InputError).returncode == 0

    def _hop(self, alias: str, found: Mapping[str, Any], tokens: Mapping[str, str]) -> Hop:
        options = self.options
        if not tokens["r"]:
            raise InputError(
                f"no user is named for {alias}, and the user of this process (uid {os.getuid()}) has no name",
                hint=f"write USER@{alias}",
            )
        return Hop(
            alias=alias,
            host=tokens["h"],
            port=int(tokens["p"]),
            user=tokens["r"],
            key_alias=found.get("hostkeyalias"),
            known_hosts=options.known_hosts or _known_hosts(found, tokens),
            identities=_identities(found, tokens),
            identities_only=str(found.get("identitiesonly", "no")).lower() == "yes",
            timeout=options.connect_timeout or float(found.get("connecttimeout", _DEFAULT_TIMEOUT)),
            config_file=options.config_file,
        )


class _Parsed(paramiko.SSHConfig):  # type: ignore[misc]
    """paramiko's reading of a configuration, with the criteria and commands of `Match` as in OpenSSH."""

    TOKENS_BY_CONFIG_KEY: ClassVar[dict[str, list[str]]] = {}  # paramiko would expand before all is known

    def __init__(self, lines: Sequence[str], run: Callable[[str], bool]) -> None:
        super().__init__()
        self._run = run
        self.parse(lines)
        criteria = [one for block in self._config for one in block.get("matches", ())]
        for one in criteria:
            one["type"] = one["type"].lower()
            if one["type"] not in _CRITERIA:
                raise InputError(f"`Match {one['type']}` in the SSH configuration is not supported here")
        self._depends = any(one["type"] == "final" for one in criteria)

    def _does_match(self, matches: Sequence[dict[str, Any]], alias: str, *state: Any) -> bool:
        """Tell whether all of them are met; the first that is not keeps later ones from being run."""
        canonical, final, found = state
        # paramiko always reads a configuration twice, OpenSSH only where something depends on it.
        if final and not (canonical or self._depends):
            return False
        tokens = _tokens(found, alias)
        return bool(matches) and all(
            self._run(_expanded(one["param"], tokens)) != one["negate"]
            if one["type"] == "exec"
            else super(_Parsed, self)._does_match([one], alias, *state)
            for one in matches
        )


def _lines(path: Path, depth: int = 0) -> Iterator[str]:
    """Yield the lines of a file and of those it includes, which paramiko would leave out."""
    block = "Host *"
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if key.lower() in {"host", "match"}:
            block = line
        if key.lower() == "include" and depth < _MAX_HOPS:
            for pattern in shlex.split(value):
                for found in sorted(glob.glob(str(_path(pattern, Path.home() / ".ssh")))):  # noqa: PTH207 - absolute
                    yield from _lines(Path(found), depth + 1)
            yield block  # which goes on
        elif key.lower() == "proxycommand" and value.strip()[:1] == '"':
            yield f'{key} "{value.strip()}"'  # paramiko takes outer quotes away; these are the shell's
        else:
            yield line


def _path(text: str, folder: Path = Path()) -> Path:
    return folder / Path(text).expanduser()


def _tokens(found: Mapping[str, Any], alias: str) -> dict[str, str]:
    """Return what `%` and a letter stand for, see TOKENS in ssh_config(5), as far as the configuration is known."""
    here, me = socket.gethostname(), state.user_name()
    host = _expanded(found.get("hostname", alias), {"h": alias})
    port, user = str(found.get("port", _DEFAULT_PORT)), str(found.get("user", me))
    jump, key = str(found.get("proxyjump") or ""), found.get("hostkeyalias", alias)
    whole = hashlib.sha1(f"{here}{host}{port}{user}{jump}".encode(), usedforsecurity=False).hexdigest()
    there = {"C": whole, "h": host, "j": jump, "k": key, "n": alias, "p": port, "r": user}
    return there | {"d": str(Path.home()), "i": str(os.getuid()), "L": here.partition(".")[0], "l": here, "u": me}


def _expanded(text: str, tokens: Mapping[str, str]) -> str:
    def meaning(token: re.Match[str]) -> str:
        if token[1] not in {"%", *tokens}:
            raise ValueError(f"{text!r} has {token[0]}, which is not a valid token there")
        return tokens.get(token[1], "%")

    return re.sub("%(.?)", meaning, text)


def _proxy(found: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the jump hosts and the command to connect with: of ProxyJump and ProxyCommand the first one wins."""
    jumps, command = (str(found.get(key) or "none") for key in ("proxyjump", "proxycommand"))
    first = next((key for key in found if key in {"proxyjump", "proxycommand"}), "")
    if jumps.lower() != "none" and first == "proxyjump":
        return [part.strip() for part in _expanded(jumps, tokens).split(",")], ""
    return [], _expanded(command, tokens) if command.lower() != "none" else ""


def _known_hosts(found: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    words = shlex.split(" ".join(found.get(key, files) for key, files in _KNOWN_HOSTS.items()))
    return tuple(_path(_expanded(word, tokens)) for word in words if word.lower() != "none")


def _identities(found: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    if "identityfile" in found:
        return tuple(_path(_expanded(text, tokens)) for text in found["identityfile"] if text.lower() != "none")
    defaults = (Path.home() / ".ssh" / name for name in _DEFAULT_KEYS)
    return tuple(path for path in defaults if path.exists())


def _jump(text: str) -> Address:
    return parse_address(text.removeprefix("ssh://").rstrip("/"))


def in_shell(command: str) -> list[str]:
    """Return how `ssh` runs a command of its configuration."""
    return [os.environ.get("SHELL") or "/bin/sh", "-c", command]
