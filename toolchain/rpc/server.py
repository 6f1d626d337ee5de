"""The RPC server on a device: pushed where it is missing or outdated, started over a shell, ended with it.

It listens on a private Unix socket there, and gives no session before its controller, the process that started it, has
sent it a key over its standard input.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from toolchain.device import fit
from toolchain.device.lock import Owner
from toolchain.device.shipment import Shipment, Tell, install, send
from toolchain.device.store import Store
from toolchain.errors import DeviceError, InputError
from toolchain.native.programs import BOARD_SERVER, Program
from toolchain.shell import LocalShell, RemoteProcess, Shell

# These begin errors of the client.
# A session lasted too long; "timeout of 5 s reached" follows, which is the client's own, or the server's "limit of 5 s
# reached" or "idle limit of 5 s reached".
SESSION_EXPIRED = "RPCSessionTimeoutError: session "
# The controller gave the order `cut`, `withdraw` or another `key`.
SESSION_CUT = "the session was ended by the board server's controller"
# The called function ended the process; "was ended by signal 11 (SIGSEGV)", "was ended by signal 9 (SIGKILL: ...)",
# which is also what a lack of memory looks like, or "ended by itself with code 7" follows.
PROCESS_ENDED = "the session's process "
_START_S = 30.0
_EVENT = "session "
_MAX_EVENTS, _MAX_EVENT_LENGTH = 1000, 1000
_OK, _ERROR = "ok ", "error "
_LISTENING = re.compile(r"listening on unix:(.+)\n")
_PEER = struct.Struct("3i")  # process, user and group


@dataclass(frozen=True)
class Server:
    """A board server that runs on a device, until `stop` is called, or the connection to the device ends."""

    socket: str  # path where it listens on the device, or "@" and its name where no file can be
    program: str  # path on the device
    process: RemoteProcess
    device: str = "the device"  # for messages
    # Of its last sessions, as far as `control` has read them: "session 3 begins", "session 3 ends: well" or the fault.
    events: list[str] = field(default_factory=list)
    _unanswered: list[str] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def offer(self, key: str) -> None:
        """Let a key of `new_key` open sessions from now on, and no other; end the running one. Raises as `control`."""
        self.control(f"key {key}")

    def withdraw(self) -> None:
        """Let no key open sessions, and end the running one. Raises as `control` does."""
        self.control("withdraw")

    def cut(self) -> None:
        """End the running session, if any; the next in line is served. Raises as `control` does."""
        self.control("cut")

    def control(self, line: str, timeout_s: float = 10.0) -> str:
        """Send "key KEY", "withdraw" or "cut"; return the answer: "ok " and the order, without the key.

        Raises:
            InputError: The order is not one line.
            DeviceError: It refuses the order, does not answer, or has ended.
        """
        order = line.partition(" ")[0]  # what follows is a secret
        if not line or "\n" in line:
            raise InputError("a command to a board server must be one line")
        with self._lock:
            self._unanswered.append(order)
            self.process.write(line + "\n")
            answer = self._answer(time.monotonic() + timeout_s)
        if not answer.startswith(_OK):
            raise DeviceError(
                f"the board server on {self.device} refused the command {order!r}", details=answer.removeprefix(_ERROR)
            )
        return answer

    def _answer(self, deadline: float) -> str:
        """Read the answer to the last order, and skip late answers to former ones."""
        while True:
            line = self.process.readline(max(0.0, deadline - time.monotonic()))
            if not line.endswith("\n"):
                raise DeviceError(f"the board server on {self.device} has ended", details=self.process.stderr.strip())
            if time.monotonic() > deadline:
                raise DeviceError(f"the board server on {self.device} sends output, but did not answer in time")
            if line.startswith(_EVENT):
                self.events.append(line.rstrip("\n")[:_MAX_EVENT_LENGTH])
                del self.events[:-_MAX_EVENTS]
                continue
            self._unanswered.pop(0)
            if not self._unanswered:
                return line.rstrip("\n")

    def stop(self) -> None:
        """End it, and the session that it serves."""
        self.process.close()


def push(program: Program, store: Store, tell: Tell | None = None) -> str:
    """Push the server to a device, unless this very program is there; return its path there.

    Raises:
        VerificationError: The device is another machine or has too old a C library; nothing was sent.
        DeviceError: The device is lost, busy or full.
    """
    facts = store.facts()
    fit.check_runs(program, facts)
    shipment = Shipment(
        blobs={program.sha256: program.path},
        folders={"servers": (program.sha256, {BOARD_SERVER: program.sha256})},
        programs=(program.sha256,),
    )
    with store.lock(Owner.here("start the board server")):
        send(shipment, store, facts, tell)
        return f"{install(shipment, store)['servers']}/{BOARD_SERVER}"


# Options: `--session-limit` and `--idle-limit` in seconds, `--work-dir`.
def start(shell: Shell, path: str, options: Sequence[str] = ()) -> Server:
    """Start the server on a device and wait until it listens; a DeviceError has its output in the details."""
    # Android has no /tmp. The user that pushed the program can write to the store's root, three folders up.
    store_root = shlex.quote(str(PurePosixPath(path).parent.parent.parent))
    setup = f'[ -w "${{TMPDIR:-/tmp}}" ] || export TMPDIR={store_root}'
    process = shell.start(f"{setup}; exec {shlex.join([path, '--socket', *options])}")
    try:
        return Server(_read_address(process, shell.name), path, process, shell.name)
    except BaseException:
        process.close()
        raise


def _read_address(process: RemoteProcess, device: str) -> str:
    line = process.readline(_START_S)
    listening = _LISTENING.fullmatch(line)
    if listening is None:
        details = process.stderr.strip() or line.strip()
        raise DeviceError(f"the board server does not start on {device}", details=details)
    return listening[1]


def new_key() -> str:
    """Return a new key of sessions: 256 random bits as 64 hexadecimal digits."""
    return secrets.token_hex(32)


def dial(shell: Shell, server: Server, timeout_s: float) -> socket.socket:
    """Open a fresh stream to a server on a device, without a time limit, or raise a DeviceError."""
    if isinstance(shell, LocalShell):
        return _connect(server, timeout_s)
    return shell.stream(f"exec {shlex.join([server.program, '--connect', server.socket])}", timeout=timeout_s)


def _connect(server: Server, timeout_s: float) -> socket.socket:
    """Connect to a server on this machine, as `board_server --connect` does on others."""
    link = socket.socket(socket.AF_UNIX)
    try:
        abstract = server.socket.startswith("@")
        owners = set() if abstract else {os.lstat(server.socket).st_uid}
        link.settimeout(timeout_s)
        link.connect(f"\0{server.socket[1:]}" if abstract else server.socket)
        link.settimeout(None)
        _, peer, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        users = {*owners, peer}
        if users != {os.geteuid()}:
            raise DeviceError(  # noqa: TRY301 - the link is closed below
                f"the board server at {server.socket} belongs to another user",
                details=f"user id {', '.join(map(str, sorted(users)))}, but this process runs as {os.geteuid()}",
            )
    except OSError as fault:
        link.close()
        raise DeviceError(
            f"no board server listens at {server.socket} on {server.device}", details=fault.strerror or str(fault)
        ) from fault
    except BaseException:
        link.close()
        raise
    return link
