"""Many commands through one channel: a shell on the device reads scripts one after the other.

A login may take seconds, because of its profile or a directory service, and a deploy has dozens of commands. Each
command of a session ends with a line with its own token on both outputs, so its output may be arbitrary.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable

from toolchain.shell.bounds import Channel, Limit
from toolchain.shell.protocol import CHUNK, GUARDED, Kind

_READY = b"ready\n"
_CODE_BYTES = 5  # a space, an exit code and a line end

# A command is the line `SECRET KIND SIZE TOKEN`, its script, and a line with the token. Without the secret, which is
# $1, the line is part of a file whose copy failed, and the shell ends. A command that runs is in a session of its own
# (setsid), which its guard can end as a whole; a copy gets SIZE bytes of the channel. The outputs go through a
# `cat` each, so that a command has ended only when nothing that it started may still write into the next one's output.
SERVE = r"""
command -v setsid >/dev/null || exit 9
n=$(echo; echo x); n=${n%x}
exec 3<&0 4>&1 5>&2
run() { exec 3>&- 4>&- 5>&- 6>&- 7>&-; exec setsid sh -c "$guarded" sh "$script"; }
copy() {
  exec 3>&- 4>&- 5>&- 6>&- 7>&-
  if [ "$size" = 0 ]; then exec sh -c "$script" </dev/null; fi
  head -c "$size" | sh -c "$script"
}
echo ready
while read -r secret kind size token && [ "$secret" = "$1" ]; do
  script=
  while IFS= read -r line || exit 1; do
    [ "$line" != "$token" ] || break
    script=$script$line$n
  done
  code=$({ {
    { ("$kind") <&3; echo $? >&6; } 2>&1 >&7 7>&- | cat >&5 6>&- 7>&-
  } 7>&1 | cat >&4 6>&-; } 6>&1)
  echo "$token ${code:-255}" >&2
  echo "$token ${code:-255}"
done
"""


def server_script() -> str:
    quoted = GUARDED.replace("'", "'\"'\"'")
    return f"guarded='{quoted}'\n{SERVE}"


class Session:
    """A shell on the device, started with `server_script` and a secret, that runs one command after the other."""

    def __init__(self, channel: Channel, secret: str) -> None:
        self._channel, self._secret = channel, secret
        self.usable = True

    def is_ready(self, timeout: float) -> bool:
        """Wait until it accepts commands; False on a device that lacks its tools, such as setsid."""
        greeting, limit = b"", Limit(timeout)
        while _READY not in greeting and (remaining := limit.left()) > 0:
            try:
                out, err = self._channel.receive(remaining)
            except TimeoutError:
                break
            if not out and not err:
                break
            greeting += out
            if len(greeting) + len(err) > len(_READY):
                break
        self.usable = greeting == _READY
        return self.usable

    @property
    def ended(self) -> bool:
        """Whether it ended while no command ran: a server may close an idle channel."""
        try:
            self._channel.receive(0)
        except TimeoutError:
            return False
        return True  # output now belongs to no command

    def start(self, script: str, kind: Kind, size: int, limit: Limit, released: Callable[[], None]) -> SessionChannel:
        """Start a command; no other may run. A copy gets `size` bytes; `released` is called when it is closed.

        Raises:
            TimeoutError: The device does not take it in time.
            BrokenPipeError: The channel is closed.
        """
        token = secrets.token_hex(8)
        self.usable = False  # until the command has ended as it should
        self._channel.send(f"{self._secret} {kind} {size} {token}\n{script}\n{token}\n".encode(), limit)
        return SessionChannel(self, self._channel, token, size, released)

    def close(self) -> None:
        self.usable = False
        self._channel.close()


class _Output:
    """One output of a command, up to the line with its token."""

    def __init__(self, token: str) -> None:
        self._end = re.compile(token.encode() + rb" ([0-9]{1,3})\n")
        self._longest = len(token) + _CODE_BYTES
        self._data = b""
        self._ready = 0
        self.code: int | None = None

    def feed(self, data: bytes) -> None:
        searched = max(0, len(self._data) - self._longest)
        self._data += data
        if match := self._end.search(self._data, searched):
            self._data, self.code = self._data[: match.start()], int(match[1])

    def take(self, *, ended: bool) -> bytes:
        """Return the output so far, without its end, which may be the beginning of the last line."""
        held_back = 0 if ended or self.code is not None else self._longest
        end = max(0, len(self._data) - held_back)
        data, self._data = self._data[:end], self._data[end:]
        return data

    @property
    def size(self) -> int:
        return len(self._data)


class SessionChannel:
    """A command of a session; see `Channel`. It reads `size` bytes, and calls `released` when it is closed."""

    def __init__(self, session: Session, channel: Channel, token: str, size: int, released: Callable[[], None]) -> None:
        self._session, self._channel, self._released = session, channel, released
        self._unsent = size
        self._out, self._err = _Output(token), _Output(token)
        self._lost = self._closed = False

    @property
    def code(self) -> int | None:
        """See `Channel`; a copy that ends early is noticed here, while its input is still being sent."""
        if not self._over and self._out.size + self._err.size < CHUNK:
            try:
                self._absorb(0)
            except TimeoutError:
                return None
        if self._lost:
            return self._channel.code
        return self._out.code if self._over else None

    @property
    def _over(self) -> bool:
        return self._lost or (self._out.code is not None and self._err.code is not None)

    def _absorb(self, timeout: float) -> None:
        out, err = self._channel.receive(timeout)
        self._lost = not out and not err
        self._out.feed(out)
        self._err.feed(err)

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + timeout
        while True:
            out, err = self._out.take(ended=self._over), self._err.take(ended=self._over)
            if out or err or self._over:
                return out, err
            self._absorb(max(0.0, deadline - time.monotonic()))

    def send(self, data: bytes, limit: Limit) -> None:
        if len(data) > self._unsent:
            raise BrokenPipeError
        self._channel.send(data, limit)
        self._unsent -= len(data)

    def progress(self) -> object:
        return self._channel.progress()

    def end_input(self) -> None:
        """See `Channel`; a command's input ends by its size, unless less is sent."""
        if self._unsent:
            self._channel.end_input()

    def wait(self, timeout: float) -> bool:
        """See `Channel`; once all output was read, the command has ended."""
        return self._channel.wait(timeout) if self._lost else self._over

    def stop(self) -> None:
        """See `Channel`; the session ends with it."""
        if not self._over:
            self._channel.stop()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._session.usable = self._over and not self._lost and not self._unsent
            try:
                if not self._session.usable:
                    self._session.close()
            finally:
                self._released()
