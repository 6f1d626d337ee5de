"""Limits on the size and the time of a device's output, which may be arbitrary and endless.

A long-running command, such as the holder of a lock, exchanges lines within these limits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import IO, Protocol

from toolchain.errors import DeviceError

MAX_OUTPUT = 1 << 20  # bytes of a script's output by default, and of one line of a process
STDERR_KEPT = 1 << 14  # bytes at the end of standard error that are kept
_LOOK_S = 1.0  # interval of checks for progress

# Seconds for a remote process to end once its input is closed: two by itself, then after TERM, then after KILL.
CLOSE_GRACE = 4.0
_LAST_OUTPUT_S = 1.0  # to read the last output of a process that has ended
_WRITE_S = 60.0


class Channel(Protocol):
    """A command that runs on a device."""

    @property
    def code(self) -> int | None:
        """Its exit code, once it is known; negative if a signal ended it, or the code was lost."""

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        """Return new standard output and standard error; both empty at the end of both.

        Raises:
            TimeoutError: Nothing came in time.
        """

    def send(self, data: bytes, limit: Limit) -> None:
        """Write to its standard input.

        Raises:
            TimeoutError: It does not read it within the limit.
            BrokenPipeError: It does not read any more.
        """

    def progress(self) -> object:
        """Return a value that changes whenever the device takes more of what was sent."""

    def end_input(self) -> None: ...

    def wait(self, timeout: float) -> bool:
        """Wait for its end; return whether it has ended."""

    def stop(self) -> None:
        """End it, and wait until it has ended."""

    def close(self) -> None:
        """Close its streams, and end it. Closing twice is fine."""


class Limit:
    """A time limit, by a monotonic clock.

    Args:
        seconds: The longest duration; with `progress`, the longest time without progress.
        progress: Returns a value that changes with each progress.
        in_all: The longest duration in any case.
    """

    def __init__(
        self, seconds: float, progress: Callable[[], object] = lambda: None, in_all: float = float("inf")
    ) -> None:
        self._seconds = seconds
        self._progress, self._last = progress, progress()
        self._since = time.monotonic()
        self._end = self._since + in_all

    def left(self) -> float:
        """Return the remaining seconds; 0 or less if the time is over."""
        now, current = time.monotonic(), self._progress()
        if current != self._last:
            self._last, self._since = current, now
        return min(self._since + self._seconds, self._end) - now

    def check(self) -> float:
        """Return the remaining seconds, or raise a TimeoutError if there are none."""
        if (remaining := self.left()) <= 0:
            raise TimeoutError
        return remaining

    def __str__(self) -> str:
        if self._last is None:
            return f"did not finish within {self._seconds:g} s"
        return "is too slow" if time.monotonic() > self._end else f"moved no data for {self._seconds:g} s"


class Bounded:
    """A stream that raises a DeviceError after `limit` bytes; `who` is the subject of the error."""

    def __init__(self, sink: IO[bytes], limit: int, who: str) -> None:
        self.size = 0
        self._sink, self._limit, self._who = sink, limit, who

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._limit:
            raise DeviceError(
                f"{self._who} wrote more than {self._limit} bytes and was ended",
                details="no valid answer is longer than that",
                hint="log in and check which program answers on the device; it may be broken or hostile",
            )
        self._sink.write(data)


def collect(channel: Channel, out: Bounded, limit: Limit) -> tuple[bool, str]:
    """Read a command's outputs to their end; return whether it ended within the limit, and the end of its stderr."""
    err = bytearray()
    ended = False
    while not ended and (remaining := limit.left()) > 0:
        try:
            new_out, new_err = channel.receive(min(remaining, _LOOK_S))
        except TimeoutError:
            continue
        out.write(new_out)
        err += new_err
        del err[:-STDERR_KEPT]
        ended = not (new_out or new_err)
    in_time = ended and channel.wait(max(0.0, limit.left()))
    return in_time, err.decode(errors="replace")


class LineBuffer:
    """Cuts a stream of bytes into lines of text; the reader must stop while it is full."""

    def __init__(self, limit: int = MAX_OUTPUT) -> None:
        self._data = bytearray()
        self._limit = limit
        self._searched = 0
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Add data; empty data is the end of the stream."""
        self._data += data
        self.ended = not data

    @property
    def is_full(self) -> bool:
        """Whether lines must be taken before more is read."""
        return len(self._data) >= self._limit

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns something."""
        if self._data.find(b"\n", self._searched) >= 0:
            return True
        self._searched = len(self._data)
        return self.ended

    def take(self) -> str | None:
        """Return the next line with its newline, "" at the end, or None if more must be read first."""
        if not self.is_ready:
            return None
        end = self._data.find(b"\n", self._searched) + 1 or len(self._data)
        line = self._data[:end].decode(errors="replace")
        del self._data[:end]
        self._searched = 0
        return line


class RemoteProcess:
    """A long-running command on a device, which ends with this process.

    A thread reads its output at all times, as it would block otherwise, and buffers it up to a limit.
    """

    def __init__(self, channel: Channel, device: str, check_alive: Callable[[str], None]) -> None:
        self._channel, self._device, self._check_alive = channel, device, check_alive
        self._lines = LineBuffer()
        self._stderr = b""
        self._closed = False
        self._changed = threading.Condition()
        self._listener = threading.Thread(target=self._listen, name=f"reader of {device}", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        while not (self._closed or self._lines.ended):
            try:
                new_out, new_err = self._channel.receive(_LOOK_S)
            except TimeoutError:
                continue
            except (OSError, ValueError):  # it is being closed
                new_out = new_err = b""
            with self._changed:
                self._stderr = (self._stderr + new_err)[-STDERR_KEPT:]
                if new_out or not new_err:
                    self._lines.feed(new_out)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or not self._lines.is_full)

    @property
    def stderr(self) -> str:
        """The end of its standard error so far."""
        return self._stderr.decode(errors="replace")

    def readline(self, timeout: float) -> str:
        """Return its next line with the newline, or "" at the end of its output.

        Raises:
            DeviceError: No line came within `timeout` seconds, one is too long, or the connection is lost.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lines.is_ready or self._lines.is_full, timeout)
            line = self._lines.take()
            too_long = line is None and self._lines.is_full
            self._changed.notify_all()
        if too_long:
            raise DeviceError(f"a process on {self._device} wrote a line longer than {MAX_OUTPUT} bytes")
        if line is None:
            message = f"a process on {self._device} wrote no line within {timeout:g} s"
            raise DeviceError(message, details=self.stderr)
        if not line:
            self._check_alive("reading from a process")
        return line

    def write(self, text: str) -> None:
        """Send text to its standard input; raises a DeviceError if it does not read any more."""
        try:
            self._channel.send(text.encode(), Limit(_WRITE_S))
        except (OSError, ValueError) as fault:
            self._check_alive("writing to a process")
            message = f"a process on {self._device} does not read its input any more"
            raise DeviceError(message, details=self.stderr) from fault

    def close(self) -> int | None:
        """Close its input, and end it if it does not end soon; return its exit code, or None if it was ended."""
        if not self._closed:
            self._channel.end_input()
            if self._channel.wait(CLOSE_GRACE):
                self._listener.join(_LAST_OUTPUT_S)
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._listener.join(2 * _LOOK_S)
            self._channel.close()
        code = self._channel.code
        return code if code is not None and code >= 0 else None
