"""This host as a device, for boards that are the host and for tests; no SSH is involved."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from toolchain import process
from toolchain.shell.bounds import Channel, Limit
from toolchain.shell.protocol import CHUNK, HELD, STREAM_S, CountedShell, Kind


class LocalChannel:
    """A command on this host, in a process group of its own.

    `outlived` says whether what it leaves running in the background may stay.
    """

    def __init__(self, command: list[str], *, outlived: bool) -> None:
        self._process = process.spawn(command)
        self._outlived = outlived
        self._input, out, err = self._process.stdin, self._process.stdout, self._process.stderr
        self._outputs = [stream for stream in (out, err) if stream]
        self._open = list(self._outputs)
        if self._input:
            os.set_blocking(self._input.fileno(), False)

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        while self._open:
            ready = _ready(self._open, select.POLLIN, timeout)
            if not ready:
                raise TimeoutError
            out, err = (os.read(stream.fileno(), CHUNK) if stream in ready else None for stream in self._outputs)
            for stream, data in zip(self._outputs, (out, err), strict=True):
                if data == b"":
                    self._open.remove(stream)
            if out or err:
                return out or b"", err or b""
        return b"", b""

    def send(self, data: bytes, limit: Limit) -> None:
        if self._input is None or self._input.closed:
            raise BrokenPipeError
        while data:
            if not _ready([self._input], select.POLLOUT, limit.check()):
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):  # less room than a pipe takes at once
                data = data[os.write(self._input.fileno(), data) :]

    def progress(self) -> object:
        """See `Channel`; a pipe holds too little to wait for."""
        return None

    def end_input(self) -> None:
        if self._input:
            self._input.close()

    def wait(self, timeout: float) -> bool:
        return process.ended(self._process, timeout)

    def stop(self) -> None:
        process.kill_group(self._process)

    def close(self) -> None:
        if self._process.poll() is None or not self._outlived:
            self.stop()
        for stream in (self._input, *self._outputs):
            if stream:
                stream.close()
        self._open = []


def _ready(streams: Sequence[IO[str]], event: int, timeout: float) -> list[IO[str]]:
    """Wait until one of the streams is ready or at its end; `select` itself cannot use descriptors above 1023."""
    poller = select.poll()
    for stream in streams:
        poller.register(stream, event)
    numbers = {number for number, _ in poller.poll(timeout * 1000)}
    return [stream for stream in streams if stream.fileno() in numbers]


class LocalShell(CountedShell):
    """A Shell on this host, for boards that are the host and for tests."""

    name = "local"

    def _open(self, script: str, kind: Kind, timeout: float, size: int = 0) -> Channel:  # noqa: ARG002 - it starts at once
        command = ["/bin/sh", "-c", HELD, "sh", script] if kind == "held" else ["/bin/sh", "-c", script]
        channel = None
        try:
            with process.signals_later():
                channel = LocalChannel(command, outlived=kind != "held")
        except BaseException:
            if channel:
                channel.close()
            raise
        if kind == "run":
            channel.end_input()
        return channel

    def push(
        self, source: Path, target: str, *, offset: int = 0, progress: Callable[[int], None] | None = None
    ) -> None:
        super().push(source, target, offset=offset, progress=progress)
        self.count(sent=source.stat().st_size - offset)

    def pull(self, source: str, target: Path, *, max_bytes: int) -> None:
        super().pull(source, target, max_bytes=max_bytes)
        self.count(received=target.stat().st_size)

    def stream(self, script: str, *, timeout: float = STREAM_S) -> socket.socket:  # noqa: ARG002 - as above
        return process.attach(["/bin/sh", "-c", script])

    def check_alive(self, doing: str) -> None:
        """There is no connection to lose."""

    def close(self) -> None:
        """There is no connection to end."""
