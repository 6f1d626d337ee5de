"""SshShell: a device over SSH, with strict host keys, ~/.ssh/config, jump hosts and real byte counts."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import getpass
import glob
import hashlib
import hmac
import logging
import os
import re
import select
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

import paramiko

from toolchain import process
from toolchain.errors import DeviceError, InputError, VerificationError
from toolchain.shell import (
    CHUNK,
    CLOSE_GRACE,
    HELD,
    Address,
    LineBuffer,
    SshOptions,
    check_source,
    command_failed,
    parse_address,
    reading,
    replacing,
)

# Without a handler Python prints paramiko's stack traces to stderr; only the command line prints.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_DEFAULT_TIMEOUT = 10.0
_DEFAULT_PORT = 22
_MAX_HOPS = 8
_GREETING_KEPT = 200
_STDERR_KEPT = 1 << 14
_GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_USER_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
# GCM needs no separate MAC, which makes it about twice as fast here; CTR serves dropbear. CBC and 3DES are left out.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr", "aes192-ctr")
# What a device may send before it must wait for us: enough for a fast link with a long delay.
_WINDOW = 1 << 24
# OpenSSH's own limit for AES, 2**32 blocks (RFC 4344); paramiko's 512 MB would stall every large upload.
_REKEY_BYTES = 1 << 36
_PASSWORD_METHODS = frozenset({"password", "keyboard-interactive"})
_SHELL_SYNTAX = frozenset("|&;<>()$`\n*?!")

# A closed channel does not end a command by itself. Nobody writes to the guard's input, so its `read` ends when
# the channel does, and the guard ends the script's process group, which the shell that runs this leads.
_GUARDED = """
exec 3<&0 </dev/null
{ trap "" TERM; read -r line <&3; kill -TERM -$$; sleep 1; kill -KILL -$$; } >/dev/null 2>&1 &
guard=$!
/bin/sh -c "$1" 3<&-
code=$?
exec 2>/dev/null
kill -KILL $guard
exit $code
"""
# OpenSSH gives each command a session of its own; dropbear does not, there setsid does.
_LEAD = "kill -0 -$$ 2>/dev/null || ! command -v setsid >/dev/null || exec setsid /bin/sh -c {0}; exec /bin/sh -c {0}"


def _command(wrapper: str, script: str) -> str:
    """Return the command line that runs a script under one of the wrappers, whatever the login shell is."""
    inner = f"set -- {shlex.quote(script)}\n{wrapper}"
    return f"exec /bin/sh -c {shlex.quote(_LEAD.format(shlex.quote(inner)))}"


# --- The wire ---


class _Wire:
    """A socket that counts its bytes, and gives up on a peer that takes none."""

    def __init__(self, sock: Any, stall: float) -> None:
        self._sock = sock
        self._stall = stall
        self._blocked_since: float | None = None
        self._ahead = b""
        self.sent = 0
        self.received = 0
        self.greeting = b""

    def send(self, data: bytes) -> int:
        """Send some of the data; paramiko would retry for ever what times out here."""
        try:
            count = int(self._sock.send(data))
        except TimeoutError:
            self._blocked_since = self._blocked_since or time.monotonic()
            if time.monotonic() - self._blocked_since > self._stall:
                raise ConnectionAbortedError("the peer takes no data") from None
            raise
        self._blocked_since = None
        self.sent += count
        return count

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes; paramiko asks for a few at a time, the socket is asked for many."""
        if not self._ahead:
            self._ahead = self._sock.recv(max(size, 1 << 16))
            self.received += len(self._ahead)
            self.greeting = (self.greeting + self._ahead)[:_GREETING_KEPT]
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def settimeout(self, seconds: float | None) -> None:
        """Limit each call to `seconds`."""
        self._sock.settimeout(seconds)

    def close(self) -> None:
        """Close the socket, and wake up whoever waits for it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    @property
    def _closed(self) -> bool:
        return bool(self._sock._closed)  # noqa: SLF001 - paramiko asks its sockets this way


class _Pipe:
    """A ProxyCommand in the shape of a socket."""

    def __init__(self, words: Sequence[str]) -> None:
        try:
            self._process = process.spawn(words)
        except OSError as fault:
            raise DeviceError(f"ProxyCommand {words[0]}: {fault.strerror}", details=shlex.join(words)) from fault
        self._stdin = cast("IO[str]", self._process.stdin).fileno()
        self._stdout = cast("IO[str]", self._process.stdout).fileno()
        self._timeout: float | None = None
        self._closed = False

    def send(self, data: bytes) -> int:
        _, ready, _ = select.select([], [self._stdin], [], self._timeout)
        if not ready:
            raise TimeoutError
        return os.write(self._stdin, data[: select.PIPE_BUF])

    def recv(self, size: int) -> bytes:
        ready, _, _ = select.select([self._stdout], [], [], self._timeout)
        if not ready:
            raise TimeoutError
        return os.read(self._stdout, size)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def shutdown(self, how: int) -> None:
        """End the command; the direction does not matter to it."""
        del how
        self._closed = True
        process.kill_group(self._process)

    def close(self) -> None:
        self.shutdown(socket.SHUT_RDWR)


# --- The way to a device ---


@dataclass(frozen=True)
class _Hop:
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


class _Config:
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

    def route(self, address: Address, jumps: Sequence[str] | None = None, depth: int = 0) -> tuple[_Hop, ...]:
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

    def _hop(self, address: Address, found: dict[str, Any], jumps: tuple[str, ...], via: str) -> _Hop:
        options = self.options
        try:
            port = address.port or int(found.get("port", _DEFAULT_PORT))
            timeout = options.connect_timeout or float(found.get("connecttimeout", _DEFAULT_TIMEOUT))
            user = address.user or found.get("user") or getpass.getuser()
        except (KeyError, OSError, ValueError) as fault:
            raise InputError(f"user, port or time limit of {address.host} is wrong: {fault}") from fault
        return _Hop(
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


# --- Host keys ---


@dataclass(frozen=True)
class _KnownKey:
    """One line of a known_hosts file."""

    marker: str
    patterns: str
    kind: str
    blob: bytes
    place: tuple[Path, int]


def _known_keys(path: Path) -> Iterator[_KnownKey]:
    """Yield the usable lines of a known_hosts file; one that does not exist holds no keys."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as fault:
        raise InputError(f"cannot read the known host keys {path}: {fault.strerror}") from fault
    for number, line in enumerate(lines, 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) >= 3 and not words[0].startswith("#"):  # noqa: PLR2004 - names, key type, key
            with contextlib.suppress(binascii.Error):
                yield _KnownKey(marker, words[0], words[1], base64.b64decode(words[2]), (path, number))


def _matches(patterns: str, name: str) -> bool:
    """Tell whether a known_hosts name field covers a host: names, wildcards, negations or one hash."""
    matched = False
    for pattern in patterns.split(","):
        if pattern.startswith("|1|"):
            matched |= _hash_matches(pattern, name)
            continue
        wild = re.escape(pattern.removeprefix("!").lower()).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(wild, name):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _hash_matches(pattern: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


class _HostKeyPolicy:
    """Accepts the keys that known_hosts files hold for a server, and no others; it never adds one."""

    def __init__(self, hop: _Hop) -> None:
        self._hop = hop
        known = [key for path in hop.known_hosts for key in _known_keys(path)]
        mine = [key for key in known if _matches(key.patterns, hop.key_name)]
        self._trusted = [key for key in mine if not key.marker]
        self._revoked = [key for key in mine if key.marker == "@revoked"]

    def order(self, offered: Sequence[str]) -> list[str]:
        """Return our key types with the known ones first, so that the server proves itself with one of those."""
        kinds = {key.kind for key in self._trusted}
        return sorted(offered, key=lambda kind: ("ssh-rsa" if kind.startswith("rsa-") else kind) not in kinds)

    def verify(self, key: Any) -> None:
        """Raise a VerificationError unless the key is known and not revoked."""
        blob = key.asbytes()
        what = f"{self._hop.key_name} has the {key.get_name()} host key {key.fingerprint}"
        revoked = [known for known in self._revoked if known.blob == blob]
        if revoked:
            raise VerificationError(
                f"{what}, which is revoked",
                details=f"revoked at {_places(revoked)}",
                hint="do not use this device; give it a new host key",
            )
        if any(known.blob == blob for known in self._trusted):
            return
        commands = self._commands(key)
        if not self._trusted:
            raise VerificationError(
                f"{what}, which is not known here",
                details=f"looked in {', '.join(str(path) for path in self._hop.known_hosts)}",
                hint=f"compare it with the one the device itself shows; to trust it:\n{commands}",
            )
        raise VerificationError(
            f"{what}, which is not the key known for it: the device was set up anew, or somebody is in between",
            details=f"the known key stands at {_places(self._trusted)}",
            hint=f"compare it with the one the device itself shows; to replace the known one:\n{commands}",
        )

    def _commands(self, key: Any) -> str:
        name = shlex.quote(self._hop.key_name)
        files = dict.fromkeys(known.place[0] for known in self._trusted)
        remove = [f"ssh-keygen -f {_shown(path)} -R {name}" for path in files]
        target = self._hop.known_hosts[0] if self._hop.known_hosts else Path.home() / ".ssh" / "known_hosts"
        indirect = self._hop.jumps or self._hop.proxy_command
        return "\n".join([*remove, self._ask(target) if indirect else self._scan(key, target)])

    def _scan(self, key: Any, target: Path) -> str:
        """Return the command that fetches the key and trusts it."""
        hop = self._hop
        kind = key.get_name().removeprefix("ssh-").partition("-")[0]
        scan = f"ssh-keyscan -p {hop.port} -t {kind} {shlex.quote(hop.host)}"
        if hop.key_alias:
            scan += f" | sed {shlex.quote(f's/^[^ ]*/{hop.key_name}/')}"
        folder = "" if target.parent.exists() else f"mkdir -p -m 700 {_shown(target.parent)} && "
        return f"{folder}{scan} >> {_shown(target)}"

    def _ask(self, target: Path) -> str:
        """Return the ssh command that asks whether to trust the key: ssh-keyscan cannot go through other hosts."""
        hop = self._hop
        words = ["ssh", *(["-F", str(hop.config_file)] if hop.config_file else [])]
        words += ["-o", "StrictHostKeyChecking=ask", "-o", f'UserKnownHostsFile="{target}"']
        words += ["-J", ",".join(hop.jumps)] if hop.jumps else []
        return shlex.join([*words, "-p", str(hop.port), f"{hop.user}@{hop.alias}", "true"])


def _shown(path: Path) -> str:
    """Return a path as one would type it."""
    home = Path.home()
    return f"~/{shlex.quote(str(path.relative_to(home)))}" if path.is_relative_to(home) else shlex.quote(str(path))


def _places(keys: Sequence[_KnownKey]) -> str:
    return ", ".join(f"{path}:{line}" for path, line in (key.place for key in keys))


# --- Logging in ---


class _Login:
    """Tries what there is to prove who we are, and remembers what came of it."""

    def __init__(self, transport: Any, hop: _Hop, options: SshOptions) -> None:
        self._transport = transport
        self._hop = hop
        self._options = options
        self._tried: list[str] = []
        self._locked: list[Path] = []

    def run(self) -> None:
        """Log in.

        Raises:
            DeviceError: The server accepts nothing of it.
        """
        # Asking for nothing tells what the server accepts, and is enough for a board without a password.
        methods = self._methods()
        if methods is None or ("publickey" in methods and self._with_keys()):
            return
        password = self._options.password
        if password is not None and methods & _PASSWORD_METHODS and self._transport.is_active():
            call = functools.partial(self._transport.auth_password, self._hop.user, password)
            if self._attempt("password", call):
                return
        raise self._refused(methods)

    def _methods(self) -> set[str] | None:
        """Return the methods the server offers, or None if it lets us in without any."""
        try:
            self._transport.auth_none(self._hop.user)
        except paramiko.BadAuthenticationType as fault:
            return set(fault.allowed_types)
        return None

    def _with_keys(self) -> bool:
        with contextlib.ExitStack() as stack:
            agent = stack.enter_context(contextlib.closing(paramiko.Agent())) if self._options.agent else None
            for label, key in self._keys(agent.get_keys() if agent else ()):
                call = functools.partial(self._transport.auth_publickey, self._hop.user, key)
                if self._attempt(label, call):
                    return True
                if not self._transport.is_active():
                    return False
        return False

    def _keys(self, held: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Yield keys in the order they are tried: the one asked for, the agent's, the configured ones."""
        chosen = self._options.identity
        if chosen:
            yield from self._from_files([chosen])
        allowed = {_public(path) for path in [*([chosen] if chosen else []), *self._hop.identities]}
        for key in held:
            if not self._hop.identities_only or key.asbytes() in allowed:
                yield f"agent key {key.fingerprint}", key
        yield from self._from_files(self._hop.identities)

    def _from_files(self, paths: Sequence[Path]) -> Iterator[tuple[str, Any]]:
        for path in paths:
            try:
                yield f"key file {path}", paramiko.PKey.from_path(path)
            except (TypeError, paramiko.PasswordRequiredException):
                # The crypto library reports a missing passphrase as a TypeError.
                self._locked.append(path)
                self._tried.append(f"key file {path}: it is encrypted and the passphrase is not known")
            except OSError as fault:
                self._tried.append(f"key file {path}: {fault.strerror}")
            except (ValueError, paramiko.SSHException, paramiko.UnknownKeyType) as fault:
                self._tried.append(f"key file {path}: it is no private key ({fault})")

    def _attempt(self, label: str, call: Callable[[], Sequence[str]]) -> bool:
        try:
            more = call()
        except paramiko.AuthenticationException as fault:
            alive = self._transport.is_active()
            self._tried.append(f"{label}: {'refused' if alive else 'the server hung up'} ({fault})")
            return False
        if more:
            self._tried.append(f"{label}: accepted, but the server wants {' or '.join(more)} as well")
        return not more

    def _refused(self, methods: set[str]) -> DeviceError:
        hop = self._hop
        tried = "\n".join(self._tried) or "nothing: there is no agent key, no key file and no password"
        if self._locked:
            hint = f"ssh-add {_shown(self._locked[0])}"
        elif self._options.password is not None and methods & _PASSWORD_METHODS:
            hint = f"check the password of {hop.user} on {hop.host}"
        else:
            jump = f"-o ProxyJump={','.join(hop.jumps)} " if hop.jumps else ""
            hint = f"ssh-copy-id {jump}-p {hop.port} {shlex.quote(f'{hop.user}@{hop.host}')}"
        accepts = ", ".join(sorted(methods)) or "nothing"
        return DeviceError(
            f"{hop.name} lets nobody in with what was tried",
            details=f"the server accepts: {accepts}\ntried:\n{tried}",
            hint=hint,
        )


def _public(path: Path) -> bytes:
    """Return the public half that lies beside a private key, or nothing."""
    try:
        return base64.b64decode(Path(f"{path}.pub").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return b""


# --- Connecting ---


def _tcp(hop: _Hop, keepalive: int) -> socket.socket:
    try:
        sock = socket.create_connection((hop.host, hop.port), timeout=hop.timeout)
    except (socket.gaierror, UnicodeError) as fault:
        raise DeviceError(
            f"the name {hop.host} cannot be resolved", details=str(fault), hint="check the name, or use an IP address"
        ) from fault
    except TimeoutError:
        raise DeviceError(
            f"{hop.name} does not answer within {hop.timeout:g} s", hint=f"is it switched on? try: ping {hop.host}"
        ) from None
    except OSError as fault:
        raise DeviceError(
            f"{hop.name} cannot be reached: {fault.strerror}",
            details=str(fault),
            hint="check the address and the port, and that an SSH server runs there",
        ) from fault
    # A command is several small packets, which Nagle's algorithm would hold back for 40 ms each.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if keepalive and hasattr(socket, "TCP_USER_TIMEOUT"):
        # paramiko never looks for the answer to its signs of life; the kernel does.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000 * keepalive)
    return sock


def _reach(hop: _Hop, previous: Any | None, keepalive: int) -> Any:
    """Return something to send bytes to a server with: through the previous one, a command, or directly."""
    if previous is not None:
        try:
            return previous.open_channel("direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=hop.timeout)
        except (paramiko.SSHException, EOFError, OSError) as fault:
            raise DeviceError(
                f"{hop.via} cannot reach {hop.name}",
                details=getattr(fault, "text", "") or _words(fault),
                hint="check the address as seen from the jump host, and that it allows TCP forwarding",
            ) from fault
    if hop.proxy_command is None:
        return _tcp(hop, keepalive)
    if _SHELL_SYNTAX & set(hop.proxy_command):
        raise InputError(
            f"the ProxyCommand of {hop.host} needs a shell", details=hop.proxy_command, hint="use ProxyJump instead"
        )
    return _Pipe(shlex.split(hop.proxy_command))


def _exchange_keys(transport: Any, wire: _Wire, hop: _Hop) -> None:
    """Agree on keys and check the server's; no byte that is ours has been sent when this returns or raises."""
    policy = _HostKeyPolicy(hop)
    security = transport.get_security_options()
    security.ciphers = _CIPHERS
    security.key_types = policy.order(security.key_types)
    transport.banner_timeout = transport.handshake_timeout = hop.timeout
    done = threading.Event()
    started = time.monotonic()
    transport.start_client(event=done)
    finished = done.wait(hop.timeout + 1)
    if not finished or not transport.is_active():
        late = time.monotonic() - started >= hop.timeout
        raise _no_ssh(transport.get_exception() or EOFError(), wire, hop, late=late)
    policy.verify(transport.get_remote_server_key())


def _no_ssh(fault: Exception, wire: _Wire, hop: _Hop, *, late: bool) -> DeviceError:
    """Return the error for a server that did not get as far as to show its key."""
    if wire.greeting and not wire.greeting.startswith(b"SSH-"):
        said = wire.greeting.decode(errors="replace").splitlines()[0]
        return DeviceError(f"{hop.name} is no SSH server", details=f"it says: {said!r}", hint="check the port")
    if late:
        return DeviceError(
            f"{hop.name} accepts connections but does not answer within {hop.timeout:g} s",
            hint="is it an SSH server, and not overloaded? restart sshd on the device, or check the port",
        )
    if not wire.greeting:
        return DeviceError(
            f"{hop.name} hangs up before it greets",
            details=_words(fault),
            hint="is it an SSH server? if it is, it may have too many connections (MaxStartups) or block this host",
        )
    return DeviceError(
        f"{hop.name} and this host agree on no keys", details=_words(fault), hint="update the device's SSH server"
    )


def _words(fault: BaseException) -> str:
    return str(fault) or type(fault).__name__


class SshShell:
    """A Shell over SSH.

    Files go through `cat` on the device, not through SFTP: boards with dropbear often have no SFTP server. SSH's
    window keeps many packets on their way, so nothing is lost by it.

    Args:
        address: The device, or its alias in the SSH configuration.
        options: Files, credentials and time limits.

    Raises:
        InputError: The SSH configuration is wrong.
        VerificationError: A host key on the way is unknown, changed or revoked.
        DeviceError: A server on the way cannot be reached or refuses us.
    """

    def __init__(self, address: Address, options: SshOptions) -> None:
        self._options = options
        if options.identity and not options.identity.is_file():
            raise InputError(f"there is no key file {options.identity}")
        self._wires: list[_Wire] = []
        self._transport: Any = None
        with contextlib.ExitStack() as stack:
            *jumps, device = _Config(options).route(address)
            for hop in jumps:
                # The password is the device's; a jump host must not see it.
                self._connect(hop, stack, replace(options, password=None))
            self._connect(device, stack, options)
            self._resources = stack.pop_all()
        self.name = device.name

    def _connect(self, hop: _Hop, stack: contextlib.ExitStack, options: SshOptions) -> None:
        wire = _Wire(_reach(hop, self._transport, options.keepalive), options.stall_timeout)
        stack.callback(wire.close)
        transport = paramiko.Transport(wire, default_window_size=_WINDOW)
        stack.callback(transport.close)
        transport.packetizer.REKEY_BYTES = _REKEY_BYTES
        _exchange_keys(transport, wire, hop)
        try:
            _Login(transport, hop, options).run()
        except (paramiko.SSHException, EOFError, OSError) as fault:
            raise DeviceError(f"{hop.name} hung up during the login", details=_words(fault)) from fault
        transport.set_keepalive(options.keepalive)
        self._wires.append(wire)
        self._transport = transport

    @property
    def bytes_sent(self) -> int:
        """Bytes written to the socket so far."""
        return self._wires[0].sent

    @property
    def bytes_received(self) -> int:
        """Bytes read from the socket so far."""
        return self._wires[0].received

    def run(self, script: str, *, timeout: float = 60.0, check: bool = True) -> process.Result:
        """See `Shell.run`; a script that a signal ended has the code 128 + signal, as in a shell."""
        with self._channel(_command(_GUARDED, script), timeout) as channel:
            result = self._finish(channel, timeout, f"a command on {self.name}", script)
        if check and result.returncode != 0:
            raise command_failed(self.name, script, result)
        return result

    def push(
        self, source: Path, target: str, *, offset: int = 0, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Shell.push`."""
        left = check_source(source, offset) - offset
        script = f"exec cat >> {shlex.quote(target)}"
        stall = self._options.stall_timeout
        with self._channel(f"exec /bin/sh -c {shlex.quote(script)}", stall) as channel:
            with reading(source) as stream:
                stream.seek(offset)
                left -= self._feed(channel, stream, progress)
            channel.shutdown_write()
            result = self._finish(channel, stall, f"{self.name}, writing {target},", script)
        if result.returncode != 0:
            raise command_failed(self.name, script, result)
        if left > 0:
            raise DeviceError(f"{self.name} lacks the last {left} bytes of {source}", hint="resume the upload")

    def _feed(self, channel: Any, stream: IO[bytes], progress: Callable[[int], None] | None) -> int:
        """Send a stream until it ends or the device stops reading; return the bytes sent."""
        # One packet holds this much; larger blocks would only be cut, and copied for it.
        step = channel.out_max_packet_size - 64
        sent = reported = 0
        while not channel.exit_status_ready() and (data := stream.read(step)):
            try:
                channel.sendall(data)
            except TimeoutError:
                raise self._stalled() from None
            except (paramiko.SSHException, EOFError, OSError):
                # Either `cat` ended, and its words tell why, or the connection did; `_finish` finds out.
                break
            sent += len(data)
            if progress and sent - reported >= CHUNK:
                progress(stream.tell())
                reported = sent
        if progress and sent > reported:
            progress(stream.tell())
        return sent

    def pull(self, source: str, target: Path) -> None:
        """See `Shell.pull`."""
        script = f"exec cat < {shlex.quote(source)}"
        stall = self._options.stall_timeout
        with (
            replacing(target) as sink,
            self._channel(f"exec /bin/sh -c {shlex.quote(script)}", stall) as channel,
        ):
            for data in self._received(channel):
                sink.write(data)
            result = self._finish(channel, stall, f"{self.name}, reading {source},", script)
            if result.returncode != 0:
                raise command_failed(self.name, script, result)

    def _received(self, channel: Any) -> Iterator[bytes]:
        while True:
            try:
                data = channel.recv(CHUNK)
            except TimeoutError:
                raise self._stalled() from None
            if not data:
                return
            yield data

    def start(self, script: str) -> SshProcess:
        """See `Shell.start`."""
        stack = contextlib.ExitStack()
        channel = stack.enter_context(self._channel(_command(HELD, script), self._options.stall_timeout))
        return SshProcess(self, channel, stack)

    @contextlib.contextmanager
    def _channel(self, command: str, timeout: float) -> Iterator[Any]:
        """Start a command; its channel is closed at the end, whatever happens meanwhile."""
        try:
            channel = self._transport.open_session(timeout=timeout)
        except (paramiko.SSHException, EOFError, OSError) as fault:
            raise self.lost("opening a channel", fault) from fault
        # paramiko waits without limit for the server to accept a command; closing the channel wakes it up.
        alarm = threading.Timer(timeout, channel.close)
        alarm.daemon = True
        try:
            alarm.start()
            channel.exec_command(command)
            alarm.cancel()
            channel.settimeout(self._options.stall_timeout)
            yield channel
        except (paramiko.SSHException, EOFError) as fault:
            raise self.lost("running a command", fault) from fault
        finally:
            alarm.cancel()
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                channel.close()

    def _finish(self, channel: Any, timeout: float, who: str, script: str) -> process.Result:
        """Collect a command's output until it ends; `who` is the subject of the error if it does not in time."""
        deadline = time.monotonic() + timeout
        out, err = bytearray(), bytearray()
        ended = _collect(channel, out, err, deadline)
        if not ended or not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            # The guard ends the command when its input ends. Waiting for that makes the message true, and dropbear
            # would close the next channel if one with a running command were closed before it.
            channel.shutdown_write()
            _collect(channel, out, err, time.monotonic() + CLOSE_GRACE)
            words = process.tail(err.decode(errors="replace"))
            raise DeviceError(
                f"{who} did not finish within {timeout:g} s and was ended",
                details=f"{process.tail(script)}\n{words}".strip(),
            )
        self.check_alive("running a command")
        return process.Result(channel.exit_status, out.decode(errors="replace"), err.decode(errors="replace"))

    def check_alive(self, doing: str) -> None:
        """Raise a DeviceError if the connection is lost."""
        if not self._transport.is_active():
            raise self.lost(doing, self._transport.get_exception() or EOFError())

    def lost(self, doing: str, fault: BaseException) -> DeviceError:
        """Return the error for a connection that failed."""
        # An EOFError is a broken socket, even if paramiko's thread has not noticed it yet.
        broken = isinstance(fault, EOFError) or not self._transport.is_active()
        state = "was lost" if broken else "failed"
        return DeviceError(
            f"the connection to {self.name} {state} while {doing}",
            details=_words(fault),
            hint="check that the device is on and reachable, then run the same command again",
        )

    def _stalled(self) -> DeviceError:
        return DeviceError(
            f"{self.name} moved no data for {self._options.stall_timeout:g} s", hint="check the device and the network"
        )

    def close(self) -> None:
        """See `Shell.close`."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _collect(channel: Any, out: bytearray, err: bytearray, deadline: float) -> bool:
    """Read both outputs to their end; return False if that is not reached in time."""
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while True:
        # The end must be looked for first: what came before it is then in the buffers.
        ended = channel.eof_received or channel.closed
        _drain(channel, out, err)
        if ended:
            return True
        left = deadline - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            return False


def _drain(channel: Any, out: bytearray, err: bytearray) -> None:
    while channel.recv_ready():
        out += channel.recv(CHUNK)
    while channel.recv_stderr_ready():
        err += channel.recv_stderr(CHUNK)


class SshProcess:
    """A RemoteProcess over SSH."""

    def __init__(self, shell: SshShell, channel: Any, resources: contextlib.ExitStack) -> None:
        self._shell = shell
        self._channel = channel
        self._resources = resources
        self._lines = LineBuffer()
        self._words = bytearray()

    @property
    def stderr(self) -> str:
        """The end of what it wrote to standard error so far."""
        while self._channel.recv_stderr_ready():
            self._words += self._channel.recv_stderr(CHUNK)
        del self._words[:-_STDERR_KEPT]
        return self._words.decode(errors="replace")

    def readline(self, timeout: float) -> str:
        """See `RemoteProcess.readline`."""
        deadline = time.monotonic() + timeout
        while (line := self._lines.take()) is None:
            self._channel.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                data = self._channel.recv(CHUNK)
            except TimeoutError:
                message = f"a process on {self._shell.name} wrote no line within {timeout:g} s"
                raise DeviceError(message, details=self.stderr) from None
            if not data:
                self._shell.check_alive("reading from a process")
            self._lines.feed(data)
        return line

    def write(self, text: str) -> None:
        """See `RemoteProcess.write`."""
        try:
            self._channel.settimeout(60.0)
            self._channel.sendall(text.encode())
        except (paramiko.SSHException, EOFError, OSError) as fault:
            self._shell.check_alive("writing to a process")
            message = f"a process on {self._shell.name} reads no more input"
            raise DeviceError(message, details=self.stderr) from fault

    def close(self) -> int | None:
        """See `RemoteProcess.close`."""
        with self._resources, contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            self._channel.shutdown_write()
            deadline = time.monotonic() + CLOSE_GRACE
            _collect(self._channel, bytearray(), self._words, deadline)
            self._channel.status_event.wait(max(0.0, deadline - time.monotonic()))
        code = self._channel.exit_status
        return int(code) if code >= 0 else None
