"""AdbShell: a device over Android's debug bridge, by the client of this host."""

from __future__ import annotations

import contextlib
import shlex
import socket

from toolchain import process
from toolchain.errors import DeviceError
from toolchain.shell.adb import client, faults
from toolchain.shell.adb.address import PREFIX
from toolchain.shell.adb.channel import AdbChannel, new_token
from toolchain.shell.bounds import Channel
from toolchain.shell.counted import CountedShell
from toolchain.shell.protocol import GUARDED, STREAM_S, Kind, Shell

# The client and its server take services of less than 64 KiB.
_LONGEST = 60_000
# As `HELD`, for mksh: a shell of that kind which passed its input on keeps the pipe to the script, even when it has
# another output by then, unless it becomes another program; and one that SIGHUP ends, as adbd has it once the client is
# gone, ends those that it waits for. The code goes by a line, and needs no shell that waits.
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
# The end of a copy's input is no reason to end it; and while the device takes none, neither that end nor the client's
# gets through to it. So it says its process group first.
_COPY = 'echo "$2 - $$" >&2; sh -c "$1"; code=$?; echo "$2 $code" >&2; exit $code'
_END_S = 15.0
_BODIES = {"run": GUARDED, "copy": _COPY, "held": _HELD}


class AdbShell(CountedShell):
    """A Shell over adb.

    Streams go through commands (`adb shell -T`), RPC's among them: a forwarded port would be open to all who are on
    this host, and would outlive us.

    Args:
        serial: The device's serial; empty for the only one.
        stall: Seconds without progress after which a transfer is given up.

    Attributes:
        name: "adb:" and the serial.

    Raises:
        InputError: ANDROID_SERIAL has no serial.
        DeviceError: There is no client or no server, or the device cannot be used.
    """

    def __init__(self, serial: str, stall: float = Shell.stall) -> None:
        self.stall = stall
        self._client = client.program()
        self._serial = client.find(self._client, serial).serial
        self.name = PREFIX + self._serial
        self._words: str | None = None
        if client.SHELL_V2 not in client.features(self._client, self._serial):
            raise faults.too_old(self.name)

    @property
    def server(self) -> str:
        """See `Shell.server`; the client, such as `adb 29.0.6-debian`."""
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
        words = self._argv(f"exec sh -c {shlex.join([_BODIES[kind], 'sh', script, token])}")
        channel = None
        try:
            with process.signals_later():
                channel = _Counted(self, words, token, held=kind == "held")
        except BaseException as fault:
            if channel:
                channel.close()
            elif isinstance(fault, OSError):
                raise faults.not_started(self._client, fault) from fault
            raise
        return channel

    def end_group(self, group: int) -> None:
        """End what has no guard, a copy or what a command left with its output, by the process group that it said."""
        script = f"kill -TERM -{group} && sleep 1 && kill -KILL -{group}"
        with contextlib.suppress(DeviceError):  # it is gone, and the cable's end ends it there
            argv = self._argv(script)
            process.run(argv, timeout=_END_S, check=False, error=DeviceError)

    def stream(self, script: str, *, timeout: float = STREAM_S) -> socket.socket:  # noqa: ARG002 - as above
        try:
            return process.attach(self._argv(f"exec sh -c {shlex.quote(script)}"))
        except OSError as fault:
            raise faults.not_started(self._client, fault) from fault

    def lose(self, words: str) -> None:
        """Remember that a command ended without its code, and the client's last words."""
        self._words = words

    def check_alive(self, doing: str) -> None:
        """See `Shell.check_alive`; a device that was lost and came back has none of our commands any more."""
        state = client.state(self._client, self._serial)
        if state != faults.READY or self._words is not None:
            raise faults.gone(faults.Attached(self._serial, state), doing, self._words or "")

    def close(self) -> None:
        """There is no connection to end: each command has its own."""


class _Counted(AdbChannel):
    """A channel whose bytes a shell counts, once."""

    def __init__(self, shell: AdbShell, words: list[str], token: str, *, held: bool) -> None:
        super().__init__(words, token, shell.lose, shell.end_group, held=held)
        self._shell: AdbShell | None = shell

    def close(self) -> None:
        super().close()
        if self._shell:
            self._shell.count(self.sent, self.received)
            self._shell = None
