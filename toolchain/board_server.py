"""The RPC server on a device: pushed where it is missing or outdated, started over a shell, ended with it."""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from toolchain import deploy
from toolchain.deploy import Progress, Shipment
from toolchain.device_runtime import BOARD_SERVER, Program
from toolchain.errors import DeviceError, InputError
from toolchain.shell import RemoteProcess, Shell
from toolchain.store import Store

SESSION_EXPIRED = "RPCSessionTimeoutError: session "
"""In the client's error when a session lasted too long; "timeout of 5 s reached" or "limit of 5 s reached" follows,
which is the client's or the server's own."""
PROCESS_ENDED = "the session's process "
"""In the client's error when what it ran ended the process; "was ended by signal 11 (SIGSEGV)", "was ended by signal 9
(SIGKILL: ...)", which is also what a lack of memory looks like, or "ended by itself with code 7" follows."""
_START_S = 30.0
_EVENT = "session "
_OK, _ERROR = "ok ", "error "
_LISTENING = re.compile(r"listening on (\S+):(\d+)\n")


@dataclass(frozen=True)
class Server:
    """A board server that runs on a device. It ends when `stop` is called, or with the connection to the device.

    Attributes:
        address: Where it listens on the device, loopback unless it was told otherwise.
        port: Its TCP port there.
        process: Its process.
        device: Name of the device.
        events: What it told of its sessions so far, as far as `control` has read it: "session 3 begins",
            "session 3 ends: well", or what went wrong in place of "well".
    """

    address: str
    port: int
    process: RemoteProcess
    device: str = "the device"
    events: list[str] = field(default_factory=list)
    _owed: list[str] = field(default_factory=list, repr=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def control(self, line: str, timeout_s: float = 10.0) -> str:
        """Give an order to a server that was started with `--control`.

        Args:
            line: "key NAME" to be known at the tracker under that name from now on, or "withdraw" to leave it.
            timeout_s: Seconds to wait for the answer.

        Returns:
            The answer: "ok " and the order.

        Raises:
            InputError: The order is not one line.
            DeviceError: It refuses the order, does not answer, or has ended.
        """
        if not line or "\n" in line:
            raise InputError(f"an order to a board server is one line, not {line!r}")
        with self._turn:
            self._owed.append(line)
            self.process.write(line + "\n")
            answer = self._answer(time.monotonic() + timeout_s)
        if not answer.startswith(_OK):
            raise DeviceError(
                f"the board server on {self.device} refuses {line!r}", details=answer.removeprefix(_ERROR)
            )
        return answer

    def _answer(self, deadline: float) -> str:
        """Read the answer to the last order; what a former one was late with is passed over."""
        while True:
            line = self.process.readline(max(0.0, deadline - time.monotonic()))
            if not line.endswith("\n"):
                raise DeviceError(f"the board server on {self.device} has ended", details=self.process.stderr.strip())
            if line.startswith(_EVENT):
                self.events.append(line.rstrip("\n"))
                continue
            self._owed.pop(0)
            if not self._owed:
                return line.rstrip("\n")

    def stop(self) -> None:
        """End it, and the session that it serves."""
        self.process.close()


def push(program: Program, store: Store, progress: Progress | None = None) -> str:
    """Bring the server to a device, unless this very program is there.

    Returns:
        The program's path on the device.

    Raises:
        VerificationError: The device is another machine or has too old a C library; nothing was sent.
        DeviceError: The device is lost, busy or full.
    """
    facts = store.facts()
    deploy.check_runs(program, facts)
    shipment = Shipment(
        blobs={program.sha256: program.path},
        folders={"servers": (program.sha256, {BOARD_SERVER: program.sha256})},
        programs=(program.sha256,),
    )
    with store.lock(deploy.owner()):
        deploy.send(shipment, store, facts, progress)
        return f"{deploy.install(shipment, store)['servers']}/{BOARD_SERVER}"


def start(shell: Shell, path: str, options: Sequence[str] = ("--port", "0")) -> Server:
    """Start the server on a device and wait until it listens.

    Args:
        shell: The device.
        path: What `push` returned.
        options: Its command line; `--port 0` lets it choose a free port, `--control` lets it be controlled.

    Raises:
        DeviceError: It does not start; its own words are in the details.
    """
    # Android has no /tmp. The store's root, three folders up, can be written by whoever put the program there.
    elsewhere = shlex.quote(str(PurePosixPath(path).parent.parent.parent))
    place = f'[ -w "${{TMPDIR:-/tmp}}" ] || export TMPDIR={elsewhere}'
    process = shell.start(f"{place}; exec {shlex.join([path, *options])}")
    try:
        return _listening(process, shell.name)
    except BaseException:
        process.close()
        raise


def _listening(process: RemoteProcess, device: str) -> Server:
    line = process.readline(_START_S)
    found = _LISTENING.fullmatch(line)
    if found is None:
        details = process.stderr.strip() or line.strip()
        raise DeviceError(f"the board server does not start on {device}", details=details)
    return Server(found[1], int(found[2]), process, device)
