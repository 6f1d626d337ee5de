"""Commands and files on a device: one Protocol, served by this host or, in `ssh.py`, by an SSH connection."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import select
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self, cast

from toolchain import files, process
from toolchain.errors import DeviceError, InputError

CHUNK = 1 << 20
"""Bytes between two calls of a progress callback."""
CLOSE_GRACE = 4.0
"""Seconds a remote process gets to end once its input is closed: two on its own, then TERM, then KILL."""
_PORTS = range(1, 1 << 16)
_STDERR_KEPT = 1 << 14
_LAST_WORDS = 1.0  # seconds to wait for what a process wrote before it ended
_NAME = re.compile(r"[\w.][\w.-]*")

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

    def close(self) -> None:
        """End the connection. Closing twice is fine."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True)
class SshOptions:
    """How SSH connections are made; the defaults are those of the `ssh` command.

    Attributes:
        ssh_dir: The folder that stands for ~/.ssh, which is the default.
        config_file: Configuration to read instead of `ssh_dir`/config.
        known_hosts: Files of trusted host keys, instead of the configured and the system-wide ones.
        identity: Private key to try first.
        password: Password to try last.
        agent: Whether the keys of a running SSH agent are tried.
        connect_timeout: Seconds for each hop to connect and to exchange keys; None is the configured
            ConnectTimeout, or 10.
        stall_timeout: Seconds without progress after which a transfer is given up.
        keepalive: Seconds of silence after which a sign of life is sent; after three of them without an
            answer the connection counts as lost. 0 is never.
    """

    ssh_dir: Path | None = None
    config_file: Path | None = None
    known_hosts: tuple[Path, ...] = ()
    identity: Path | None = None
    password: str | None = field(default=None, repr=False)
    agent: bool = True
    connect_timeout: float | None = None
    stall_timeout: float = 60.0
    keepalive: int = 15


_DEFAULTS = SshOptions()


@dataclass(frozen=True)
class Address:
    """What a user wrote: a host name, an alias of the SSH configuration or an IP address, perhaps with more."""

    host: str
    user: str | None = None
    port: int | None = None


def parse_address(text: str) -> Address:
    """Read `[user@]host[:port]`, where an IPv6 address with a port stands in brackets.

    Raises:
        InputError: The text is no such address.
    """
    user, at, place = text.rpartition("@")
    host, port = _split_port(text, place)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _NAME.fullmatch(host):
            raise _no_address(text, f"{host!r} is no host name and no IP address") from None
    if at and not _NAME.fullmatch(user):
        raise _no_address(text, f"{user!r} is no user name")
    return Address(host, user or None, port)


def _split_port(text: str, place: str) -> tuple[str, int | None]:
    """Split `host:port`, `[v6]:port` or a bare IPv6 address."""
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        if ":" not in host or (rest and not rest.startswith(":")) or "]" not in place:
            raise _no_address(text, "brackets hold an IPv6 address, and only a port follows them")
        return host, _port(text, rest[1:]) if rest else None
    if place.count(":") != 1:
        return place, None
    host, _, number = place.partition(":")
    return host, _port(text, number)


def _port(text: str, number: str) -> int:
    if not (number.isascii() and number.isdigit()) or int(number) not in _PORTS:
        raise _no_address(text, f"{number!r} is no port from 1 to 65535")
    return int(number)


def _no_address(text: str, why: str) -> InputError:
    return InputError(
        f"{text!r} is no address of a device",
        details=why,
        hint="write user@host, user@host:port or user@[IPv6 address]:port",
    )


def command_failed(name: str, script: str, result: process.Result) -> DeviceError:
    """Return the error for a script that ended with a non-zero code, with the script and its last words."""
    words = process.tail(result.stderr or result.stdout)
    return DeviceError(
        f"a command on {name} failed with exit code {result.returncode}",
        details=f"{process.tail(script)}\n{words}".strip(),
    )


def check_source(source: Path, offset: int) -> int:
    """Return the size of a file to push, in bytes.

    Raises:
        InputError: It is no readable file, or has fewer than `offset` bytes.
    """
    with reading(source) as stream:
        size = os.fstat(stream.fileno()).st_size
    if not 0 <= offset <= size:
        raise InputError(f"cannot resume {source} at byte {offset}: it has {size} bytes")
    return size


@contextlib.contextmanager
def reading(source: Path) -> Iterator[IO[bytes]]:
    """Open a file of this host to push it; what cannot be opened is an InputError."""
    try:
        stream = source.open("rb")
    except OSError as fault:
        raise InputError(f"cannot read {source}: {fault.strerror}") from fault
    with stream:
        yield stream


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

    def take(self) -> str | None:
        """Return the next line with its newline, "" at the end, or None if more must be read first."""
        line, newline, rest = self._data.partition(b"\n")
        if not newline and not self._ended:
            return None
        self._data = rest
        return (line + newline).decode(errors="replace")


class LocalProcess:
    """A RemoteProcess on this host."""

    def __init__(self, script: str) -> None:
        self._process = process.spawn(["/bin/sh", "-c", HELD, "sh", script])
        self._stdin, self._stdout, self._stderr = (
            cast("IO[str]", stream) for stream in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        self._lines = LineBuffer()
        self._ended = False
        self._words = b""
        # It is read all the time: a process that writes more than fits into the pipe would stop.
        self._listener = threading.Thread(target=self._listen, name="stderr of a local process", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        with self._stderr:
            while data := os.read(self._stderr.fileno(), CHUNK):
                self._words = (self._words + data)[-_STDERR_KEPT:]

    @property
    def stderr(self) -> str:
        """The end of what it wrote to standard error so far."""
        if self._ended:  # and so its last words are on their way, unless what it has started keeps standard error open
            self._listener.join(_LAST_WORDS)
        return self._words.decode(errors="replace")

    def readline(self, timeout: float) -> str:
        """See `RemoteProcess.readline`."""
        deadline = time.monotonic() + timeout
        while (line := self._lines.take()) is None:
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise DeviceError(f"a process on local wrote no line within {timeout:g} s", details=self.stderr)
            data = os.read(self._stdout.fileno(), CHUNK)
            self._ended = self._ended or not data
            self._lines.feed(data)
        return line

    def write(self, text: str) -> None:
        """See `RemoteProcess.write`."""
        try:
            self._stdin.write(text)
            self._stdin.flush()
        except (OSError, ValueError) as fault:
            raise DeviceError("a process on local reads no more input", details=self.stderr) from fault

    def close(self) -> int | None:
        """See `RemoteProcess.close`."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        deadline = time.monotonic() + CLOSE_GRACE
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill_group(self._process)
        self._stdout.close()
        self._listener.join(_LAST_WORDS)  # which closes standard error
        code = self._process.returncode
        return code if code is not None and code >= 0 else None


class LocalShell:
    """A Shell on this host, for boards that are the host and for tests; no SSH is involved."""

    name = "local"

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0

    def run(self, script: str, *, timeout: float = 60.0, check: bool = True) -> process.Result:
        """See `Shell.run`."""
        result = process.run(["/bin/sh", "-c", script], timeout=timeout, check=False, error=DeviceError)
        if check and result.returncode != 0:
            raise command_failed(self.name, script, result)
        return result

    def push(
        self, source: Path, target: str, *, offset: int = 0, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Shell.push`."""
        check_source(source, offset)
        with reading(source) as stream, self._device(target), Path(target).open("ab", buffering=0) as sink:
            stream.seek(offset)
            while data := stream.read(CHUNK):
                _write_all(sink, data)
                self.bytes_sent += len(data)
                if progress:
                    progress(stream.tell())

    def pull(self, source: str, target: Path) -> None:
        """See `Shell.pull`."""
        with replacing(target) as sink, self._device(source), Path(source).open("rb") as stream:
            shutil.copyfileobj(stream, sink, CHUNK)
            self.bytes_received += stream.tell()

    @contextlib.contextmanager
    def _device(self, path: str) -> Iterator[None]:
        """Report a failing file operation in the words the device's `cat` would have used."""
        try:
            yield
        except OSError as fault:
            raise DeviceError(f"cannot copy {path} on local", details=f"{path}: {fault.strerror}") from fault

    def start(self, script: str) -> LocalProcess:
        """See `Shell.start`."""
        return LocalProcess(script)

    def close(self) -> None:
        """There is no connection to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write_all(sink: IO[bytes], data: bytes) -> None:
    """Write to an unbuffered file, which may take less than it is given, as on a disk that gets full."""
    view = memoryview(data)
    while view:
        view = view[sink.write(view) :]


def open_shell(host: str | None, *, config: SshOptions = _DEFAULTS) -> Shell:
    """Return a shell on this host if `host` is None, else one over SSH.

    Args:
        host: `[user@]host[:port]`, where host may be an alias of the SSH configuration.
        config: Files, credentials and time limits of the connection.

    Raises:
        InputError: The address or the SSH configuration is wrong.
        VerificationError: The host key is unknown, changed or revoked; nothing was sent to the device.
        DeviceError: The device cannot be reached or refuses us.
    """
    if host is None:
        return LocalShell()
    from toolchain.ssh import SshShell  # noqa: PLC0415 - paramiko takes 0.1 s that a local run need not pay

    return SshShell(parse_address(host), config)
