"""TVM's own RPC tracker: started, watched, and started again on the same port when it ends or hangs."""

from __future__ import annotations

import json
import logging
import shlex
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.errors import DeviceError
from toolchain.shell import LocalProcess

HOST = "127.0.0.1"
USUAL_PORTS = range(9190, 9200)
"""Where TVM's tools look for a tracker."""

_MAGIC, _SUMMARY, _SUCCESS = 0x2F271, 6, 0
_MOST = 1 << 20
_START_S, _ANSWER_S = 60.0, 5.0
_LOOK_S, _ASK_EVERY_S = 0.5, 10.0
_PATIENCE = 2
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registered:
    """A server that is registered at a tracker."""

    key: str
    host: str
    port: int


def registered(port: int, timeout: float = 0.0, *, host: str = HOST) -> tuple[Registered, ...]:
    """Ask a tracker who is registered there.

    Args:
        port: Its port.
        timeout: Seconds for each of its answers; 0 for the usual number.
        host: Its address.

    Raises:
        DeviceError: It does not answer in time, or not as a tracker.
    """
    try:
        with socket.create_connection((host, port), timeout=timeout or _ANSWER_S) as link:
            servers = _summary(link)["server_info"]
            found = [(one["key"].removeprefix("server:"), *one["addr"]) for one in servers]
            return tuple(Registered(str(key), str(address), int(number)) for key, address, number in found)
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise DeviceError(f"the tracker at {host}:{port} does not answer", details=str(fault)) from fault


def _summary(link: socket.socket) -> Any:
    link.sendall(struct.pack("<i", _MAGIC))
    if _number(link) != _MAGIC:
        raise ValueError("it is no tracker")
    message = json.dumps([_SUMMARY]).encode()
    link.sendall(struct.pack("<i", len(message)) + message)
    size = _number(link)
    if not 0 < size <= _MOST:
        raise ValueError(f"a message of {size} bytes")
    status, found = json.loads(_received(link, size))
    if status != _SUCCESS:
        raise ValueError(f"status {status}")
    return found


def _number(link: socket.socket) -> int:
    return int(struct.unpack("<i", _received(link, 4))[0])


def _received(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the connection was closed")
        data += part
    return data


def free_port(wanted: Sequence[int] = ()) -> int:
    """Return the first free port of some, or else any free port."""
    for port in (*wanted, 0):
        try:
            with socket.create_server((HOST, port)) as listener:
                return int(listener.getsockname()[1])
        except OSError:
            continue
    raise DeviceError("there is no free TCP port on this machine")


class Tracker:
    """A tracker on a port of the loopback address, which is there again soon whatever happens to it.

    It ends with this process, even if that is killed.

    Args:
        log: File that takes its words.
        ports: Ports to prefer.
    """

    def __init__(self, log: Path, ports: Sequence[int] = USUAL_PORTS) -> None:
        self.port = free_port(ports)
        self._log = log
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracker", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where it is."""
        return HOST, self.port

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            DeviceError: It does not, within a minute.
        """
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise DeviceError("TVM's RPC tracker does not start", details=f"see {self._log}", hint="make setup")

    def stop(self) -> None:
        """End it; `join` waits for that."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            started = time.monotonic()
            # The process group ends with our end of its input.
            process = LocalProcess(self._command())
            try:
                why = self._watch(process)
            finally:
                process.close()
            if not self._stopping.is_set():
                _LOG.warning("the tracker %s; starting it again", why)
                self._stopping.wait(max(0.0, 1.0 - (time.monotonic() - started)))

    def _command(self) -> str:
        # TVM takes the port at the end of the range for the first that it must not use.
        words = ["--host", HOST, "--port", str(self.port), "--port-end", str(self.port + 1)]
        command = shlex.join([sys.executable, "-P", "-m", "tvm.exec.rpc_tracker", *words])
        return f"exec {command} >{shlex.quote(str(self._log))} 2>&1"

    def _watch(self, process: LocalProcess) -> str:
        """Return why it is no use any more: that it ended, or that it hangs."""
        give_up = time.monotonic() + _START_S
        ask_again, misses, answered = 0.0, 0, False
        while not self._stopping.is_set():
            try:
                process.readline(_LOOK_S)
            except DeviceError:  # it says nothing there, so it runs
                now = time.monotonic()
            else:
                return "ended"
            if now < ask_again:
                continue
            if self._answers():
                ask_again, misses, answered = now + _ASK_EVERY_S, 0, True
                self._ready.set()
            elif answered or now > give_up:
                misses += 1
                if misses >= _PATIENCE:
                    return "does not answer"
        return "is no longer wanted"

    def _answers(self) -> bool:
        try:
            registered(self.port)
        except DeviceError:
            return False
        return True
