"""SshShell: a device over SSH, with strict host keys, ~/.ssh/config, jump hosts and byte counts of the socket."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import paramiko

from toolchain.errors import DeviceError, InputError, UnreachableError
from toolchain.progress import reminding
from toolchain.shell import bootstrap
from toolchain.shell.address import Address, SshOptions
from toolchain.shell.bootstrap import Preamble
from toolchain.shell.bounds import CLOSE_GRACE, Channel, Limit
from toolchain.shell.connect import BROKEN, end
from toolchain.shell.connections import WINDOW, Connections, signal_number
from toolchain.shell.protocol import CHUNK, GUARDED, HELD, PACKET, STREAM_S, Kind, Shell, fault_text
from toolchain.shell.session import Session, server_script

# Without a handler Python prints paramiko's stack traces to stderr; only the command line prints.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_SEND_S = 30.0

# OpenSSH gives each command a session of its own; dropbear does not, there setsid does. The shell is the one in the
# login's PATH: an older Android has no /bin.
_LEAD = """
kill -0 -$$ 2>/dev/null || ! command -v setsid >/dev/null || exec setsid sh -c "$0" sh "$1"
exec sh -c "$0" sh "$1"
"""


def _script(script: str, kind: Kind) -> str:
    if kind == "copy":
        return bootstrap.exec_script(script)
    return bootstrap.exec_script(_LEAD, GUARDED if kind == "run" else HELD, script)


class _Signal(threading.Event):
    """Set whenever there is data to read; paramiko would clear it as soon as one of the two outputs is empty."""

    def clear(self) -> None:
        """Do nothing: `receive` reads both outputs, and calls `reset`."""

    def reset(self) -> None:
        super().clear()


class _Inbox(paramiko.buffered_pipe.BufferedPipe):  # type: ignore[misc]
    """A buffer with a limit, which paramiko's lacks: the window that was announced to the device."""

    def feed(self, data: bytes) -> None:
        """Add data; a device that ignores the window loses the connection."""
        if len(self) + len(data) > WINDOW:
            raise paramiko.SSHException("the device sends more data than this host announced to accept")
        super().feed(data)


class SshChannel:
    """A command on a device, in a channel of paramiko's.

    Args:
        channel: The channel, where the line of `bootstrap.command_line` has been started.
        token: The marker that the line prints.
    """

    def __init__(self, channel: Any, token: str) -> None:
        self._channel, self._heard, self._sent = channel, _Signal(), 0
        self._token, self._started = token, False
        self._before, self._before_errors = Preamble(token), Preamble(token)
        for buffer in (channel.in_buffer, channel.in_stderr_buffer):
            buffer.set_event(self._heard)

    def begin(self, script: str, name: str, patience_s: float) -> int:
        """Wait until the login has started our sh, and send it a script.

        Returns:
            Bytes that the login printed before, which are ignored.
        """
        bootstrap.await_marker(self, self._before, self._before_errors, name, patience_s)
        try:
            self.send(bootstrap.script_bytes(script, self._token), Limit(_SEND_S))
        except TimeoutError:
            raise DeviceError(
                f"{name} did not read a command within {_SEND_S:g} s", hint="check the load of the device"
            ) from None
        self._started = True
        return self._before.size

    @property
    def carrier(self) -> Any:
        return self._channel

    @property
    def code(self) -> int | None:
        if not self._channel.exit_status_ready():
            return None
        ended_by = signal_number(self._channel.transport.ended_by.get(self._channel, ""))
        return -ended_by if ended_by else int(self._channel.exit_status)

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        """See `Channel`; what the login wrote to standard error before our sh started is left out."""
        deadline = time.monotonic() + timeout
        while True:
            out, err = self._receive(max(0.0, deadline - time.monotonic()))
            new_err = self._before_errors.feed(err) if self._started else err
            if out or new_err or not err:
                return out, new_err

    def _receive(self, timeout: float) -> tuple[bytes, bytes]:
        channel, deadline = self._channel, time.monotonic() + timeout
        while True:
            self._heard.reset()
            # The end is checked first: then all data before it is in the buffers.
            ended = channel.eof_received or channel.closed
            out = channel.recv(CHUNK) if channel.recv_ready() else b""
            err = channel.recv_stderr(CHUNK) if channel.recv_stderr_ready() else b""
            if out or err or ended:
                return out, err
            if not self._heard.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError

    def send(self, data: bytes, limit: Limit) -> None:
        """See `Channel`. paramiko's own sendall would restart its time limit with each byte that the server takes."""
        try:
            while data:
                self._channel.settimeout(limit.check())
                count = self._channel.send(data)
                self._sent += count
                data = data[count:]
        except TimeoutError:
            raise
        except BROKEN as fault:
            raise BrokenPipeError(fault_text(fault)) from fault

    def progress(self) -> object:
        """See `Channel`; the server's window grows as the command reads."""
        return self._sent + self._channel.out_window_size

    def end_input(self) -> None:
        with contextlib.suppress(*BROKEN):
            self._channel.shutdown_write()

    def wait(self, timeout: float) -> bool:
        return bool(self._channel.status_event.wait(timeout))

    def stop(self) -> None:
        # The guard ends the command when its input ends. We wait for that, so that the command really has ended, and
        # because dropbear would close the next channel if one with a running command were closed before it.
        self.end_input()
        deadline = time.monotonic() + CLOSE_GRACE
        with contextlib.suppress(TimeoutError):
            while any(self.receive(remaining := max(0.0, deadline - time.monotonic()))) and remaining:
                pass

    def close(self) -> None:
        end(self._channel)


class SshShell(Shell):
    """A Shell over SSH. Short commands and files share one channel, one after the other; see `session`."""

    def __init__(self, address: Address, options: SshOptions) -> None:
        self.stall, self._options = options.stall_timeout, options
        if options.identity and not options.identity.is_file():
            raise InputError(f"there is no key file {options.identity}")
        self._connections = Connections(address, options)
        self.name = self._connections.name
        self._patience_s = max(bootstrap.START_S, self._connections.timeout)
        self._session: Session | None = None
        self._sessions_work = True
        self._session_in_use = threading.Lock()

    def report(self, line: str) -> None:
        self._options.report(line)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the device's host key, `SHA256:` and Base64."""
        return str(self._connections.first.get_remote_server_key().fingerprint)

    @property
    def server(self) -> str:
        return str(self._connections.first.remote_version)

    @property
    def bytes_sent(self) -> int:
        return sum(wire.sent for wire in self._connections.wires)

    @property
    def bytes_received(self) -> int:
        return sum(wire.received for wire in self._connections.wires)

    def _open(self, script: str, kind: Kind, timeout: float, size: int = 0) -> Channel:
        if kind != "held" and self._session_in_use.acquire(blocking=False):
            try:
                if channel := self._in_session(script, kind, size, timeout):
                    return channel
            except BaseException:
                self._session_in_use.release()
                raise
            self._session_in_use.release()
        return self._begin(_script(script, kind), timeout)

    def _in_session(self, script: str, kind: Kind, size: int, timeout: float) -> Channel | None:
        """Start a command in the session, which is opened if needed; None if the device cannot have one."""
        if self._session is None or not self._session.usable or self._session.ended:
            self._end_session()
            if not self._sessions_work:
                return None
            secret = secrets.token_hex(8)
            server = bootstrap.exec_script(server_script(), "sh", secret)
            self._session = Session(self._begin(server, min(timeout, STREAM_S)), secret)
            if not self._session.is_ready(min(timeout, STREAM_S)):
                self.check_alive("starting a command")
                self._sessions_work = False
                self._end_session()
                return None
        with self._noticing_loss("starting a command"):
            return self._session.start(script, kind, size, Limit(_SEND_S), self._session_in_use.release)

    def _end_session(self) -> None:
        if self._session:
            self._session.close()
        self._session = None

    def stream(self, script: str, *, timeout: float = STREAM_S) -> socket.socket:
        channel = self._begin(_script(script, "copy"), timeout).carrier
        ours, theirs = socket.socketpair()
        channel.settimeout(None)
        # Threads relay between both ends until either is closed.
        threading.Thread(target=_relay, args=(theirs, channel), name="stream-down", daemon=True).start()
        return ours

    def _begin(self, script: str, timeout: float) -> SshChannel:
        """Start a script in a channel of its own; the caller closes it."""
        token = secrets.token_hex(8)
        channel = SshChannel(self._execute(bootstrap.command_line(token), timeout), token)
        try:
            with self._noticing_loss("starting a command"), reminding(self.report, f"the login of {self.name}"):
                ignored = channel.begin(script, self.name, self._patience_s)
        except BaseException:
            channel.close()
            raise
        if ignored and self.name not in self._options.noted:
            self._options.noted.add(self.name)
            self.report(f"the login of {self.name} prints {ignored} bytes before each command; they are ignored")
        return channel

    def _execute(self, command: str, timeout: float) -> Any:
        """Start a command; the caller closes its channel."""
        with self._noticing_loss("opening a channel"):
            channel = self._connections.open_channel(timeout)
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
        """Turn what paramiko and sockets raise for a broken connection into our error."""
        try:
            yield
        except BROKEN as fault:
            raise self._lost(doing, fault) from fault

    def check_alive(self, doing: str) -> None:
        if lost := self._connections.lost:
            raise self._lost(doing, lost.get_exception() or EOFError())

    def _lost(self, doing: str, fault: BaseException) -> UnreachableError:
        # These errors mean a broken socket, even if paramiko's thread has not noticed it yet.
        broken = isinstance(fault, (EOFError, ConnectionError)) or self._connections.lost is not None
        state = "was lost" if broken else "failed"
        return UnreachableError(
            f"the connection to {self.name} {state} while {doing}",
            details=fault_text(fault),
            hint="check that the device is on and reachable, then run the same command again",
        )

    def close(self) -> None:
        self._connections.close()


def _relay(sock: socket.socket, channel: Any) -> None:
    upward = threading.Thread(target=_pump, args=(sock, channel), name="stream-up", daemon=True)
    upward.start()
    _pump(channel, sock)
    upward.join()
    end(sock, channel)


def _pump(source: Any, sink: Any) -> None:
    """Relay from a socket or channel to another until the end of its data, or until either is closed."""
    try:
        while data := source.recv(PACKET):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except BROKEN:
        end(source, sink)
