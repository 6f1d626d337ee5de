"""Connecting to an SSH server and agreeing on keys: sockets, jump hosts, and explained failures."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

import paramiko

from toolchain import process
from toolchain.errors import UnreachableError
from toolchain.shell.address import SshOptions
from toolchain.shell.bounds import STDERR_KEPT
from toolchain.shell.config import Hop, shell_command
from toolchain.shell.host_keys import HostKeyPolicy
from toolchain.shell.protocol import fault_text

BROKEN = (paramiko.SSHException, EOFError, OSError)  # paramiko's exceptions for a broken connection


class DroppedError(UnreachableError):
    """A server closed the connection before its greeting; with too many connections it does so for a moment."""


# By kind of algorithm without a match: the server's algorithms, and ours.
Mismatches = Mapping[str, tuple[Sequence[str], Sequence[str]]]
_SETTINGS = {
    "key exchange": "`KexAlgorithms`",
    "host key": "`HostKeyAlgorithms`",
    "cipher": "`Ciphers`",
    "MAC": "`MACs`",
}
_GREETING_KEPT = 200
_TOO_MANY = b"Exceeded MaxStartups"
_REFUSED = re.compile(rb"(Exceeded MaxStartups|Not allowed at this time)")
_UNSENT = 1 << 17
_LARGEST_PACKET = 1 << 18  # RFC 4253 requires support for 35,000 bytes


def end(*ends: Any) -> None:
    """Close sockets or channels, and wake up threads that wait for their data."""
    for connection in ends:
        with contextlib.suppress(*BROKEN):
            connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(*BROKEN):
            connection.close()


class Wire:
    """A socket that counts its bytes, and fails if its peer accepts no data for `stall` seconds.

    `log` is the standard error of a ProxyCommand.
    """

    def __init__(self, sock: Any, stall: float, log: IO[bytes] | None = None) -> None:
        self._sock = sock
        self._stall = stall
        self._log = log
        self._blocked_since: float | None = None
        self._ahead = b""
        self.sent = 0
        self.received = 0
        self.greeting = b""

    def send(self, data: bytes) -> int:
        """Send some of the data, or fail after `stall` seconds: paramiko would retry a timeout for ever."""
        try:
            count = int(self._sock.send(data))
        except TimeoutError:
            self._blocked_since = self._blocked_since or time.monotonic()
            if time.monotonic() - self._blocked_since > self._stall:
                raise ConnectionAbortedError("the peer accepts no data") from None
            raise
        self._blocked_since = None
        self.sent += count
        return count

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes; paramiko requests a few at a time, so the socket is read ahead."""
        # paramiko requests a packet of any size that its first four bytes announce.
        if size > _LARGEST_PACKET:
            raise ConnectionAbortedError(f"the peer announces a packet of {size} bytes")
        if not self._ahead:
            self._ahead = self._sock.recv(max(size, 1 << 16))
            self.received += len(self._ahead)
            self.greeting = (self.greeting + self._ahead)[:_GREETING_KEPT]
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def settimeout(self, seconds: float | None) -> None:
        self._sock.settimeout(seconds)

    def close(self) -> None:
        end(self._sock)

    def complaints(self) -> str:
        """Return the end of a ProxyCommand's standard error."""
        if not self._log:
            return ""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - STDERR_KEPT))
        return process.tail(self._log.read(STDERR_KEPT).decode(errors="replace"))

    @property
    def _closed(self) -> bool:
        return bool(self._sock._closed)  # noqa: SLF001 - paramiko asks its sockets this way


def _tcp(hop: Hop, keepalive: int) -> socket.socket:
    try:
        sock = socket.create_connection((hop.host, hop.port), timeout=hop.timeout)
    except (socket.gaierror, UnicodeError) as fault:
        raise UnreachableError(
            f"the name {hop.host} cannot be resolved", details=str(fault), hint="check the name, or use an IP address"
        ) from fault
    except TimeoutError:
        raise UnreachableError(
            f"{hop.name} does not answer within {hop.timeout:g} s",
            hint=f"check that the device is switched on; try: ping {hop.host}",
        ) from None
    except OSError as fault:
        raise UnreachableError(
            f"{hop.name} cannot be reached: {fault.strerror}",
            details=str(fault),
            hint="check the address and the port, and that an SSH server runs there",
        ) from fault
    # A command is several small packets, which Nagle's algorithm would hold back for 40 ms each.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Data that waits in this kernel delays keepalives and each next command, so little may wait.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
    if keepalive and hasattr(socket, "TCP_USER_TIMEOUT"):
        # paramiko ignores whether its keep-alives are answered; the kernel notices if they are not acknowledged.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000 * keepalive)
    return sock


def reach(hop: Hop, previous: Any | None, options: SshOptions, stack: contextlib.ExitStack) -> Wire:
    """Open a connection to a server: by a command, through the previous server, or directly; `stack` closes it.

    Raises:
        UnreachableError: It cannot be opened.
    """
    if hop.proxy_command:
        log = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        command = shell_command(f"exec {hop.proxy_command}")  # as `ssh` does: a single program then needs no shell
        try:
            wire = Wire(process.attach(command, log), options.stall_timeout, log)
        except OSError as fault:
            raise UnreachableError(
                f"ProxyCommand {command[0]}: {fault.strerror}", details=shlex.join(command)
            ) from fault
    elif previous:
        target = (hop.host, hop.port)
        try:
            tunnel = previous.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=hop.timeout)
        except BROKEN as fault:
            raise UnreachableError(
                f"{hop.via} cannot reach {hop.name}",
                details=getattr(fault, "text", "") or fault_text(fault),
                hint="check the address as seen from the jump host, and that it allows TCP forwarding",
            ) from fault
        wire = Wire(tunnel, options.stall_timeout)
    else:
        wire = Wire(_tcp(hop, options.keepalive), options.stall_timeout)
    stack.callback(wire.close)
    return wire


def _explain_refusal(hop: Hop, wire: Wire) -> UnreachableError:
    """Return the error for an SSH server that accepts no connection at the moment."""
    kind = DroppedError if wire.greeting.startswith(_TOO_MANY) else UnreachableError
    return kind(
        f"{hop.name} refuses the connection: the SSH server has too many connections, or blocks this host for a while",
        details=f"its first line: {wire.greeting.decode(errors='replace').splitlines()[0]!r}",
        hint="run the command again in a minute; or raise MaxStartups, or see PerSourcePenalties, in the device's "
        "sshd_config",
    )


def exchange_keys(transport: Any, wire: Wire, hop: Hop) -> None:
    """Exchange keys and verify the host key; no credentials have been sent when this returns or raises.

    Raises:
        VerificationError: The host key is unknown, or is not the known one.
        DroppedError: The server may accept the connection a moment later.
        UnreachableError: It is not an SSH server, or has no algorithm in common with us.
    """
    policy = HostKeyPolicy(hop)
    security = transport.get_security_options()
    security.key_types = policy.order(security.key_types, tuple(transport._key_info))  # noqa: SLF001
    transport.banner_timeout = transport.handshake_timeout = hop.timeout
    event = threading.Event()
    started = time.monotonic()
    transport.start_client(event=event)
    if not event.wait(hop.timeout + 1) or not transport.is_active():
        late = time.monotonic() - started >= hop.timeout
        raise _explain_failure(transport.get_exception() or EOFError(), wire, hop, transport.without_match(), late=late)
    policy.verify(transport.get_remote_server_key())


def _explain_failure(
    fault: Exception, wire: Wire, hop: Hop, without_match: Mismatches, *, late: bool
) -> UnreachableError:
    """Return the error for a server that did not send its host key."""
    if _REFUSED.match(wire.greeting):
        return _explain_refusal(hop, wire)
    if wire.greeting and not wire.greeting.startswith(b"SSH-"):
        first_line = wire.greeting.decode(errors="replace").splitlines()[0]
        return UnreachableError(
            f"{hop.name} is not an SSH server", details=f"its first line: {first_line!r}", hint="check the port"
        )
    if hop.proxy_command and not wire.greeting:
        return UnreachableError(
            f"the ProxyCommand of {hop.alias} does not reach an SSH server"
            + (f" within {hop.timeout:g} s" if late else ""),
            details=f"{hop.proxy_command}\n{wire.complaints()}".strip(),
            hint=f"try it as `ssh` runs it: {shlex.join(shell_command(f'exec {hop.proxy_command}'))}",
        )
    if late:
        return UnreachableError(
            f"{hop.name} accepts connections but does not answer within {hop.timeout:g} s",
            hint="check the port and the load of the device, or restart sshd on it",
        )
    if not wire.greeting:
        return DroppedError(
            f"{hop.name} closes the connection before the SSH greeting",
            details=fault_text(fault),
            hint="run the command again in a minute, or check the port; the SSH server may have too many connections "
            "(MaxStartups) or block this host",
        )
    return _explain_no_match(fault, hop, without_match)


def _explain_no_match(fault: Exception, hop: Hop, without_match: Mismatches) -> UnreachableError:
    """Return the error for a server that offers no algorithm that we support."""
    kinds = " and no common ".join(without_match) or "key exchange, cipher or host key type"
    lists = [
        f"{name}: the server offers: {', '.join(theirs)}\n{name}: this host supports: {', '.join(ours)}"
        for name, (theirs, ours) in without_match.items()
    ]
    settings = " and ".join(_SETTINGS[name] for name in without_match)
    return UnreachableError(
        f"{hop.name} and this host support no common {kinds}",
        details="\n".join(lists) or fault_text(fault),
        hint=f"allow one more in {settings} of the device's sshd_config"
        if without_match
        else "update the device's SSH server",
    )
