"""A long-running command on a device that exchanges lines with us, such as the holder of a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable

from toolchain.errors import DeviceError
from toolchain.shell.bounds import MAX_OUTPUT, STDERR_KEPT, Channel, Limit, LineBuffer

# Seconds for a remote process to end once its input is closed: two by itself, then after TERM, then after KILL.
CLOSE_GRACE = 4.0
_LAST_OUTPUT_S = 1.0  # to read the last output of a process that has ended
_LOOK_S = 1.0
_WRITE_S = 60.0


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
