"""The protocol between the farm's daemon and its clients: lines of JSON over a private UNIX socket.

Any process that can connect to the socket can use the boards. So the socket lies in a folder that only its user can
access and must own, and each end asks the kernel for the user at the other end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolchain import errors, files
from toolchain.errors import BusyError, DeviceError, ToolchainError, VerificationError
from toolchain.native.programs import Program
from toolchain.shell import SshOptions

Message = dict[str, Any]

SOCKET, LOCK, LOG = "socket", "lock", "daemon.log"
# The interval of signs of life, and the silence after which a lease is over.
HEARTBEAT_S, EXPIRE_S = 5.0, 30.0
_MAX_LINE = 1 << 20
_SEND_S = 10.0
_OTHERS_BITS = 0o077


def folder() -> Path:
    """Return the folder of the daemon that serves this user's lab."""
    return files.cache_root() / "serving"


@dataclass(frozen=True)
class ServedDevice:
    """A device as the daemon knows it."""

    name: str  # in devices.toml
    board: str  # board type
    host: str  # SSH address, or `adb:SERIAL`
    root: str  # folder on it
    emulated: bool  # whether its times are an emulator's
    program: Program  # its board server
    ssh: SshOptions  # all paths are absolute
    adb_server: str = ""  # address of the adb server that knows it; empty for SSH

    def message(self) -> Message:
        ssh, program = self.ssh, self.program
        return {
            **{name: getattr(self, name) for name in ("name", "board", "host", "root", "emulated", "adb_server")},
            "program": {**vars(program), "path": str(program.path), "versions": dict(program.versions)},
            "config_file": str(ssh.config_file) if ssh.config_file else None,
            "known_hosts": [str(path) for path in ssh.known_hosts],
            "identity": str(ssh.identity) if ssh.identity else None,
            "password": ssh.password,
        }

    @classmethod
    def of(cls, message: Message) -> ServedDevice:
        fields = dict(message)
        ssh = SshOptions(
            config_file=_path(fields.pop("config_file")),
            known_hosts=tuple(Path(path) for path in fields.pop("known_hosts")),
            identity=_path(fields.pop("identity")),
            password=fields.pop("password"),
        )
        program = fields.pop("program")
        return cls(**fields, program=Program(**{**program, "path": Path(program["path"])}), ssh=ssh)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


class Link:
    """One connection between a client and the daemon; each may send from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        with self._sending:
            self._sock.settimeout(_SEND_S)
            self._sock.sendall(json.dumps(message, default=dataclasses.asdict).encode() + b"\n")

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message; None at the end, or if it is not valid. Only one thread at a time may wait.

        Raises:
            TimeoutError: No message came in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._data:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._has_more(remaining):  # data that came in time counts, even if this thread runs late
                raise TimeoutError
            try:
                data = self._sock.recv(1 << 16)
            except OSError:  # it was reset, or closed by us
                data = b""
            self._data += data
            if not data or len(self._data) > _MAX_LINE:
                return None
        line, _, self._data = self._data.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def _has_more(self, seconds: float | None) -> bool:
        """Wait until there is data or the end."""
        poll = select.poll()  # `select` fails for descriptors above 1023, which a large lab has
        try:
            poll.register(self._sock, select.POLLIN)
        except ValueError:  # it was closed by us
            return True
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    @property
    def alive(self) -> bool:
        try:
            return not self._has_more(0.0) or self._sock.recv(1, socket.MSG_PEEK) != b""
        except OSError:  # it was reset, or closed by us
            return False

    @property
    def peer_pid(self) -> int:
        return _credentials(self._sock)[0]

    @property
    def is_same_user(self) -> bool:
        return _credentials(self._sock)[1] == os.geteuid()

    def raw(self) -> socket.socket:
        """Return its socket, for bytes that are not messages; both ends must have read all messages."""
        self._sock.settimeout(None)
        return self._sock

    def end_sending(self) -> None:
        """Close our sending direction; the other end may still send."""
        with contextlib.suppress(OSError):  # it is gone
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection, also for a thread that waits for a message."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _credentials(sock: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id at the other end, as of its connection."""
    form = struct.Struct("3i")
    pid, uid, _ = form.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return pid, uid


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Check the folder, and yield a short path of the socket: the kernel accepts at most 107 bytes.

    Raises:
        OSError: There is no such folder.
        VerificationError: Other users own it or can access it.
    """
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(handle)
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid():
            raise VerificationError(
                f"{folder} belongs to another user",
                details=f"its owner is uid {status.st_uid}, but this process runs as uid {os.geteuid()}",
                hint="set TOOLCHAIN_CACHE to a folder that you own",
            )
        if mode & _OTHERS_BITS:
            raise VerificationError(
                f"other users can access {folder}", details=f"its mode is {mode:04o}", hint=f"chmod 700 {folder}"
            )
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create the daemon's folder, or check that the existing one is private.

    Raises:
        InputError: It cannot be created.
        VerificationError: Another user owns it or can access it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _address(folder):
            pass
    except OSError as fault:
        raise files.unwritable(folder, fault) from fault


def connect(folder: Path) -> Link | None:
    """Connect to the daemon of a folder; None if there is none. A daemon that was killed leaves its socket behind.

    Raises:
        VerificationError: The folder, or the process that answers there, is not this user's.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link = Link(sock)
    with contextlib.ExitStack() as stack:
        stack.callback(link.close)
        try:
            with _address(folder) as address:
                sock.connect(address)
        except OSError:
            return None
        if not link.is_same_user:
            raise VerificationError(f"a process of another user answers at {folder}", hint="toolchain farm down")
        stack.pop_all()
    return link


def listen(folder: Path) -> socket.socket:
    """Listen as the daemon of a locked folder; a socket that a killed daemon left is replaced."""
    (folder / SOCKET).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _address(folder) as address:
        sock.bind(address)
    (folder / SOCKET).chmod(0o600)
    sock.listen(64)
    return sock


def fault_message(fault: ToolchainError) -> Message:
    kind, owner = type(fault).__name__, fault.owner if isinstance(fault, BusyError) else ""
    return {"kind": kind, "message": fault.message, "details": fault.details, "hint": fault.hint, "owner": owner}


def parse_fault(message: Message) -> ToolchainError:
    """Return the error in a message; an unknown kind becomes a DeviceError."""
    kind = getattr(errors, str(message.get("kind")), None)
    text, details, hint = (str(message.get(name, "")) for name in ("message", "details", "hint"))
    if not (isinstance(kind, type) and issubclass(kind, ToolchainError)):
        kind = DeviceError
    if issubclass(kind, BusyError):
        return kind(text, details=details, hint=hint, owner=str(message.get("owner", "")))
    return kind(text, details=details, hint=hint)
