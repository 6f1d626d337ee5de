"""This host as a device, for boards that are the host and for tests; no SSH is involved."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self, cast

from toolchain import process
from toolchain.errors import DeviceError
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
)

_LAST_WORDS = 1.0  # seconds to wait for what a process wrote before it ended


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
                self._words = (self._words + data)[-STDERR_KEPT:]

    @property
    def stderr(self) -> str:
        """The end of what it wrote to standard error so far."""
        if self._ended:  # and so its last words are on their way, unless what it has started keeps standard error open
            self._listener.join(_LAST_WORDS)
        return self._words.decode(errors="replace")

    def readline(self, timeout: float) -> str:
        """See `RemoteProcess.readline`."""
        try:
            return self._lines.read(self._receive, timeout)
        except TimeoutError:
            message = f"a process on local wrote no line within {timeout:g} s"
            raise DeviceError(message, details=self.stderr) from None

    def _receive(self, timeout: float) -> bytes:
        ready, _, _ = select.select([self._stdout], [], [], timeout)
        if not ready:
            raise TimeoutError
        data = os.read(self._stdout.fileno(), CHUNK)
        self._ended = self._ended or not data
        return data

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
        return check_result(self.name, script, result) if check else result

    def push(
        self, source: Path, target: str, *, offset: int = 0, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Shell.push`."""
        with (
            reading(source, offset) as (stream, _),
            self._device(target),
            Path(target).open("ab", buffering=0) as sink,
        ):
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

    def stream(self, script: str, *, timeout: float = STREAM_S) -> socket.socket:  # noqa: ARG002 - it starts at once
        """See `Shell.stream`."""
        return process.attach(["/bin/sh", "-c", script])

    def close(self) -> None:
        """There is no connection to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()


def _write_all(sink: IO[bytes], data: bytes) -> None:
    """Write to an unbuffered file, which may take less than it is given, as on a disk that gets full."""
    view = memoryview(data)
    while view:
        view = view[sink.write(view) :]
