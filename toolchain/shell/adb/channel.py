"""A command on an adb device, through a process of the client.

The client's exit code is the command's, but also 0 if the device disappears. So a command reports its code itself, as
the last line of its standard error; without that line it has none. A command without a guard reports its process group,
too.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable

from toolchain.shell.bounds import Limit
from toolchain.shell.local import LocalChannel
from toolchain.shell.remote import CLOSE_GRACE

_LONGEST = 64  # bytes; a line with a code is shorter


class AdbChannel(LocalChannel):
    """A command on an adb device.

    Args:
        command: The client's command line.
        token: The word that the line with the code begins with.
        lost: Called with the client's last output when the command ended without reporting a code.
        end_group: Ends a process group on the device.
        held: Whether the end of its input ends it, which may leave it no time to report its code.
    """

    def __init__(
        self,
        command: list[str],
        token: str,
        lost: Callable[[str], None],
        end_group: Callable[[int], None],
        *,
        held: bool,
    ) -> None:
        super().__init__(command, outlived=True)
        self.sent = self.received = 0
        self._line = re.compile(token.encode() + rb" ([0-9]{1,3}|-)(?: ([0-9]{1,10}))?\n")
        self._lost, self._reported, self._over, self._stopped = lost, -1, False, False
        self._ends_with_input, self._back = held, b""
        self._end_group, self._group = end_group, 0

    @property
    def code(self) -> int | None:
        """See `Channel`; negative for a code that was not reported."""
        return None if super().code is None or not self._over else self._reported

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        """See `Channel`; the line with the code is removed."""
        deadline = time.monotonic() + timeout
        while not self._over:
            out, err = super().receive(max(0.0, deadline - time.monotonic()))
            self.received += len(out) + len(err)
            new_err = self._without_code(err, ended=not (out or err))
            if out or new_err:
                return out, new_err
        return b"", b""

    def _without_code(self, err: bytes, *, ended: bool) -> bytes:
        """Return standard error without the line; a possible beginning of it is held back."""
        self._back += err
        while match := self._line.search(self._back):
            self._reported = self._reported if match[1] == b"-" else int(match[1])
            self._group = int(match[2] or 0)
            self._back = self._back[: match.start()] + self._back[match.end() :]
        held_back = 0 if ended else _LONGEST
        output, self._back = (
            self._back[: max(0, len(self._back) - held_back)],
            self._back[-held_back:] if held_back else b"",
        )
        if ended:
            self._over = True
            if self._reported < 0 and not self._stopped:
                self._lost(output.decode(errors="replace"))
        return output

    def send(self, data: bytes, limit: Limit) -> None:
        super().send(data, limit)
        self.sent += len(data)

    def end_input(self) -> None:
        """See `Channel`; a client that is gone does not take it."""
        self._stopped |= self._ends_with_input
        with contextlib.suppress(BrokenPipeError):
            super().end_input()

    def stop(self) -> None:
        # The guard of a command ends it when its input ends; we wait for that. A copy has no guard, and neither has a
        # background process that a command left with its output: a second command ends their process group.
        self._stopped = True
        self.end_input()
        self._drain(0.0)
        if self._group and not self._over:
            self._end_group(self._group)
        self._drain(0.0 if self._ends_with_input else CLOSE_GRACE)
        super().stop()

    def _drain(self, seconds: float) -> None:
        """Discard its output until it ends or the time is over."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError, OSError, ValueError):
            while any(self.receive(max(0.0, deadline - time.monotonic()))) and time.monotonic() < deadline:
                pass

    def close(self) -> None:
        self._stopped = True
        super().close()


def new_token() -> str:
    """Return a word that no output contains by chance."""
    return secrets.token_hex(16)
