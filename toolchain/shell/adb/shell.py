"""AdbShell: a device over Android's debug bridge, by the client of this host.

The client's exit code is the command's, but also 0 if the device disappears. So a command reports its code itself, as
the last line of its standard error; without that line it has none. A command without a guard reports its process group,
too.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import socket
import time
from collections.abc import Callable

from toolchain import process
from toolchain.errors import DeviceError
from toolchain.shell.adb import client
from toolchain.shell.adb.client import PREFIX
from toolchain.shell.bounds import CLOSE_GRACE, Channel, Limit
from toolchain.shell.local import LocalChannel
from toolchain.shell.protocol import GUARDED, STREAM_S, CountedShell, Kind, Shell

_LONGEST_CODE = 64  # bytes; a line with a code is shorter

# The client and its server accept services of less than 64 KiB.
_LONGEST = 60_000
# As `HELD`, for mksh. A relay in mksh keeps the pipe to the script open even after its output was redirected, unless it
# becomes another program by `exec`. And SIGHUP, which adbd sends once the client is gone, makes mksh end the processes
# that it waits for. The exit code is reported in a line, so no shell has to wait for the script.
_HELD = """
exec 3<&0
sh -c 'trap "" HUP; cat; exec sh -c "$1" sh $0 >/dev/null 2>&1' $$ \\
  'sleep 2; trap "" TERM; kill -TERM -$1; sleep 1; kill -KILL -$1' <&3 3<&- | {
  sh -c "$1" 3<&-
  echo "$2 $?" >&2
  exec 2>/dev/null
  kill -TERM -$$
}
"""
# The end of a copy's input must not end it; and while the device reads nothing, neither that end nor the client's
# reaches it. So it reports its process group first, by which it can be ended.
_COPY = 'echo "$2 - $$" >&2; sh -c "$1"; code=$?; echo "$2 $code" >&2; exit $code'
_END_S = 15.0
_BODIES = {"run": GUARDED, "copy": _COPY, "held": _HELD}


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
        held_back = 0 if ended else _LONGEST_CODE
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


class AdbShell(CountedShell):
    """A Shell over adb; an empty serial is the only device.

    Streams go through commands (`adb shell -T`), also for RPC: a forwarded port would be open to everybody on this
    host, and would outlive us.

    Raises:
        InputError: ANDROID_SERIAL is not a valid serial.
        DeviceError: There is no client or no server, or the device cannot be used.
    """

    def __init__(self, serial: str, stall: float = Shell.stall) -> None:
        self.stall = stall
        self._client = client.program()
        self._serial = client.find(self._client, serial).serial
        self.name = PREFIX + self._serial
        self._last_output: str | None = None
        if client.SHELL_V2 not in client.features(self._client, self._serial):
            raise client.too_old(self.name)

    @property
    def server(self) -> str:
        """The client, such as `adb 29.0.6-debian`."""
        return f"adb {client.version(self._client)}".strip()

    def _argv(self, command: str) -> list[str]:
        if len(command.encode()) > _LONGEST:
            raise DeviceError(
                f"a script for {self.name} is longer than adb accepts",
                details=f"{len(command.encode())} bytes, of at most {_LONGEST}",
                hint="reach the device over SSH, which accepts longer scripts",
            )
        self.count(sent=len(command.encode()))
        return [self._client, "-s", self._serial, "shell", "-T", command]

    def _open(self, script: str, kind: Kind, timeout: float, size: int = 0) -> Channel:  # noqa: ARG002 - the client starts at once
        token = new_token()
        command = self._argv(f"exec sh -c {shlex.join([_BODIES[kind], 'sh', script, token])}")
        channel = None
        try:
            with process.signals_later():
                channel = _CountedChannel(self, command, token, held=kind == "held")
        except BaseException as fault:
            if channel:
                channel.close()
            elif isinstance(fault, OSError):
                raise client.not_started(self._client, fault) from fault
            raise
        return channel

    def end_group(self, group: int) -> None:
        """End processes without a guard, by the process group that they reported."""
        script = f"kill -TERM -{group} && sleep 1 && kill -KILL -{group}"
        with contextlib.suppress(DeviceError):  # the device is gone, and adbd ends the processes
            argv = self._argv(script)
            process.run(argv, timeout=_END_S, check=False, error=DeviceError)

    def stream(self, script: str, *, timeout: float = STREAM_S) -> socket.socket:  # noqa: ARG002 - as above
        try:
            return process.attach(self._argv(f"exec sh -c {shlex.quote(script)}"))
        except OSError as fault:
            raise client.not_started(self._client, fault) from fault

    def lose(self, output: str) -> None:
        """Remember that a command ended without its code, and the client's last output."""
        self._last_output = output

    def check_alive(self, doing: str) -> None:
        """See `Shell`; a device that was lost and came back has none of our commands any more."""
        state = client.state(self._client, self._serial)
        if state != client.READY or self._last_output is not None:
            raise client.gone(client.Attached(self._serial, state), doing, self._last_output or "")

    def close(self) -> None:
        """There is no connection to end: each command has its own."""


class _CountedChannel(AdbChannel):
    """A channel that adds its bytes to the shell's, once."""

    def __init__(self, shell: AdbShell, command: list[str], token: str, *, held: bool) -> None:
        super().__init__(command, token, shell.lose, shell.end_group, held=held)
        self._shell: AdbShell | None = shell

    def close(self) -> None:
        super().close()
        if self._shell:
            self._shell.count(self.sent, self.received)
            self._shell = None
