"""What a device can be asked, and what all who answer share."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol, Self

from toolchain import files, process
from toolchain.errors import DeviceError, InputError

CHUNK = 1 << 20
"""Bytes between two calls of a progress callback."""
CLOSE_GRACE = 4.0
"""Seconds a remote process gets to end once its input is closed: two on its own, then TERM, then KILL."""
STREAM_S = 30.0
"""Seconds for a device to start the script of a stream."""
STDERR_KEPT = 1 << 14
"""Bytes of a process's standard error that are remembered, the last ones."""

# The relay passes standard input on and outlives it: when the input ends, because `close` was called or because
# this program was killed, it ends the script's whole process group. The shell that runs it leads that group.
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


class RemoteProcess(Protocol):
    """A long-lived command on a device, such as the holder of a lock; it dies with its owner."""

    @property
    def stderr(self) -> str:
        """The end of what it wrote to standard error so far."""

    def readline(self, timeout: float) -> str:
        """Return its next line with the newline, or "" at the end of its output.

        Raises:
            DeviceError: Nothing came within `timeout` seconds, or the connection is lost.
        """

    def write(self, text: str) -> None:
        """Send text to its standard input.

        Raises:
            DeviceError: It reads no more.
        """

    def close(self) -> int | None:
        """Close its input, wait a moment, end what is left; return its exit code, or None if it was ended."""


class Shell(Protocol):
    """A device that runs POSIX shell scripts and holds files."""

    @property
    def name(self) -> str:
        """The device's name: "local", or "user@host:port"."""

    @property
    def bytes_sent(self) -> int:
        """Bytes sent so far: on the socket for SSH, key exchange included; pushed payload for this host."""

    @property
    def bytes_received(self) -> int:
        """Bytes received so far, counted in the same way."""

    def run(self, script: str, *, timeout: float = 60.0, check: bool = True) -> process.Result:
        """Run a POSIX sh script with empty input to its end.

        Args:
            script: The script; paths in it must be quoted with `shlex.quote`.
            timeout: Seconds until the script and its children are ended.
            check: Raise on a non-zero exit code.

        Raises:
            DeviceError: It failed under `check`, ran out of time, or the connection is lost.
        """

    def push(
        self, source: Path, target: str, *, offset: int = 0, progress: Callable[[int], None] | None = None
    ) -> None:
        """Append `source` from byte `offset` on to the file `target`, so that a broken upload is resumed.

        Args:
            source: A file on this host.
            target: A path on the device; the file is created when missing, its folder is not.
            offset: Bytes of `source` the device already has.
            progress: Called now and then with the bytes of `source` sent so far, `offset` included.

        Raises:
            InputError: `source` cannot be read or is shorter than `offset`.
            DeviceError: The device refuses the data (its words are in the details) or is lost.
        """

    def pull(self, source: str, target: Path) -> None:
        """Copy a file from the device; `target` appears whole or not at all.

        Raises:
            InputError: `target` cannot be written.
            DeviceError: The device cannot read `source`, or is lost.
        """

    def start(self, script: str) -> RemoteProcess:
        """Start a long-lived POSIX sh script that reads lines from us and writes lines to us."""

    def stream(self, script: str, *, timeout: float = STREAM_S) -> socket.socket:
        """Start a POSIX sh script whose standard input and output are one stream of bytes to and from us.

        Args:
            script: The script. It has to end when its input does; over SSH nothing else ends it.
            timeout: Seconds for the device to start it.

        Returns:
            Our end, without a time limit. The caller closes it, and then nothing of the script is left.

        Raises:
            DeviceError: The script cannot be started, or the connection is lost.
        """

    def close(self) -> None:
        """End the connection. Closing twice is fine."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *fault: object) -> None: ...


def check_result(name: str, script: str, result: process.Result) -> process.Result:
    """Return what a script left behind.

    Raises:
        DeviceError: It ended with a non-zero code; the script and its last words are in the details.
    """
    if result.returncode == 0:
        return result
    raise DeviceError(
        f"a command on {name} failed with exit code {result.returncode}",
        details=f"{process.tail(script)}\n{process.tail(result.stderr or result.stdout)}".strip(),
    )


@contextlib.contextmanager
def reading(source: Path, offset: int) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file to push it from byte `offset` on; give its stream and the number of bytes that are left.

    Raises:
        InputError: It is no readable file, or has fewer than `offset` bytes.
    """
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
    """Give a stream for the new content of `target`, which takes its place only when all went well."""
    with files.atomic_path(target) as part, part.open("wb") as stream:
        yield stream


class LineBuffer:
    """Cuts a stream of bytes into lines of text."""

    def __init__(self) -> None:
        self._data = b""
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Add what was read; nothing read is the end of the stream."""
        self._data += data
        self._ended = not data

    def read(self, receive: Callable[[float], bytes], timeout: float) -> str:
        """Return the next line of what `receive` returns within so many seconds, or raises a TimeoutError for."""
        deadline = time.monotonic() + timeout
        while (line := self.take()) is None:
            self.feed(receive(max(0.0, deadline - time.monotonic())))
        return line

    def take(self) -> str | None:
        """Return the next line with its newline, "" at the end, or None if more must be read first."""
        line, newline, rest = self._data.partition(b"\n")
        if not newline and not self._ended:
            return None
        self._data = rest
        return (line + newline).decode(errors="replace")


def words_of(fault: BaseException) -> str:
    """Return what an error says, or else what it is."""
    return str(fault) or type(fault).__name__
