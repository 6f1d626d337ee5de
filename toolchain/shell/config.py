"""The route to a device: the settings of ~/.ssh/config for it and for every jump host before it."""

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

_TIME = re.compile(r"(?i:([0-9]{1,9})([smhdw]?))")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")

_DEFAULT_TIMEOUT = 10.0
_DEFAULT_PORT = 22
_MAX_HOPS = 8
_EXEC_S = 60.0  # without a limit, a command of `Match exec` that hangs would block the farm's other devices
_KNOWN_HOSTS = {
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_PROXIES = {"proxycommand", "proxyjump"}
# Options whose value is a command, up to the end of the line, including `#`.
_WHOLE_LINE = {"proxycommand", "localcommand", "remotecommand", "knownhostscommand"}
_CRITERIA = frozenset({"all", "canonical", "exec", "final", "host", "localuser", "originalhost", "user"})


def without_comment(value: str) -> str:
    """Return a value without its comment: a word that begins with `#`, outside of quotes."""
    quote = ""
    for index, letter in enumerate(value):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and (index == 0 or value[index - 1].isspace()):
            return value[:index].rstrip()
    return value


def seconds(text: str) -> float:
    """Read a time such as `10`, `1m` or `1h30m`, or raise a ValueError."""
    matches = _TIME.findall(text)
    if not matches or "".join(number + unit for number, unit in matches) != text:
        raise ValueError(f"{text!r} is not a valid time: write seconds, or for example 1m30s")
    return float(sum(int(number) * _UNITS[unit.lower()] for number, unit in matches))


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace each `%` and a letter, or raise a ValueError if it has no meaning here."""

    def meaning(token: re.Match[str]) -> str:
        if token[1] not in {"%", *tokens}:
            raise ValueError(f"{text!r} has {token[0]}, which is not a valid token there")
        return tokens.get(token[1], "%")

    return re.sub("%(.?)", meaning, text)


def as_path(text: str, tokens: Mapping[str, str]) -> Path:
    """Parse a file name with tokens, environment variables as `${HOME}`, and `~`, or raise a ValueError."""

    def value(variable: re.Match[str]) -> str:
        if variable[1] not in os.environ:
            raise ValueError(f"{text!r} has {variable[0]}, and this variable is not set")
        return os.environ[variable[1]]

    return Path(_VARIABLE.sub(value, expand(text, tokens))).expanduser()


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
        """`user@host:port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"

    @property
    def key_name(self) -> str:
        """The name of this server's key in known_hosts files."""
        if self.key_alias:
            return self.key_alias.lower()
        host = self.host.lower()
        return host if self.port == _DEFAULT_PORT else f"[{host}]:{self.port}"


class Config:
    """The SSH client configuration, which is read once per connection."""

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
        """Return the jump hosts in order, and the device itself last."""
        if depth > _MAX_HOPS:
            raise InputError(f"ProxyJump of {address.host} refers back to itself")
        try:
            settings = self._lookup(address)
            tokens = _tokens(settings, address.host)
            command = ""
            if jumps is None:
                jumps, command = _proxy(settings, tokens)
            # As in OpenSSH, the rest of the list replaces the last jump's own ProxyJump, unless the list ends there.
            before: tuple[Hop, ...] = ()
            if jumps:
                last = parse_address(jumps[-1].removeprefix("ssh://").rstrip("/"))
                before = self.route(last, jumps[:-1] or None, depth + 1)
            hop = self._hop(address.host, settings, tokens)
            via = before[-1].name if before else ""
            return (*before, replace(hop, proxy_command=command, jumps=tuple(jumps), via=via))
        except paramiko.ConfigParseError as fault:
            raise self._unreadable(fault) from fault
        except (KeyError, OSError, ValueError, paramiko.SSHException) as fault:
            raise InputError(f"the SSH configuration is not valid for {address.host}: {fault}") from fault

    def _lookup(self, address: Address) -> dict[str, Any]:
        # The first value wins, and as with `ssh` those of the command line come first.
        options = [f"User {address.user}"] if address.user else []
        options += [f"Port {address.port}"] if address.port else []
        settings: dict[str, Any] = _Parsed([*options, *self._lines], self._run).lookup(address.host)
        return settings

    def _run(self, command: str) -> bool:
        argv = shell_command(command)
        return process.run(argv, timeout=_EXEC_S, check=False, error=InputError).returncode == 0

    def _hop(self, alias: str, settings: Mapping[str, Any], tokens: Mapping[str, str]) -> Hop:
        options = self.options
        _refuse_unsupported(settings, with_known_hosts=bool(options.known_hosts))
        if not tokens["r"]:
            raise InputError(
                f"no user is named for {alias}, and the user of this process (uid {os.getuid()}) has no name",
                hint=f"write USER@{alias}",
            )
        known_hosts = shlex.split(" ".join(settings.get(key, default) for key, default in _KNOWN_HOSTS.items()))
        timeout = str(settings.get("connecttimeout", "none"))
        certificate = str(settings.get("certificatefile", "none"))
        return Hop(
            alias=alias,
            host=tokens["h"],
            port=int(tokens["p"]),
            user=tokens["r"],
            key_alias=settings.get("hostkeyalias"),
            known_hosts=options.known_hosts
            or tuple(as_path(name, tokens) for name in known_hosts if name.lower() != "none"),
            identities=_identities(settings, tokens),
            identities_only=str(settings.get("identitiesonly", "no")).lower() == "yes",
            timeout=options.connect_timeout
            or (0.0 if timeout.lower() == "none" else seconds(timeout))
            or _DEFAULT_TIMEOUT,
            config_file=options.config_file,
            agent=_agent(settings, tokens),
            certificates=() if certificate.lower() == "none" else (as_path(certificate, tokens),),
        )


class _Parsed(paramiko.SSHConfig):  # type: ignore[misc]
    """paramiko's parser, with the criteria and commands of `Match` as in OpenSSH."""

    TOKENS_BY_CONFIG_KEY: ClassVar[dict[str, list[str]]] = {}  # paramiko would expand tokens too early

    def __init__(self, lines: Sequence[str], run: Callable[[str], bool]) -> None:
        super().__init__()
        self._run = run
        self.parse(lines)
        criteria = [criterion for block in self._config for criterion in block.get("matches", ())]
        for criterion in criteria:
            criterion["type"] = criterion["type"].lower()
            if criterion["type"] not in _CRITERIA:
                raise InputError(f"`Match {criterion['type']}` in the SSH configuration is not supported here")
        self._depends = any(criterion["type"] == "final" for criterion in criteria)

    def lookup(self, alias: str) -> dict[str, Any]:
        """Return the settings of a host; paramiko alone would look up the alias even where HostName is another name."""
        settings = self._lookup(hostname=alias)
        name = expand(settings.get("hostname", alias), {"h": alias})
        mode = str(settings.get("canonicalizehostname", "no")).lower()
        if mode in {"yes", "always"}:
            is_direct = not any(str(settings.get(key) or "none").lower() != "none" for key in _PROXIES)
            canonical = _canonical(name, settings) if is_direct or mode == "always" else name
            settings["hostname"] = canonical
            options: dict[str, Any] = self._lookup(canonical, settings, canonical=True, final=True)
        else:
            settings.setdefault("hostname", alias)
            options = self._lookup(alias, settings, canonical=False, final=True)
        return options

    def _does_match(self, matches: Sequence[dict[str, Any]], alias: str, *state: Any) -> bool:
        """Whether all criteria match; after the first that does not, no command is run."""
        canonical, final, settings = state
        # paramiko always reads a configuration twice, OpenSSH only where something depends on it.
        if final and not (canonical or self._depends):
            return False
        tokens = _tokens(settings, alias)
        return bool(matches) and all(
            self._run(expand(criterion["param"], tokens)) != criterion["negate"]
            if criterion["type"] == "exec"
            else super(_Parsed, self)._does_match([criterion], alias, *state)
            for criterion in matches
        )


def _lines(path: Path, depth: int = 0) -> Iterator[str]:
    """Yield the lines of a file and of its `Include` files, which paramiko ignores, without comments."""
    block = "Host *"
    # Comments and paths may be in any encoding; surrogates give the same bytes back.
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # The keyword ends at the first blank or `=`.
        key = re.split(r"[\s=]", line.strip(), maxsplit=1)[0]
        keyword, value = key.lower(), re.sub(r"^\s*=?\s*", "", line.strip()[len(key) :])
        if keyword not in _WHOLE_LINE and not keyword.startswith("#"):
            value = without_comment(value)
        text = f"{key} {value}".strip()
        if keyword in {"host", "match"}:
            block = text
        if keyword == "include" and depth < _MAX_HOPS:
            for pattern in shlex.split(value):
                paths = Path.home() / ".ssh" / Path(pattern).expanduser()
                for included in sorted(glob.glob(str(paths))):  # noqa: PTH207 - absolute
                    if not Path(included).is_dir():
                        yield from _lines(Path(included), depth + 1)
            yield block  # the block continues after the included file
        elif keyword == "proxycommand" and value[:1] == '"':
            yield f'{key} "{value}"'  # paramiko removes outer quotes; these are for the shell
        else:
            yield text


def _canonical(name: str, settings: Mapping[str, Any]) -> str:
    """Return the full name of a host, with the first of CanonicalDomains that resolves."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return name
    if name.endswith(".") or name.count(".") > int(settings.get("canonicalizemaxdots", 1)):
        return name
    for domain in settings.get("canonicaldomains", "").split():
        with contextlib.suppress(OSError, UnicodeError):
            socket.getaddrinfo(f"{name}.{domain}", None)
            return f"{name}.{domain}"
    if str(settings.get("canonicalizefallbacklocal", "yes")).lower() == "no":
        raise ValueError(f"{name} is in none of the CanonicalDomains")
    return name


def _refuse_unsupported(settings: Mapping[str, Any], *, with_known_hosts: bool) -> None:
    """Refuse unsupported settings that would change which host keys are trusted."""
    names = ["CanonicalizePermittedCNAMEs"] + ([] if with_known_hosts else ["KnownHostsCommand"])
    for name in names:
        if str(settings.get(name.lower(), "none")).lower() != "none":
            raise InputError(
                f"{name} in the SSH configuration is not supported here",
                hint="write the host's keys to a file and pass it with --known-hosts FILE, "
                "or pass another configuration with --ssh-config FILE",
            )


def _agent(settings: Mapping[str, Any], tokens: Mapping[str, str]) -> str:
    """Return the agent's socket: empty for SSH_AUTH_SOCK, `none` for no agent."""
    text = str(settings.get("identityagent", ""))
    if text.lower() == "none":
        return "none"
    if text.startswith("$") and not text.startswith("${"):
        return os.environ.get(text[1:], "") or "none"
    return "" if text in {"", "SSH_AUTH_SOCK"} else str(as_path(text, tokens))


def _tokens(settings: Mapping[str, Any], alias: str) -> dict[str, str]:
    """Return the values of the tokens, `%` and a letter (TOKENS in ssh_config(5)), by the settings read so far."""
    here, me = socket.gethostname(), state.user_name()
    host = expand(settings.get("hostname", alias), {"h": alias})
    port, user = str(settings.get("port", _DEFAULT_PORT)), str(settings.get("user", me))
    jump, key = str(settings.get("proxyjump") or ""), settings.get("hostkeyalias", alias)
    digest = hashlib.sha1(f"{here}{host}{port}{user}{jump}".encode(), usedforsecurity=False).hexdigest()
    target = {"C": digest, "h": host, "j": jump, "k": key, "n": alias, "p": port, "r": user}
    return target | {"d": str(Path.home()), "i": str(os.getuid()), "L": here.partition(".")[0], "l": here, "u": me}


def _proxy(settings: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the jump hosts, or the command to connect with: the first of ProxyJump and ProxyCommand wins."""
    jumps, command = (str(settings.get(key) or "none") for key in ("proxyjump", "proxycommand"))
    first = next((key for key in settings if key in {"proxyjump", "proxycommand"}), "")
    if jumps.lower() != "none" and first == "proxyjump":
        return [jump.strip() for jump in expand(jumps, tokens).split(",")], ""
    return [], expand(command, tokens) if command.lower() != "none" else ""


def _identities(settings: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    if "identityfile" in settings:
        return tuple(as_path(text, tokens) for text in settings["identityfile"] if text.lower() != "none")
    defaults = (Path.home() / ".ssh" / name for name in _DEFAULT_KEYS)
    return tuple(path for path in defaults if path.exists())


def shell_command(command: str) -> list[str]:
    """Return the argv with which `ssh` runs a command of its configuration."""
    return [os.environ.get("SHELL") or "/bin/sh", "-c", command]
