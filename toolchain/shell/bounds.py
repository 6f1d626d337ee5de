"""How much, and for how long, we listen to a device: it may say anything, and without an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, Protocol

from toolchain.errors import DeviceError

MOST_SAID = 1 << 20  # bytes of a script's output, or of one line of a process, unless the caller knows better
STDERR_KEPT = 1 << 14  # bytes of standard error that are remembered, the last ones
_LOOK_S = 1.0  # how often we look for progress


class Channel(Protocol):
    """A command that runs on a device, whatever carries its streams."""

    @property
    def code(self) -> int | None:
        """Its exit code, once it is known; negative if a signal ended it, or nobody told."""

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        """Return what came of standard output and of standard error; nothing of both is the end of both.

        Raises:
            TimeoutError: Nothing came in time.
        """

    def send(self, data: bytes, limit: Limit) -> None:
        """Write to its standard input.

        Raises:
            TimeoutError: It does not take it within the limit.
            BrokenPipeError: It reads no more.
        """

    def progress(self) -> object:
        """Return what changes when the device takes more of what was sent."""

    def end_input(self) -> None:
        """Let its standard input end."""

    def wait(self, timeout: float) -> bool:
        """Wait until it has ended, and tell whether it has."""

    def stop(self) -> None:
        """End it, if it has not ended, and see that it does."""

    def close(self) -> None:
        """Give up its streams, and end what is left of it. Closing twice is fine."""


class Limit:
    """A time limit, by a clock that nobody sets.

    Args:
        seconds: How long something may take; with `progress`, since the last one.
        progress: Returns what changes with each progress.
        in_all: Seconds that it may take in any case.
    """

    def __init__(
        self, seconds: float, progress: Callable[[], object] = lambda: None, in_all: float = float("inf")
    ) -> None:
        self._seconds = seconds
        self._progress, self._seen = progress, progress()
        self._since = time.monotonic()
        self._end = self._since + in_all

    def left(self) -> float:
        """Return the seconds that are left; 0 or less if none are."""
        now, seen = time.monotonic(), self._progress()
        if seen != self._seen:
            self._seen, self._since = seen, now
        return min(self._since + self._seconds, self._end) - now

    def check(self) -> float:
        """Return the seconds that are left.

        Raises:
            TimeoutError: None are.
        """
        if (left := self.left()) <= 0:
            raise TimeoutError
        return left

    def __str__(self) -> str:
        """Say what was missed."""
        if self._seen is None:
            return f"did not finish within {self._seconds:g} s"
        return "is too slow" if time.monotonic() > self._end else f"moved no data for {self._seconds:g} s"


class Bounded:
    """A stream that takes no more than so many bytes.

    Args:
        sink: What takes them.
        most: How many.
        who: Says them, for the error.
    """

    def __init__(self, sink: IO[bytes], most: int, who: str) -> None:
        self.size = 0
        self._sink, self._most, self._who = sink, most, who

    def write(self, data: bytes) -> None:
        """Pass on what was said.

        Raises:
            DeviceError: It is too much.
        """
        self.size += len(data)
        if self.size > self._most:
            raise DeviceError(
                f"{self._who} wrote more than {self._most} bytes and was ended",
                details="no valid answer is longer than that",
                hint="log in and check which program answers on the device; it may be broken or hostile",
            )
        self._sink.write(data)


def collect(channel: Channel, out: Bounded, limit: Limit) -> tuple[bool, str]:
    """Read what a command writes to the end of both outputs, and wait for its exit code.

    Args:
        channel: The command.
        out: Takes its standard output.
        limit: When to give up.

    Returns:
        Whether it ended in time, and the end of its standard error.

    Raises:
        DeviceError: It wrote more than `out` takes.
    """
    err = bytearray()
    ended = False
    while not ended and (left := limit.left()) > 0:
        try:
            said, words = channel.receive(min(left, _LOOK_S))
        except TimeoutError:
            continue
        out.write(said)
        err += words
        del err[:-STDERR_KEPT]
        ended = not (said or words)
    in_time = ended and channel.wait(max(0.0, limit.left()))
    return in_time, err.decode(errors="replace")


class LineBuffer:
    """Cuts a stream of bytes into lines of text, and says when there is no room for more of it."""

    def __init__(self, most: int = MOST_SAID) -> None:
        self._data = bytearray()
        self._most = most
        self._searched = 0
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Add what was read; nothing read is the end of the stream."""
        self._data += data
        self.ended = not data

    @property
    def is_full(self) -> bool:
        """Whether lines must be taken before more is read."""
        return len(self._data) >= self._most

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
