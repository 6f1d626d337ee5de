"""The Shell protocol: commands and files on a device over any transport, with limits on time and size."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal, Self

from toolchain import files, process
from toolchain.errors import DeviceError, InputError, UnreachableError
from toolchain.shell.bounds import MAX_OUTPUT, Bounded, Channel, Limit, RemoteProcess, collect

CHUNK = 1 << 20  # bytes between two calls of a progress callback
STREAM_S = 30.0  # seconds for a device to start the script of a stream
PACKET = (1 << 15) - 64  # bytes in one SSH packet; larger pieces would be split, which copies them
_SLOWEST = 1 << 10  # bytes per second; a slower transfer is aborted

# The relay passes standard input on and outlives it: when the input ends, because `close` was called or because
# this program was killed, it ends the script's whole process group, whose leader is the shell that runs this.
# The code of the script comes through a command substitution, which ends with the script, not with the relay.
HELD = """
exec 3<&0 4>&1
code=$(
  { { cat <&3; exec >/dev/null; sleep 2; trap "" TERM; kill -TERM -$$; sleep 1; kill -KILL -$$
    } 4>&- 2>/dev/null | { sh -c "$1" 3<&- >&4 4>&-; echo $?; } 3<&-
  } &
)
exec 2>/dev/null
trap "" TERM
kill -TERM -$$
exit ${code:-255}
"""

# Nothing is written to the guard's input, so its `read` ends when the channel does. Then the guard ends the script's
# process group, whose leader is the shell that runs this. If $2 is set, the last line of standard error is $2, the exit
# code and the group. The guard is killed before this ends, so it does not read the next command on the same input.
GUARDED = """
exec 3<&0 </dev/null
{ trap "" HUP TERM; read -r line <&3; kill -TERM -$$; sleep 1; kill -KILL -$$; } >/dev/null 2>&1 &
guard=$!
sh -c "$1" 3<&-
code=$?
[ -z "$2" ] || echo "$2 $code $$" >&2
exec 2>/dev/null
kill -KILL $guard
wait $guard
exit $code
"""

UNKNOWN_CODE = -1  # the exit code of a command whose channel ended without one
SIGNALLED = 128  # a shell's exit code is this plus the number of the signal that ended a command
_SIGNAL_HINTS = {
    "SIGKILL": "the device may have too little memory; log in and look for the OOM killer: `dmesg | tail`",
    "SIGXFSZ": "the login may not write files of this size: raise `ulimit -f` in its profile or in limits.conf",
    "SIGXCPU": "the login may not use this much CPU time: raise `ulimit -t` in its profile or in limits.conf",
}

# How a script runs: with empty input to its end, as a `cat` for a copy, or for as long as its input is open.
Kind = Literal["run", "copy", "held"]


class Shell(ABC):
    """A device that runs POSIX shell scripts and holds files.

    Files go through `cat` on the device, not through SFTP: boards with dropbear often have no SFTP server.
    """

    name: str  # "local", "user@host:port" or "adb:SERIAL"
    stall: float = 60.0  # seconds without progress after which a transfer is aborted

    def report(self, line: str) -> None:  # noqa: B027 - most shells report nothing
        """Report a line about something unusual or slow in a connection."""

    @property
    def server(self) -> str:
        """The server of its commands, such as `SSH-2.0-dropbear_2022.83`; empty for this host."""
        return ""

    @property
    @abstractmethod
    def bytes_sent(self) -> int:
        """Bytes sent so far: on the socket for SSH, key exchange included; payload for adb and this host."""

    @property
    @abstractmethod
    def bytes_received(self) -> int:
        """Bytes received so far, counted in the same way."""

    @abstractmethod
    def _open(self, script: str, kind: Kind, timeout: float, size: int = 0) -> Channel:
        """Start a script; the caller closes its channel. A copy gets `size` bytes on its standard input."""

    @abstractmethod
    def stream(self, script: str, *, timeout: float = STREAM_S) -> socket.socket:
        """Start a POSIX sh script whose standard input and output are one stream of bytes; return our end of it.

        The script must end when its input does; over SSH nothing else ends it. The stream has no time limit.

        Raises:
            DeviceError: The script cannot be started within `timeout` seconds, or the connection is lost.
        """

    @abstractmethod
    def check_alive(self, doing: str) -> None:
        """Raise a DeviceError if the connection is lost."""

    @abstractmethod
    def close(self) -> None:
        """End the connection. Closing twice is fine."""

    def run(
        self, script: str, *, timeout: float = 60.0, check: bool = True, max_bytes: int = MAX_OUTPUT
    ) -> process.Result:
        """Run a POSIX sh script with empty input to its end; paths in it must be quoted with `shlex.quote`.

        After `timeout` seconds the script and its children are ended. It may write `max_bytes` to standard output; only
        the end of standard error is kept. The code of a script that a signal ended is 128 + signal, as in a shell.

        Raises:
            DeviceError: It failed under `check`, ran out of time, wrote too much, or the connection or channel is lost.
        """
        who, out = f"a command on {self.name}", io.BytesIO()
        with self._running(script, "run", timeout) as channel:
            try:
                result = self._finish(channel, Bounded(out, max_bytes, who), Limit(timeout), who, script)
            except DeviceError:
                channel.stop()
                raise
        result = process.Result(result.returncode, out.getvalue().decode(errors="replace"), result.stderr)
        # A missing exit code is always an error: the server closed the channel, and the script may still run.
        return check_result(who, script, result) if check or result.returncode == UNKNOWN_CODE else result

    def push(
        self, source: Path, target: str, *, offset: int = 0, progress: Callable[[int], None] | None = None
    ) -> None:
        """Append `source` from byte `offset` on to the file `target`, so that an interrupted upload is resumed.

        A missing file is created, but not its folder. `progress` is called repeatedly with the position in `source`.

        Raises:
            InputError: `source` cannot be read or is shorter than `offset`.
            DeviceError: The device refuses the data or is lost.
        """
        with reading(source, offset) as (stream, remaining):
            script = f"umask 022; exec cat >> {shlex.quote(target)}"
            with self._copying(script, f"writing {target}", remaining) as (channel, finish):
                limit = Limit(
                    self.stall, lambda: (stream.tell(), channel.progress()), self.stall + remaining / _SLOWEST
                )
                try:
                    sent = _pass_on(channel, stream, limit, progress)
                except TimeoutError:
                    raise UnreachableError(f"{self.name} {limit}", hint="check the device and the network") from None
                channel.end_input()
                finish(io.BytesIO(), 0, limit)
            if sent < remaining:
                raise DeviceError(
                    f"{self.name} did not receive the last {remaining - sent} bytes of {source}",
                    hint="resume the upload",
                )

    def pull(self, source: str, target: Path, *, max_bytes: int) -> None:
        """Copy a file of at most `max_bytes` from the device; `target` appears complete or not at all."""
        copying = self._copying(f"exec cat < {shlex.quote(source)}", f"reading {source}")
        with replacing(target) as sink, copying as (_, finish):
            finish(sink, max_bytes, Limit(self.stall, sink.tell, self.stall + max_bytes / _SLOWEST))

    def start(self, script: str) -> RemoteProcess:
        """Start a long-lived POSIX sh script that reads lines from us and writes lines to us."""
        return RemoteProcess(self._open(script, "held", self.stall), self.name, self.check_alive)

    @contextlib.contextmanager
    def _running(self, script: str, kind: Kind, timeout: float, size: int = 0) -> Iterator[Channel]:
        channel = self._open(script, kind, timeout, size)
        try:
            yield channel
        finally:
            channel.close()

    @contextlib.contextmanager
    def _copying(
        self, script: str, doing: str, size: int = 0
    ) -> Iterator[tuple[Channel, Callable[[IO[bytes], int, Limit], None]]]:
        """Start a `cat`; yield its channel, and a function that takes its output and checks its end."""
        who = f"{self.name}, {doing},"

        def finish(sink: IO[bytes], max_bytes: int, limit: Limit) -> None:
            check_result(who, script, self._finish(channel, Bounded(sink, max_bytes, who), limit, who, script))

        with self._running(script, "copy", self.stall, size) as channel:
            yield channel, finish

    def _finish(self, channel: Channel, out: Bounded, limit: Limit, who: str, script: str) -> process.Result:
        """Read a command's output until it ends; `who` is the subject of errors."""
        in_time, stderr = collect(channel, out, limit)
        if not in_time:
            self.check_alive("running a command")
            raise DeviceError(
                f"{who} {limit} and was ended",
                details=f"{process.tail(script)}\n{process.tail(stderr)}".strip(),
            )
        code = UNKNOWN_CODE if channel.code is None else channel.code
        if code < 0:
            self.check_alive("running a command")
        return process.Result(code if code >= UNKNOWN_CODE else SIGNALLED - code, "", stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()


class CountedShell(Shell):
    """A shell that counts payload bytes: of the commands and files that its callers report."""

    _sent = _received = 0

    @property
    def bytes_sent(self) -> int:
        return self._sent

    @property
    def bytes_received(self) -> int:
        return self._received

    def count(self, sent: int = 0, received: int = 0) -> None:
        self._sent += sent
        self._received += received


def check_result(who: str, script: str, result: process.Result) -> process.Result:
    """Return a script's result, or raise a DeviceError if its code is not 0."""
    if result.returncode == 0:
        return result
    ending, hint = ending_of(result.returncode)
    raise DeviceError(
        f"{who} {ending}",
        details=f"{process.tail(script)}\n{process.tail(result.stderr or result.stdout)}".strip(),
        hint=hint,
    )


def ending_of(code: int) -> tuple[str, str]:
    """Return how a failed command ended, and a hint for a signal or a closed channel."""
    if code == UNKNOWN_CODE:
        return (
            "ended without an exit code: the device's server closed its channel",
            "look at the log of the device's SSH server; it may close idle channels (`ChannelTimeout` in sshd_config)",
        )
    number = code - SIGNALLED
    name = signal.Signals(number).name if number in {*signal.Signals} else ""
    if not name:
        return f"failed with exit code {code}", ""
    return f"was ended by the signal {name}", _SIGNAL_HINTS.get(
        name, "log in and look at the device's log: `dmesg | tail`"
    )


def _pass_on(channel: Channel, stream: IO[bytes], limit: Limit, progress: Callable[[int], None] | None) -> int:
    sent = reported = 0
    with contextlib.suppress(BrokenPipeError):
        while channel.code is None and (data := stream.read(PACKET)):
            channel.send(data, limit)
            sent += len(data)
            if progress and sent - reported >= CHUNK:
                progress(stream.tell())
                reported = sent
    if progress and sent > reported:
        progress(stream.tell())
    return sent


@contextlib.contextmanager
def reading(source: Path, offset: int) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file to push it from byte `offset` on, which it must have; yield its stream and the remaining bytes."""
    try:
        stream = source.open("rb")
    except OSError as fault:
        raise InputError(f"cannot read {source}: {fault.strerror}") from fault
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if not 0 <= offset <= size:
            raise InputError(f"cannot resume {source} at byte {offset}: it has {size} bytes")
        stream.seek(offset)
        yield stream, size - offset


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """Yield a stream for the new content of `target`, which replaces it only when the block succeeds."""
    with files.atomic_path(target) as staging, staging.open("wb") as stream:
        yield stream


def fault_text(fault: BaseException) -> str:
    """Return an error's text, or else its type."""
    return str(fault) or type(fault).__name__
