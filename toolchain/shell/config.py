"""The way to a device: what ~/.ssh/config says of it and of every jump host before it."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import ipaddress
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
from toolchain.shell.values import expanded, seconds, without_comment
from toolchain.shell.values import path as path_value

_DEFAULT_TIMEOUT = 10.0
_DEFAULT_PORT = 22
_MAX_HOPS = 8
_EXEC_S = 60.0  # a command of `Match exec` that hangs would keep a farm from serving its other devices
_KNOWN_HOSTS = {
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_PROXIES = {"proxycommand", "proxyjump"}
# options whose value is a command with all that follows, `#` among it
_WHOLE_LINE = {"proxycommand", "localcommand", "remotecommand", "knownhostscommand"}
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
        _refuse_unsupported(found, with_known_hosts=bool(options.known_hosts))
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
            timeout=options.connect_timeout or _timeout(found),
            config_file=options.config_file,
            agent=_agent(found, tokens),
            certificates=_certificates(found, tokens),
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

    def lookup(self, alias: str) -> dict[str, Any]:
        """Return the options for a host: paramiko would look up the alias, even where HostName is another name."""
        found = self._lookup(hostname=alias)
        name = expanded(found.get("hostname", alias), {"h": alias})
        mode = str(found.get("canonicalizehostname", "no")).lower()
        if mode in {"yes", "always"}:
            is_direct = not any(str(found.get(key) or "none").lower() != "none" for key in _PROXIES)
            canonical = _canonical(name, found) if is_direct or mode == "always" else name
            found["hostname"] = canonical
            options: dict[str, Any] = self._lookup(canonical, found, canonical=True, final=True)
        else:
            found.setdefault("hostname", alias)
            options = self._lookup(alias, found, canonical=False, final=True)
        return options

    def _does_match(self, matches: Sequence[dict[str, Any]], alias: str, *state: Any) -> bool:
        """Tell whether all of them are met; the first that is not keeps later ones from being run."""
        canonical, final, found = state
        # paramiko always reads a configuration twice, OpenSSH only where something depends on it.
        if final and not (canonical or self._depends):
            return False
        tokens = _tokens(found, alias)
        return bool(matches) and all(
            self._run(expanded(one["param"], tokens)) != one["negate"]
            if one["type"] == "exec"
            else super(_Parsed, self)._does_match([one], alias, *state)
            for one in matches
        )


def _lines(path: Path, depth: int = 0) -> Iterator[str]:
    """Yield the lines of a file and of those it includes, which paramiko would leave out, without comments."""
    block = "Host *"
    # Comments and paths may be in any encoding; surrogates give the same bytes back.
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        key, value = _setting(line.strip())
        word = key.lower()
        if word not in _WHOLE_LINE and not word.startswith("#"):
            value = without_comment(value)
        text = f"{key} {value}".strip()
        if word in {"host", "match"}:
            block = text
        if word == "include" and depth < _MAX_HOPS:
            for pattern in shlex.split(value):
                for found in sorted(glob.glob(str(_path(pattern, Path.home() / ".ssh")))):  # noqa: PTH207 - absolute
                    if not Path(found).is_dir():
                        yield from _lines(Path(found), depth + 1)
            yield block  # which goes on
        elif word == "proxycommand" and value[:1] == '"':
            yield f'{key} "{value}"'  # paramiko takes outer quotes away; these are the shell's
        else:
            yield text


def _setting(line: str) -> tuple[str, str]:
    """Split a line at its first blank or `=`."""
    key = re.split(r"[\s=]", line, maxsplit=1)[0]
    return key, re.sub(r"^\s*=?\s*", "", line[len(key) :])


def _path(text: str, folder: Path = Path()) -> Path:
    return folder / Path(text).expanduser()


def _canonical(name: str, found: Mapping[str, Any]) -> str:
    """Return the full name of a host, by the first of CanonicalDomains where it is known.

    Raises:
        ValueError: There is none, and the name may not be used as it is.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return name
    if name.endswith(".") or name.count(".") > int(found.get("canonicalizemaxdots", 1)):
        return name
    for domain in found.get("canonicaldomains", "").split():
        with contextlib.suppress(OSError, UnicodeError):
            socket.getaddrinfo(f"{name}.{domain}", None)
            return f"{name}.{domain}"
    if str(found.get("canonicalizefallbacklocal", "yes")).lower() == "no":
        raise ValueError(f"{name} is in none of the CanonicalDomains")
    return name


def _refuse_unsupported(found: Mapping[str, Any], *, with_known_hosts: bool) -> None:
    """Refuse what would change whom we trust, and is not supported here.

    Raises:
        InputError: There is such an option.
    """
    names = ["CanonicalizePermittedCNAMEs"] + ([] if with_known_hosts else ["KnownHostsCommand"])
    for name in names:
        if str(found.get(name.lower(), "none")).lower() != "none":
            raise InputError(
                f"{name} in the SSH configuration is not supported here",
                hint="write the host's keys to a file and pass it with --known-hosts FILE, "
                "or pass another configuration with --ssh-config FILE",
            )


def _timeout(found: Mapping[str, Any]) -> float:
    text = str(found.get("connecttimeout", "none"))
    return (0.0 if text.lower() == "none" else seconds(text)) or _DEFAULT_TIMEOUT


def _agent(found: Mapping[str, Any], tokens: Mapping[str, str]) -> str:
    """Return the socket of the agent to ask: empty for the one of SSH_AUTH_SOCK, `none` for none at all."""
    text = str(found.get("identityagent", ""))
    if text.lower() == "none":
        return "none"
    if text.startswith("$") and not text.startswith("${"):
        return os.environ.get(text[1:], "") or "none"
    return "" if text in {"", "SSH_AUTH_SOCK"} else str(path_value(text, tokens))


def _certificates(found: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    text = str(found.get("certificatefile", "none"))
    return () if text.lower() == "none" else (path_value(text, tokens),)


def _tokens(found: Mapping[str, Any], alias: str) -> dict[str, str]:
    """Return what `%` and a letter stand for, see TOKENS in ssh_config(5), as far as the configuration is known."""
    here, me = socket.gethostname(), state.user_name()
    host = expanded(found.get("hostname", alias), {"h": alias})
    port, user = str(found.get("port", _DEFAULT_PORT)), str(found.get("user", me))
    jump, key = str(found.get("proxyjump") or ""), found.get("hostkeyalias", alias)
    whole = hashlib.sha1(f"{here}{host}{port}{user}{jump}".encode(), usedforsecurity=False).hexdigest()
    there = {"C": whole, "h": host, "j": jump, "k": key, "n": alias, "p": port, "r": user}
    return there | {"d": str(Path.home()), "i": str(os.getuid()), "L": here.partition(".")[0], "l": here, "u": me}


def _proxy(found: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the jump hosts and the command to connect with: of ProxyJump and ProxyCommand the first one wins."""
    jumps, command = (str(found.get(key) or "none") for key in ("proxyjump", "proxycommand"))
    first = next((key for key in found if key in {"proxyjump", "proxycommand"}), "")
    if jumps.lower() != "none" and first == "proxyjump":
        return [part.strip() for part in expanded(jumps, tokens).split(",")], ""
    return [], expanded(command, tokens) if command.lower() != "none" else ""


def _known_hosts(found: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    words = shlex.split(" ".join(found.get(key, files) for key, files in _KNOWN_HOSTS.items()))
    return tuple(path_value(word, tokens) for word in words if word.lower() != "none")


def _identities(found: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    if "identityfile" in found:
        return tuple(path_value(text, tokens) for text in found["identityfile"] if text.lower() != "none")
    defaults = (Path.home() / ".ssh" / name for name in _DEFAULT_KEYS)
    return tuple(path for path in defaults if path.exists())


def _jump(text: str) -> Address:
    return parse_address(text.removeprefix("ssh://").rstrip("/"))


def in_shell(command: str) -> list[str]:
    """Return how `ssh` runs a command of its configuration."""
    return [os.environ.get("SHELL") or "/bin/sh", "-c", command]
