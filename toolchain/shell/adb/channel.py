"""A command on a device of adb, whose streams a process of the client carries.

The client's exit code is the command's, and 0 as well if the device is gone in the middle. So a command says its code
itself, as the last line of its standard error; without that line it has none. One that has
no guard says its process group, too.
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

_LONGEST = 64  # more bytes than a line with a code has


class AdbChannel(LocalChannel):
    """A command on a device of adb.

    Args:
        words: The client's command line.
        token: The word that the line with the code begins with.
        lost: Called with the client's last words when the command ended and said no code.
        end_group: Ends a process group on the device.
        held: Whether the end of its input ends it, which may leave it no time to say its code.
    """

    def __init__(
        self,
        words: list[str],
        token: str,
        lost: Callable[[str], None],
        end_group: Callable[[int], None],
        *,
        held: bool,
    ) -> None:
        super().__init__(words, outlived=True)
        self.sent = self.received = 0
        self._line = re.compile(token.encode() + rb" ([0-9]{1,3}|-)(?: ([0-9]{1,10}))?\n")
        self._lost, self._told, self._over, self._stopped = lost, -1, False, False
        self._ends_with_input, self._back = held, b""
        self._end_group, self._group = end_group, 0

    @property
    def code(self) -> int | None:
        """See `Channel.code`; negative for one that nobody told."""
        return None if super().code is None or not self._over else self._told

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        """See `Channel.receive`; the line with the code is left out."""
        deadline = time.monotonic() + timeout
        while not self._over:
            out, err = super().receive(max(0.0, deadline - time.monotonic()))
            self.received += len(out) + len(err)
            words = self._without_code(err, ended=not (out or err))
            if out or words:
                return out, words
        return b"", b""

    def _without_code(self, err: bytes, *, ended: bool) -> bytes:
        """Return what may be passed on of standard error; what may be the beginning of the line is held back."""
        self._back += err
        while found := self._line.search(self._back):
            self._told = self._told if found[1] == b"-" else int(found[1])
            self._group = int(found[2] or 0)
            self._back = self._back[: found.start()] + self._back[found.end() :]
        kept = 0 if ended else _LONGEST
        words, self._back = self._back[: max(0, len(self._back) - kept)], self._back[-kept:] if kept else b""
        if ended:
            self._over = True
            if self._told < 0 and not self._stopped:
                self._lost(words.decode(errors="replace"))
        return words

    def send(self, data: bytes, limit: Limit) -> None:
        super().send(data, limit)
        self.sent += len(data)

    def end_input(self) -> None:
        """See `Channel.end_input`; a client that is gone takes no end of it."""
        self._stopped |= self._ends_with_input
        with contextlib.suppress(BrokenPipeError):
            super().end_input()

    def stop(self) -> None:
        """See `Channel.stop`. The guard of the command ends it when its input ends; waiting for that makes it true.

        A copy has no guard, nor has what a command left with its output: their process group is ended by a command.
        """
        self._stopped = True
        self.end_input()
        self._drain(0.0)
        if self._group and not self._over:
            self._end_group(self._group)
        self._drain(0.0 if self._ends_with_input else CLOSE_GRACE)
        super().stop()

    def _drain(self, seconds: float) -> None:
        """Take what it says, and throw it away, until it ends or the time is over."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError, OSError, ValueError):
            while any(self.receive(max(0.0, deadline - time.monotonic()))) and time.monotonic() < deadline:
                pass

    def close(self) -> None:
        self._stopped = True
        super().close()


def new_token() -> str:
    """Return a word that no output has by chance."""
    return secrets.token_hex(16)
