"""SshShell: a device over SSH, with strict host keys, ~/.ssh/config, jump hosts and real byte counts."""

from __future__ import annotations

import contextlib
import logging
import select
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import paramiko

from toolchain import process
from toolchain._ssh_connect import Wire, exchange_keys, reach, words_of
from toolchain._ssh_forward import LOOPBACK, BackForwards, Forward
from toolchain._ssh_login import Login
from toolchain._ssh_route import Config, Hop
from toolchain.errors import DeviceError, InputError
from toolchain.shell import (
    CHUNK,
    CLOSE_GRACE,
    HELD,
    Address,
    LineBuffer,
    SshOptions,
    check_source,
    command_failed,
    reading,
    replacing,
)

# Without a handler Python prints paramiko's stack traces to stderr; only the command line prints.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_STDERR_KEPT = 1 << 14
# What a device may send before it must wait for us: enough for a fast link with a long delay.
_WINDOW = 1 << 24
# OpenSSH's own limit for AES, 2**32 blocks (RFC 4344); paramiko's 512 MB would stall every large upload.
_REKEY_BYTES = 1 << 36

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
        self._back = BackForwards(self._transport, self.name)
        self._hastened = False

    def _connect(self, hop: Hop, stack: contextlib.ExitStack, options: SshOptions) -> None:
        wire = Wire(reach(hop, self._transport, options.keepalive), options.stall_timeout)
        stack.callback(wire.close)
        transport = paramiko.Transport(wire, default_window_size=_WINDOW)
        stack.callback(transport.close)
        transport.packetizer.REKEY_BYTES = _REKEY_BYTES
        exchange_keys(transport, wire, hop)
        try:
            Login(transport, hop, options).run()
        except (paramiko.SSHException, EOFError, OSError) as fault:
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
        with self._channel(f"exec sh -c {shlex.quote(script)}", stall) as channel:
            with reading(source) as stream:
                stream.seek(offset)
                left -= self._feed(channel, stream, progress)
            with self._noticing_loss("ending an upload"):
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
            self._channel(f"exec sh -c {shlex.quote(script)}", stall) as channel,
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

    def forward(self, here: tuple[str, int], remote_port: int) -> Forward:
        """Let an address of this host lead to a port of the device's loopback address.

        Args:
            here: Address and port here; port 0 takes a free one.
            remote_port: The port there, where nobody needs to listen yet; 0 is the same number as here.

        Raises:
            DeviceError: The device forwards nothing, or the port here is taken.
        """
        self._hasten()
        return Forward(self._transport, self.name, here, (LOOPBACK, remote_port))

    def forward_back(self, target: tuple[str, int]) -> int:
        """Let a port of the device's loopback address lead to an address of this host, as long as this connection.

        Returns:
            The port.

        Raises:
            DeviceError: The device does not allow that.
        """
        self._hasten()
        return self._back.add(target)

    def _hasten(self) -> None:
        """OpenSSH's server sends small packets at once only after the first command; before, some wait for 40 ms."""
        if not self._hastened:
            self.run(":")
            self._hastened = True

    @contextlib.contextmanager
    def _channel(self, command: str, timeout: float) -> Iterator[Any]:
        """Start a command; its channel is closed at the end, whatever happens meanwhile."""
        with self._noticing_loss("opening a channel"):
            channel = self._transport.open_session(timeout=timeout)
        # paramiko waits without limit for the server to accept a command; closing the channel wakes it up.
        alarm = threading.Timer(timeout, channel.close)
        alarm.daemon = True
        try:
            with self._noticing_loss("starting a command"):
                alarm.start()
                channel.exec_command(command)
                alarm.cancel()
            channel.settimeout(self._options.stall_timeout)
            try:
                yield channel
            except (paramiko.SSHException, EOFError) as fault:
                raise self.lost("running a command", fault) from fault
        finally:
            alarm.cancel()
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                channel.close()

    @contextlib.contextmanager
    def _noticing_loss(self, doing: str) -> Iterator[None]:
        """Turn what paramiko raises for a broken connection, sockets' errors among it, into our error."""
        try:
            yield
        except (paramiko.SSHException, EOFError, OSError) as fault:
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
