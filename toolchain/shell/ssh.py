"""SshShell: a device over SSH, with strict host keys, ~/.ssh/config, jump hosts and real byte counts."""

from __future__ import annotations

import contextlib
import logging
import select
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Self

import paramiko

from toolchain import process
from toolchain.errors import DeviceError, InputError
from toolchain.shell.address import Address, SshOptions
from toolchain.shell.config import Config, Hop
from toolchain.shell.connect import BROKEN, Wire, end, exchange_keys, reach
from toolchain.shell.login import Login
from toolchain.shell.protocol import (
    CHUNK,
    CLOSE_GRACE,
    HELD,
    STDERR_KEPT,
    STREAM_S,
    LineBuffer,
    check_result,
    reading,
    replacing,
    words_of,
)

# Without a handler Python prints paramiko's stack traces to stderr; only the command line prints.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# What a device may send before it must wait for us: enough for a fast link with a long delay.
_WINDOW = 1 << 24
_PACKET = (1 << 15) - 64  # what one SSH packet holds; more would only be cut, and copied for it
# OpenSSH's own limit for AES, 2**32 blocks (RFC 4344); paramiko's 512 MB would stall every large upload.
_REKEY_BYTES = 1 << 36

# A server counts a command as running until it has waited for it, which is a moment after its channel was closed.
_FREED_S = 5.0
_CONNECT_FAILED = 2  # RFC 4254, section 5.1
_MAX_SESSIONS = "raise `MaxSessions` in the device's sshd_config: it runs too few commands of one connection at once"

# A closed channel does not end a command by itself. Nobody writes to the guard's input, so its `read` ends when
# the channel does, and the guard ends the script's process group, which the shell that runs this leads.
_GUARDED = """
exec 3<&0 </dev/null
{ trap "" TERM; read -r line <&3; kill -TERM -$$; sleep 1; kill -KILL -$$; } >/dev/null 2>&1 &
guard=$!
sh -c "$1" 3<&-
code=$?
exec 2>/dev/null
kill -KILL $guard
exit $code
"""
# OpenSSH gives each command a session of its own; dropbear does not, there setsid does. The shell is the one in the
# login's PATH: an older Android has no /bin.
_LEAD = """
kill -0 -$$ 2>/dev/null || ! command -v setsid >/dev/null || exec setsid sh -c "$0" sh "$1"
exec sh -c "$0" sh "$1"
"""


def _command(wrapper: str, script: str) -> str:
    """Return the command line that runs a script under one of the wrappers, whatever the login shell is."""
    return f"exec sh -c {shlex.join([_LEAD, wrapper, script])}"


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
            raise DeviceError(f"{hop.name} hung up during the login", details=words_of(fault)) from fault
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
        return check_result(self.name, script, result) if check else result

    def push(
        self, source: Path, target: str, *, offset: int = 0, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Shell.push`."""
        with (
            reading(source, offset) as (stream, left),
            self._copying(f"exec cat >> {shlex.quote(target)}", f"writing {target}") as channel,
        ):
            sent = _feed(channel, stream, progress)
            with self._noticing_loss("ending an upload"):
                channel.shutdown_write()
        if sent < left:
            raise DeviceError(f"{self.name} lacks the last {left - sent} bytes of {source}", hint="resume the upload")

    def pull(self, source: str, target: Path) -> None:
        """See `Shell.pull`."""
        copying = self._copying(f"exec cat < {shlex.quote(source)}", f"reading {source}")
        with replacing(target) as sink, copying as channel:
            for data in iter(lambda: channel.recv(CHUNK), b""):
                sink.write(data)

    @contextlib.contextmanager
    def _copying(self, script: str, doing: str) -> Iterator[Any]:
        """Start a `cat`; when all data is on its way, see that it ends well."""
        stall = self._options.stall_timeout
        with self._channel(f"exec sh -c {shlex.quote(script)}", stall) as channel:
            try:
                yield channel
            except TimeoutError:
                message = f"{self.name} moved no data for {stall:g} s"
                raise DeviceError(message, hint="check the device and the network") from None
            check_result(self.name, script, self._finish(channel, stall, f"{self.name}, {doing},", script))

    def start(self, script: str) -> SshProcess:
        """See `Shell.start`."""
        stack = contextlib.ExitStack()
        channel = stack.enter_context(self._channel(_command(HELD, script), self._options.stall_timeout))
        return SshProcess(self, channel, stack)

    def stream(self, script: str, *, timeout: float = STREAM_S) -> socket.socket:
        """See `Shell.stream`."""
        deadline = time.monotonic() + min(timeout, _FREED_S)
        while True:
            try:
                return _carried(self._opened(f"exec sh -c {shlex.quote(script)}", timeout))
            except DeviceError as fault:
                if not _is_full(fault):
                    raise
                if time.monotonic() > deadline:
                    raise DeviceError(fault.message, details=fault.details, hint=_MAX_SESSIONS) from fault
            time.sleep(_FREED_S / 100)

    @contextlib.contextmanager
    def _channel(self, command: str, timeout: float) -> Iterator[Any]:
        """Start a command; its channel is closed at the end, whatever happens meanwhile."""
        channel = self._opened(command, timeout)
        try:
            channel.settimeout(self._options.stall_timeout)
            yield channel
        except (paramiko.SSHException, EOFError) as fault:
            raise self.lost("running a command", fault) from fault
        finally:
            end(channel)

    def _opened(self, command: str, timeout: float) -> Any:
        """Start a command; the caller closes its channel."""
        with self._noticing_loss("opening a channel"):
            channel = self._transport.open_session(timeout=timeout)
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
            raise self.lost(doing, fault) from fault

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
        # These are a broken socket, even if paramiko's thread has not noticed it yet.
        broken = isinstance(fault, (EOFError, ConnectionError)) or not self._transport.is_active()
        state = "was lost" if broken else "failed"
        return DeviceError(
            f"the connection to {self.name} {state} while {doing}",
            details=words_of(fault),
            hint="check that the device is on and reachable, then run the same command again",
        )

    def close(self) -> None:
        """See `Shell.close`."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()


def _is_full(fault: DeviceError) -> bool:
    """Tell whether the server opens no channel more, as OpenSSH does beyond its MaxSessions."""
    refusal = fault.__cause__
    return isinstance(refusal, paramiko.ChannelException) and refusal.code == _CONNECT_FAILED


def _feed(channel: Any, stream: IO[bytes], progress: Callable[[int], None] | None) -> int:
    """Send a stream until it ends or the device stops reading; return the bytes sent."""
    # One packet holds this much; larger blocks would only be cut, and copied for it.
    step = channel.out_max_packet_size - 64
    sent = reported = 0
    while not channel.exit_status_ready() and (data := stream.read(step)):
        try:
            channel.sendall(data)
        except TimeoutError:
            raise
        except BROKEN:
            # Either `cat` ended, and its words tell why, or the connection did; `_finish` finds out.
            break
        sent += len(data)
        if progress and sent - reported >= CHUNK:
            progress(stream.tell())
            reported = sent
    if progress and sent > reported:
        progress(stream.tell())
    return sent


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
        del self._words[:-STDERR_KEPT]
        return self._words.decode(errors="replace")

    def readline(self, timeout: float) -> str:
        """See `RemoteProcess.readline`."""
        try:
            return self._lines.read(self._receive, timeout)
        except TimeoutError:
            message = f"a process on {self._shell.name} wrote no line within {timeout:g} s"
            raise DeviceError(message, details=self.stderr) from None

    def _receive(self, timeout: float) -> bytes:
        self._channel.settimeout(timeout)
        data: bytes = self._channel.recv(CHUNK)
        if not data:
            self._shell.check_alive("reading from a process")
        return data

    def write(self, text: str) -> None:
        """See `RemoteProcess.write`."""
        try:
            self._channel.settimeout(60.0)
            self._channel.sendall(text.encode())
        except BROKEN as fault:
            self._shell.check_alive("writing to a process")
            message = f"a process on {self._shell.name} reads no more input"
            raise DeviceError(message, details=self.stderr) from fault

    def close(self) -> int | None:
        """See `RemoteProcess.close`."""
        with self._resources, contextlib.suppress(*BROKEN):
            self._channel.shutdown_write()
            deadline = time.monotonic() + CLOSE_GRACE
            _collect(self._channel, bytearray(), self._words, deadline)
            self._channel.status_event.wait(max(0.0, deadline - time.monotonic()))
        code = self._channel.exit_status
        return int(code) if code >= 0 else None


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
        while data := source.recv(_PACKET):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except BROKEN:
        end(source, sink)
