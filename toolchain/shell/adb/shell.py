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
from toolchain.shell.protocol import GUARDED, STREAM_S, CountedShell, Kind, Shell

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
            raise faults.too_old(self.name)

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
                raise faults.not_started(self._client, fault) from fault
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
            raise faults.not_started(self._client, fault) from fault

    def lose(self, output: str) -> None:
        """Remember that a command ended without its code, and the client's last output."""
        self._last_output = output

    def check_alive(self, doing: str) -> None:
        """See `Shell`; a device that was lost and came back has none of our commands any more."""
        state = client.state(self._client, self._serial)
        if state != faults.READY or self._last_output is not None:
            raise faults.gone(faults.Attached(self._serial, state), doing, self._last_output or "")

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
