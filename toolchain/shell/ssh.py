"""SshShell: a device over SSH, with strict host keys, ~/.ssh/config, jump hosts and real byte counts."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import paramiko

from toolchain.errors import DeviceError, InputError, UnreachableError
from toolchain.shell.address import Address, SshOptions
from toolchain.shell.bounds import Channel, Limit
from toolchain.shell.config import Config, Hop
from toolchain.shell.connect import BROKEN, Wire, end, exchange_keys, reach
from toolchain.shell.login import Login
from toolchain.shell.protocol import CHUNK, GUARDED, HELD, PACKET, STREAM_S, Kind, Shell, words_of
from toolchain.shell.remote import CLOSE_GRACE

# Without a handler Python prints paramiko's stack traces to stderr; only the command line prints.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# What a device may send before it must wait for us: enough for a fast link with a long delay.
_WINDOW = 1 << 24
# OpenSSH's own limit for AES, 2**32 blocks (RFC 4344); paramiko's 512 MB would stall every large upload.
_REKEY_BYTES = 1 << 36

# A server counts a command as running until it has waited for it, which is a moment after its channel was closed.
_FREED_S = 5.0
_CONNECT_FAILED = 2  # RFC 4254, section 5.1
_MAX_SESSIONS = "raise `MaxSessions` in the device's sshd_config: it allows too few sessions in one connection"

# OpenSSH gives each command a session of its own; dropbear does not, there setsid does. The shell is the one in the
# login's PATH: an older Android has no /bin.
_LEAD = """
kill -0 -$$ 2>/dev/null || ! command -v setsid >/dev/null || exec setsid sh -c "$0" sh "$1"
exec sh -c "$0" sh "$1"
"""


def _command(script: str, kind: Kind) -> str:
    """Return the command line that runs a script, whatever the login shell is."""
    if kind == "copy":
        return f"exec sh -c {shlex.quote(script)}"
    return f"exec sh -c {shlex.join([_LEAD, GUARDED if kind == 'run' else HELD, script])}"


class _Signal(threading.Event):
    """Set whenever there is something to hear; paramiko clears it once one of both outputs is empty."""

    def clear(self) -> None:
        """Leave that to whoever listens to both."""

    def reset(self) -> None:
        """Clear it."""
        super().clear()


class _Inbox(paramiko.buffered_pipe.BufferedPipe):  # type: ignore[misc]
    """paramiko keeps all that comes; this one no more than the device was told that we take."""

    def feed(self, data: bytes) -> None:
        """Add what came; the connection ends with a device that sends more."""
        if len(self) + len(data) > _WINDOW:
            raise paramiko.SSHException("the device sends more data than this host announced to accept")
        super().feed(data)


class SshChannel:
    """A command on a device, in a channel of paramiko's."""

    def __init__(self, channel: Any) -> None:
        self._channel, self._heard, self._sent = channel, _Signal(), 0
        for buffer in (channel.in_buffer, channel.in_stderr_buffer):
            buffer.set_event(self._heard)

    @property
    def code(self) -> int | None:
        """See `Channel.code`."""
        return int(self._channel.exit_status) if self._channel.exit_status_ready() else None

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        """See `Channel.receive`."""
        channel, deadline = self._channel, time.monotonic() + timeout
        while True:
            self._heard.reset()
            # The end must be looked for first: what came before it is then in the buffers.
            ended = channel.eof_received or channel.closed
            out = channel.recv(CHUNK) if channel.recv_ready() else b""
            err = channel.recv_stderr(CHUNK) if channel.recv_stderr_ready() else b""
            if out or err or ended:
                return out, err
            if not self._heard.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError

    def send(self, data: bytes, limit: Limit) -> None:
        """See `Channel.send`. paramiko's own sendall would begin its time anew with each byte that the server takes."""
        try:
            while data:
                self._channel.settimeout(limit.check())
                count = self._channel.send(data)
                self._sent += count
                data = data[count:]
        except TimeoutError:
            raise
        except BROKEN as fault:
            raise BrokenPipeError(words_of(fault)) from fault

    def progress(self) -> object:
        """See `Channel.progress`; the server tells how much more it takes as the command reads."""
        return self._sent + self._channel.out_window_size

    def end_input(self) -> None:
        """See `Channel.end_input`."""
        with contextlib.suppress(*BROKEN):
            self._channel.shutdown_write()

    def wait(self, timeout: float) -> bool:
        """See `Channel.wait`."""
        return bool(self._channel.status_event.wait(timeout))

    def stop(self) -> None:
        """See `Channel.stop`.

        The guard ends the command when its input ends. Waiting for that makes it true that it was ended, and dropbear
        would close the next channel if one with a running command were closed before it.
        """
        self.end_input()
        deadline = time.monotonic() + CLOSE_GRACE
        with contextlib.suppress(TimeoutError):
            while any(self.receive(left := max(0.0, deadline - time.monotonic()))) and left:
                pass

    def close(self) -> None:
        """See `Channel.close`."""
        end(self._channel)


class SshShell(Shell):
    """A Shell over SSH.

    Args:
        address: The device, or its alias in the SSH configuration.
        options: Files, credentials and time limits.

    Raises:
        InputError: The SSH configuration is wrong.
        VerificationError: A host key on the way is unknown, changed or revoked.
        UnreachableError: A server on the way cannot be reached or refuses us.
    """

    def __init__(self, address: Address, options: SshOptions) -> None:
        self.stall = options.stall_timeout
        if options.identity and not options.identity.is_file():
            raise InputError(f"there is no key file {options.identity}")
        self._wires: list[Wire] = []
        self._transport: Any = None
        with contextlib.ExitStack() as stack:
            *jumps, device = Config(options).route(address)
            for hop in jumps:
                # The password is the device's; a jump host must not see it.
                self._connect(hop, stack, replace(options, password=None))
            self._connect(device, stack, options)
            self._resources = stack.pop_all()
        self.name = device.name

    def _connect(self, hop: Hop, stack: contextlib.ExitStack, options: SshOptions) -> None:
        wire = reach(hop, self._transport, options, stack)
        transport = paramiko.Transport(wire, default_window_size=_WINDOW)
        stack.callback(transport.close)
        transport.packetizer.REKEY_BYTES = _REKEY_BYTES
        exchange_keys(transport, wire, hop)
        try:
            Login(transport, hop, options).run()
        except BROKEN as fault:
            raise UnreachableError(
                f"{hop.name} closed the connection during the login", details=words_of(fault)
            ) from fault
        transport.set_keepalive(options.keepalive)
        self._wires.append(wire)
        self._transport = transport

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the device's host key, `SHA256:` and Base64."""
        return str(self._transport.get_remote_server_key().fingerprint)

    @property
    def server(self) -> str:
        """See `Shell.server`."""
        return str(self._transport.remote_version)

    @property
    def bytes_sent(self) -> int:
        """See `Shell.bytes_sent`."""
        return self._wires[0].sent

    @property
    def bytes_received(self) -> int:
        """See `Shell.bytes_received`."""
        return self._wires[0].received

    def _open(self, script: str, kind: Kind, timeout: float) -> Channel:
        return SshChannel(self._opened(_command(script, kind), timeout))

    def stream(self, script: str, *, timeout: float = STREAM_S) -> socket.socket:
        """See `Shell.stream`."""
        deadline = time.monotonic() + min(timeout, _FREED_S)
        while True:
            try:
                return _carried(self._opened(_command(script, "copy"), timeout))
            except DeviceError as fault:
                if not _is_full(fault):
                    raise
                if time.monotonic() > deadline:
                    raise DeviceError(fault.message, details=fault.details, hint=_MAX_SESSIONS) from fault
            time.sleep(_FREED_S / 100)

    def _opened(self, command: str, timeout: float) -> Any:
        """Start a command; the caller closes its channel."""
        with self._noticing_loss("opening a channel"):
            channel = self._transport.open_session(timeout=timeout)
        channel.in_buffer, channel.in_stderr_buffer = _Inbox(), _Inbox()
        # paramiko waits without limit for the server to accept a command; closing the channel wakes it up.
        alarm = threading.Timer(timeout, channel.close)
        alarm.daemon = True
        try:
            with self._noticing_loss("starting a command"):
                alarm.start()
                channel.exec_command(command)
        except BaseException:
            end(channel)
            raise
        finally:
            alarm.cancel()
        return channel

    @contextlib.contextmanager
    def _noticing_loss(self, doing: str) -> Iterator[None]:
        """Turn what paramiko raises for a broken connection, sockets' errors among it, into our error."""
        try:
            yield
        except BROKEN as fault:
            raise self._lost(doing, fault) from fault

    def check_alive(self, doing: str) -> None:
        """See `Shell.check_alive`."""
        if not self._transport.is_active():
            raise self._lost(doing, self._transport.get_exception() or EOFError())

    def _lost(self, doing: str, fault: BaseException) -> UnreachableError:
        # These are a broken socket, even if paramiko's thread has not noticed it yet.
        broken = isinstance(fault, (EOFError, ConnectionError)) or not self._transport.is_active()
        state = "was lost" if broken else "failed"
        return UnreachableError(
            f"the connection to {self.name} {state} while {doing}",
            details=words_of(fault),
            hint="check that the device is on and reachable, then run the same command again",
        )

    def close(self) -> None:
        """See `Shell.close`."""
        self._resources.close()


def _is_full(fault: DeviceError) -> bool:
    """Tell whether the server opens no channel more, as OpenSSH does beyond its MaxSessions."""
    refusal = fault.__cause__
    return isinstance(refusal, paramiko.ChannelException) and refusal.code == _CONNECT_FAILED


def _carried(channel: Any) -> socket.socket:
    """Return one end of a stream whose other end is a channel; threads carry it until one of both is gone."""
    ours, theirs = socket.socketpair()
    channel.settimeout(None)
    threading.Thread(target=_carry, args=(theirs, channel), name="stream-down", daemon=True).start()
    return ours


def _carry(sock: socket.socket, channel: Any) -> None:
    upward = threading.Thread(target=_pump, args=(sock, channel), name="stream-up", daemon=True)
    upward.start()
    _pump(channel, sock)
    upward.join()
    end(sock, channel)


def _pump(source: Any, sink: Any) -> None:
    """Pass on what a socket or a channel says until it has said all, or one of both is gone."""
    try:
        while data := source.recv(PACKET):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except BROKEN:
        end(source, sink)
