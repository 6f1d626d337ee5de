"""A device's side of adb, over TCP: what `adbd` does, with Android's shell and tools, and faults as a test wants.

It speaks the wire protocol (CNXN, AUTH, OPEN, OKAY, WRTE, CLSE) to the real adb server, and serves `shell,v2`. The
protocol is described in AOSP's packages/modules/adb/protocol.txt and SERVICES.TXT.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import userlands
from tests.support.parts import require
from tests.support.sshd import free_port

ADB = shutil.which("adb")

_HEAD = struct.Struct("<4s5I")
_VERSION, _MOST = 0x01000001, 1 << 18
_TOKEN, _SIGNATURE, _PUBLIC_KEY = 1, 2, 3
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN = range(5)
_PART = struct.Struct("<BI")


def require_adb() -> None:
    """Leave the test out where Android's client is not installed."""
    require("Android's debug bridge", "adb", ADB is not None)


@dataclass
class Faults:
    """What is wrong with a device.

    Attributes:
        silent: Whether it takes connections and says nothing.
        unaccepted: Whether nobody has accepted this computer's key on its screen.
        features: What its adbd can do.
    """

    silent: bool = False
    unaccepted: bool = False
    features: str = "shell_v2,cmd,stat_v2"


class Device:
    """A device at a port of this host.

    Args:
        folder: A folder of its own; it is its HOME, and its tools are there.
        env: Variables of its shell.

    Attributes:
        faults: What is wrong with it; a test may change that at any time.
        serial: What adb calls it.
        opened: The services that were asked for.
    """

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder, self.faults, self.opened = folder, Faults(), list[str]()
        self.tools = userlands.toybox(folder / "bin")
        self.env = {"HOME": str(folder), "PATH": str(self.tools), "TMPDIR": "/nowhere", **(env or {})}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.serial = f"127.0.0.1:{self.port}"
        self._links: list[_Link] = []
        self._left: int | None = None
        self._plugged = threading.Event()
        self._plugged.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def host(self) -> str:
        """What it is called on our command line."""
        return f"adb:{self.serial}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                sock, _ = self._listener.accept()
                if not self._plugged.is_set():
                    sock.close()
                    continue
                link = _Link(self, sock)
                self._links.append(link)
                threading.Thread(target=link.serve, daemon=True).start()

    def pull(self) -> None:
        """Pull the cable: what runs loses its connection, and there is no new one."""
        self._plugged.clear()
        for link in self._links:
            link.cut()

    def pull_after(self, size: int) -> None:
        """Pull it as soon as so many more bytes have come from the computer."""
        self._left = size

    def plug(self) -> None:
        """Put it back."""
        self._left = None
        self._plugged.set()

    def took(self, size: int) -> None:
        """Count what came from the computer.

        Raises:
            EOFError: The cable was pulled.
        """
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                self.pull()
                raise EOFError

    def connect(self) -> str:
        """Let the adb server know it; return what the client says."""
        return client("connect", self.serial)

    def wait_until(self, state: str) -> None:
        """Wait until the adb server says that it is in a state."""
        deadline = time.monotonic() + 20
        while f"{self.serial}\t{state}\n" not in client("devices"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.serial} is not {state}: {client('devices')}")
            time.sleep(0.02)

    def close(self) -> None:
        """End it, and all that it runs; the adb server forgets it."""
        client("disconnect", self.serial)
        self.pull()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            link.end()


class _Link:
    """One connection of an adb server."""

    def __init__(self, device: Device, sock: socket.socket) -> None:
        self.device, self._sock = device, sock
        self._turn = threading.Lock()
        self._services: dict[int, _Shell] = {}
        self._number = 0

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        for service in list(self._services.values()):
            service.hang_up()
            service.kill()

    def send(self, command: bytes, first: int, second: int, data: bytes = b"") -> None:
        magic = int.from_bytes(command, "little") ^ 0xFFFFFFFF
        with self._turn, contextlib.suppress(OSError):
            head = _HEAD.pack(command, first, second, len(data), sum(data) & 0xFFFFFFFF, magic)
            self._sock.sendall(head + data)

    def serve(self) -> None:
        try:
            while self._step():
                pass
        except (OSError, EOFError):
            pass  # the other end is gone, or the cable
        finally:
            self._sock.close()
            for service in list(self._services.values()):
                service.hang_up()

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self._sock.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        self.device.took(size)
        return bytes(data)

    def _step(self) -> bool:
        command, first, second, size, _, _ = _HEAD.unpack(self._receive(_HEAD.size))
        data = self._receive(size)
        if self.device.faults.silent:
            return True
        if command == b"CNXN":
            if self.device.faults.unaccepted:
                self.send(b"AUTH", _TOKEN, 0, secrets.token_bytes(20))
            else:
                self._welcome()
        elif command == b"AUTH" and first == _SIGNATURE:
            self.send(b"AUTH", _TOKEN, 0, secrets.token_bytes(20))  # a key that nobody has accepted
        elif command == b"OPEN":
            self._open(first, data.rstrip(b"\0").decode())
        elif second in self._services:
            self._pass(command, self._services[second], data)
        return True

    def _welcome(self) -> None:
        banner = f"device::ro.product.name=edge;ro.product.model=Edge;features={self.device.faults.features}"
        self.send(b"CNXN", _VERSION, _MOST, banner.encode())

    def _open(self, theirs: int, service: str) -> None:
        self.device.opened.append(service)
        kind, _, command = service.partition(":")
        if "v2" not in kind.split(",") or not kind.startswith("shell"):
            self.send(b"CLSE", 0, theirs)
            return
        self._number += 1
        self._services[self._number] = _Shell(self, self._number, theirs, command)
        self.send(b"OKAY", self._number, theirs)
        self._services[self._number].start()

    def _pass(self, command: bytes, service: _Shell, data: bytes) -> None:
        if command == b"OKAY":
            service.acknowledged.release()
        elif command == b"WRTE":
            service.take(data)
        elif command == b"CLSE":
            service.hang_up()
            self._services.pop(service.ours, None)


@dataclass
class _Shell:
    """A command, and its streams in packets of the shell protocol."""

    link: _Link
    ours: int
    theirs: int
    command: str
    acknowledged: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(1))

    def start(self) -> None:
        device = self.link.device
        self._data = bytearray()
        self._inbox: list[bytes] = []
        self._changed = threading.Condition()
        self._gone = False
        self._process = subprocess.Popen(
            [str(device.tools / "sh"), "-c", self.command],
            env=device.env,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for work in (self._feed, self._speak):
            threading.Thread(target=work, daemon=True).start()

    def take(self, data: bytes) -> None:
        """Hear what the computer says; it is asked for more once the command has read this."""
        with self._changed:
            self._inbox.append(data)
            self._changed.notify_all()

    def hang_up(self) -> None:
        """The computer is gone: as adbd does, tell the command, and end its streams."""
        with self._changed:
            if self._gone:
                return
            self._gone = True
            self._changed.notify_all()
        self.acknowledged.release(1000)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _feed(self) -> None:
        stdin = self._process.stdin
        assert stdin
        with contextlib.suppress(OSError, ValueError):
            while (data := self._next()) is not None:
                self._data += data
                while (chunk := self._part()) is not None:
                    kind, payload = chunk
                    if kind == _STDIN:
                        with contextlib.suppress(BrokenPipeError):
                            stdin.write(payload)
                            stdin.flush()
                    elif kind == _CLOSE_STDIN:
                        stdin.close()
                self.link.send(b"OKAY", self.ours, self.theirs)
        with contextlib.suppress(OSError):
            stdin.close()

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._gone)
            return self._inbox.pop(0) if self._inbox else None

    def _part(self) -> tuple[int, bytes] | None:
        if len(self._data) < _PART.size:
            return None
        kind, size = _PART.unpack_from(self._data)
        if len(self._data) < _PART.size + size:
            return None
        payload = bytes(self._data[_PART.size : _PART.size + size])
        del self._data[: _PART.size + size]
        return kind, payload

    def _speak(self) -> None:
        turn = threading.Lock()
        outputs = [(self._process.stdout, _STDOUT), (self._process.stderr, _STDERR)]
        threads = [threading.Thread(target=self._listen, args=(*output, turn), daemon=True) for output in outputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        code = self._process.wait()
        self._say(_EXIT, bytes([code if code >= 0 else 128 - code]))
        self.acknowledged.acquire()
        if not self._gone:
            self.link.send(b"CLSE", self.ours, self.theirs)
        self.hang_up()

    def _listen(self, stream, kind: int, turn: threading.Lock) -> None:
        with stream:
            while data := os.read(stream.fileno(), 1 << 15):
                with turn:
                    self._say(kind, data)

    def _say(self, kind: int, data: bytes) -> None:
        self.acknowledged.acquire()
        if not self._gone:
            self.link.send(b"WRTE", self.ours, self.theirs, _PART.pack(kind, len(data)) + data)


def client(*arguments: str) -> str:
    """Run the real client; return what it says."""
    completed = subprocess.run([str(ADB), *arguments], capture_output=True, text=True, timeout=60, check=False)
    return completed.stdout + completed.stderr


@contextlib.contextmanager
def attached(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Device]:
    """Run a device that the adb server of the environment knows."""
    device = Device(folder, env)
    try:
        device.connect()
        device.wait_until("device")
        yield device
    finally:
        device.close()


@contextlib.contextmanager
def server(folder: Path) -> Iterator[dict[str, str]]:
    """Run an adb server of its own; give the variables by which clients find it, and their keys."""
    require_adb()
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    env = {"HOME": str(folder), "ANDROID_ADB_SERVER_PORT": str(port)}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [str(ADB), "nodaemon", "server"],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(port, process)
        yield env
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
            return
        time.sleep(0.02)
    raise RuntimeError("the adb server did not start")
