"""The SSH connections to one device: a new one is opened if the server allows no more channels in the others.

paramiko's connection gets three additions: an algorithm's newer name, exit signals, and the server's offers.
"""

from __future__ import annotations

import contextlib
import math
import random
import signal
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, ClassVar

import paramiko

from toolchain.errors import DeviceError, UnreachableError
from toolchain.shell.address import Address, SshOptions
from toolchain.shell.config import Config, Hop
from toolchain.shell.connect import BROKEN, DroppedError, Wire, exchange_keys, reach
from toolchain.shell.login import Login
from toolchain.shell.protocol import fault_text

# Bytes that a device may send before we acknowledge them: enough for a fast link with a long delay.
WINDOW = 1 << 24
# OpenSSH's own limit for AES, 2**32 blocks (RFC 4344); paramiko's 512 MB would stall every large upload.
_REKEY_BYTES = 1 << 36
# GCM needs no separate MAC, which makes it about twice as fast here; CTR serves dropbear. CBC and 3DES are left out.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr", "aes192-ctr")
# paramiko has this key exchange only under its older name; the other is that of RFC 8731.
_CURVE, _CURVE_OF_RFC = "curve25519-sha256@libssh.org", "curve25519-sha256"
_OFFERS = {
    "key exchange": ("kex_algo_list", "preferred_kex"),
    "host key": ("server_key_algo_list", "preferred_keys"),
    "cipher": ("client_encrypt_algo_list", "preferred_ciphers"),
    "MAC": ("client_mac_algo_list", "preferred_macs"),
}

_CONNECT_FAILED = 2  # RFC 4254, section 5.1; OpenSSH's answer beyond its MaxSessions
# A server counts a command until it has reaped its process, a moment after its channel was closed.
_FREED_S = 5.0
_SETTLED_S = 0.5
_PAUSE_S = 0.05
_MOST = 16
# By default OpenSSH drops three of ten connections, and more, once ten others have not logged in yet (MaxStartups).
_DROPPED_PAUSES_S = (0.2, 0.4, 0.8, 1.6, 3.2)
_JITTER = random.Random()  # noqa: S311 - for pauses: several clients must not all try again at the same moment
_MAX_SESSIONS = "raise `MaxSessions` in the device's sshd_config: it allows too few sessions in one connection"


class Transport(paramiko.Transport):  # type: ignore[misc]
    """One SSH connection, from the key exchange on.

    Attributes:
        offers: The algorithms that the server offers, by kind.
    """

    _kex_info: ClassVar[dict[str, Any]] = {
        **paramiko.Transport._kex_info,  # noqa: SLF001 - paramiko has no other way to add a name
        **(
            {_CURVE_OF_RFC: paramiko.Transport._kex_info[_CURVE]}  # noqa: SLF001
            if _CURVE in paramiko.Transport._kex_info  # noqa: SLF001
            else {}
        ),
    }

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, default_window_size=WINDOW)
        self.packetizer.REKEY_BYTES = _REKEY_BYTES
        self.offers: dict[str, tuple[str, ...]] = {}
        self.ended_by: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        security = self.get_security_options()
        security.ciphers = _CIPHERS
        if _CURVE in security.kex:
            index = security.kex.index(_CURVE)
            security.kex = (*security.kex[:index], _CURVE_OF_RFC, *security.kex[index:])
        request = paramiko.common.MSG_CHANNEL_REQUEST
        handlers: dict[int, Any] = paramiko.Transport._channel_handler_table  # noqa: SLF001
        self._channel_handler_table = {**handlers, request: self._on_request}

    def _really_parse_kex_init(self, message: Any, ignore_first_byte: bool = False) -> Any:  # noqa: FBT001, FBT002
        parsed = super()._really_parse_kex_init(message, ignore_first_byte)
        if not self.offers:
            self.offers = {kind: tuple(parsed[theirs]) for kind, (theirs, _ours) in _OFFERS.items()}
        return parsed

    def _on_request(self, channel: Any, message: Any) -> None:
        """Note the signal that ended a command, which paramiko ignores; pass other requests on."""
        before = message.packet.tell()
        if message.get_text() == "exit-signal":
            message.get_boolean()
            self.ended_by[channel] = message.get_text()
            return
        message.packet.seek(before)
        channel._handle_request(message)  # noqa: SLF001 - what paramiko's own table calls

    def without_match(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return the kinds of algorithms without a match: what the server offers, and what we support."""
        pairs = {kind: (self.offers.get(kind, ()), tuple(getattr(self, ours))) for kind, (_, ours) in _OFFERS.items()}
        return {kind: pair for kind, pair in pairs.items() if pair[0] and not set(pair[0]) & set(pair[1])}


def signal_number(name: str) -> int:
    """Return the number of a signal that SSH names without its SIG, such as KILL; 0 for an unknown one."""
    return int(getattr(signal.Signals, f"SIG{name.partition('@')[0]}", 0))


@dataclass
class _Connection:
    """One connection to the device."""

    transport: Transport
    channels: list[Any] = field(default_factory=list)  # opened ones; some may be closed by now
    limit: int | None = None  # the number of channels that the server allows; None until it refuses one

    @property
    def is_full(self) -> bool:
        """Whether the server would refuse one more channel, by its earlier refusals."""
        self.channels = [channel for channel in self.channels if not channel.closed]
        return self.limit is not None and len(self.channels) >= self.limit

    def open(self, timeout: float) -> Any | None:
        """Open a channel; return None if the server refuses one more."""
        # A server may need some time to notice that the last channel was closed.
        deadline = time.monotonic() + min(timeout, _SETTLED_S if self.channels else _FREED_S)
        while not self.is_full:
            try:
                channel = self.transport.open_session(timeout=timeout)
            except paramiko.ChannelException as fault:
                if fault.code != _CONNECT_FAILED:
                    raise
                if time.monotonic() > deadline:
                    self.limit = len(self.channels) or None
                    return None
                time.sleep(_PAUSE_S)
            else:
                self.channels.append(channel)
                return channel
        return None


class Connections:
    """The connections to one device, through its jump hosts.

    Attributes:
        name: `user@host:port`.
        timeout: Seconds for a connection to be made.
        wires: The sockets of all connections that begin on this host.
    """

    def __init__(self, address: Address, options: SshOptions) -> None:
        *jumps, self._device = Config(options).route(address)
        self.name, self.timeout = self._device.name, self._device.timeout
        self._options = options
        self._opening = threading.Lock()
        self.wires: list[Wire] = []
        self._open: list[_Connection] = []
        self._jump: Transport | None = None
        with contextlib.ExitStack() as stack:
            for hop in jumps:
                self._jump = self._connect(hop, self._jump, stack)
            self._add(stack)
            self._resources = stack.pop_all()

    @property
    def first(self) -> Transport:
        return self._open[0].transport

    @property
    def lost(self) -> Transport | None:
        """A lost connection, if there is one."""
        transports = (connection.transport for connection in self._open)
        return next((transport for transport in transports if not transport.is_active()), None)

    def open_channel(self, timeout: float) -> Any:
        """Open a channel for a command, if needed in a new connection; the caller closes it."""
        with self._opening:
            for connection in self._open:
                if channel := connection.open(timeout):
                    return channel
            # A server that refuses the first channel of a connection refuses that of another one, too.
            if len(self._open) < _MOST and all(connection.channels for connection in self._open):
                self._add(self._resources)
                if channel := self._open[-1].open(timeout):
                    return channel
        raise DeviceError(f"{self.name} refuses to run one more command at the same time", hint=_MAX_SESSIONS)

    def _add(self, stack: contextlib.ExitStack) -> None:
        self._open.append(_Connection(self._connect(self._device, self._jump, stack)))

    def _connect(self, hop: Hop, previous: Transport | None, stack: contextlib.ExitStack) -> Transport:
        """Connect to one server and log in."""
        options = self._options
        wire, transport = self._exchange_keys(hop, previous, stack)
        try:
            Login(transport, hop, options, is_jump=hop is not self._device).run()
        except BROKEN as fault:
            raise UnreachableError(
                f"{hop.name} closed the connection during the login", details=fault_text(fault)
            ) from fault
        transport.set_keepalive(options.keepalive)
        if previous is None:
            self.wires.append(wire)
        return transport

    def _exchange_keys(
        self, hop: Hop, previous: Transport | None, stack: contextlib.ExitStack
    ) -> tuple[Wire, Transport]:
        """Connect to one server and agree on keys; repeat that while it has too many connections."""
        deadline = time.monotonic() + hop.timeout
        pauses, count = iter(_DROPPED_PAUSES_S), 0
        while True:
            count += 1
            try:
                with contextlib.ExitStack() as attempt:
                    wire = reach(hop, previous, self._options, attempt)
                    transport = Transport(wire)
                    attempt.callback(transport.close)
                    exchange_keys(transport, wire, hop)
                    stack.push(attempt.pop_all())
                    return wire, transport
            except DroppedError as fault:
                pause = next(pauses, math.inf) * _JITTER.uniform(0.8, 1.2)
                if time.monotonic() + pause >= deadline:
                    fault.details = f"{fault.details}\ntried {count} times".strip()
                    raise
                if count == 1:
                    self._options.report(f"{hop.name} accepts no more connections at the moment; trying again")
                time.sleep(pause)

    def close(self) -> None:
        """End all connections. Closing twice is fine."""
        self._resources.close()
