"""One device that the keeper serves: its SSH connection, its board server and the ways between them, kept up."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Literal

from toolchain import board_server
from toolchain._farm_protocol import Served
from toolchain._ssh_forward import Forward
from toolchain.board_server import Server
from toolchain.errors import DeviceError, ToolchainError
from toolchain.shell import RemoteProcess, parse_address
from toolchain.ssh import SshShell
from toolchain.store import Store

_LOG = logging.getLogger(__name__)

_KEEPALIVE_S = 5  # a device without power is noticed after three of them
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_LOOK_S, _CHECK_EVERY_S, _CHECK_S = 20.0, 30.0, 20.0
_SOON_S = 3.0
_PORT_ATTEMPTS = 6
_TAKEN = "in use"

_CELSIUS = "cat /sys/class/thermal/thermal_zone*/temp 2>/dev/null || :"


class _End:
    """The board server has ended, or the way to it."""


class _Wake:
    """There is something to do."""


class KeptBoard:
    """A device that is served as long as it can be reached, and again as soon as it can.

    All attributes are its own thread's to change; others read them.

    Args:
        served: The device.
        tracker: Address of the tracker on this host.
        changed: Called after each change of an attribute.

    Attributes:
        served: The device.
        state: `connecting` until it was reached for the first time, then `ready` or `lost`.
        fault: Why it is not ready.
        address: Where clients of this host reach its server; None if it is not ready.
        key: The key that its server has at the tracker; None if it is withdrawn from there.
        session_since: When its present session began, in seconds since 1970; None if there is none.
    """

    def __init__(self, served: Served, tracker: tuple[str, int], changed: Callable[[], None]) -> None:
        self.served = served
        self.state: Literal["connecting", "ready", "lost"] = "connecting"
        self.fault: ToolchainError | None = None
        self.address: tuple[str, int] | None = None
        self.key: str | None = None
        self.session_since: float | None = None
        self._tracker, self._changed = tracker, changed
        self._wanted: str | None = served.key
        self._quiet = False
        self._celsius: float | None = None
        self._events: queue.SimpleQueue[str | _End | _Wake] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._shell: SshShell | None = None
        self._forward: Forward | None = None
        self._thread = threading.Thread(target=self._run, name=f"board {served.name}", daemon=True)

    # --- what others ask of it ---

    def start(self) -> None:
        """Begin to serve it."""
        self._thread.start()

    def offer(self, key: str | None, *, quiet: bool = False) -> None:
        """Let its server have a key at the tracker, or none; a session goes on.

        Args:
            key: The key.
            quiet: Whether nothing but its client may make it work, because it is measured on.
        """
        self._wanted, self._quiet = key, quiet
        self._events.put(_Wake())

    def rest(self, *, quiet: bool) -> None:
        """Say whether nothing but its client may make it work; see `offer`."""
        self._quiet = quiet

    @property
    def settled(self) -> bool:
        """Whether its server has the key that was asked for."""
        return self.state == "ready" and self.key == self._wanted

    def cut(self) -> None:
        """End the connections of its clients, and with them their sessions."""
        forward = self._forward
        if forward:
            forward.cut()

    def celsius(self) -> float | None:
        """Ask an idle device how hot it is; None if it does not say."""
        shell = self._shell
        if shell and self.state == "ready" and not self._quiet:
            with contextlib.suppress(DeviceError):
                self._celsius = _hottest(shell, timeout=5.0)
        return self._celsius

    def stop(self) -> None:
        """Begin to end its server and the connection; `join` waits for that."""
        self._stopping.set()
        self._events.put(_Wake())

    def join(self, timeout: float) -> None:
        """Wait until all has ended."""
        self._thread.join(max(0.0, timeout))

    # --- its thread ---

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            was_ready = False
            try:
                with contextlib.ExitStack() as stack:
                    self._serve(stack)
            except ToolchainError as fault:
                was_ready = self.state == "ready"
                self._lose(fault)
            except Exception as fault:  # noqa: BLE001 - the device is tried again whatever broke; status tells what
                _LOG.exception("%s", self.served.name)
                self._lose(DeviceError(f"{type(fault).__name__} while serving {self.served.name}", details=str(fault)))
            pause = _FIRST_PAUSE_S if was_ready else min(2 * pause, _LONGEST_PAUSE_S)
            self._stopping.wait(pause)

    def _lose(self, fault: ToolchainError) -> None:
        if not self._stopping.is_set():
            _LOG.warning("%s: %s", self.served.name, fault.message)
        self.state, self.fault = "lost", fault
        self._forget_server()
        self._changed()

    def _forget_server(self) -> None:
        self.address = self.key = self.session_since = self._forward = None

    def _serve(self, stack: contextlib.ExitStack) -> None:
        """Connect, and run one server after the other until the connection is lost."""
        served = self.served
        options = dataclasses.replace(served.ssh, keepalive=_KEEPALIVE_S)
        shell = stack.enter_context(SshShell(parse_address(served.host), options))
        self._shell = shell
        path = board_server.push(served.program, Store(shell, served.root))
        tracker = shell.forward_back(self._tracker)
        while not self._stopping.is_set():
            began = time.monotonic()
            with contextlib.ExitStack() as resources:
                server = self._started(resources, shell, path, tracker)
                self._attend(server, shell)
            if self._stopping.is_set():
                return
            words = server.process.stderr.strip().splitlines()[-1:]
            fault = DeviceError(f"the board server on {served.name} ended", details="\n".join(words))
            if time.monotonic() - began < _SOON_S:
                raise fault
            self._lose(fault)

    def _started(self, stack: contextlib.ExitStack, shell: SshShell, path: str, tracker: int) -> Server:
        """Start a server on a port that is free on both sides, so that what it tells the tracker is true here too."""
        key = self._wanted or private_key(self.served.name)
        for attempt in range(_PORT_ATTEMPTS):
            # Where the device is this very host, its server and our end of the way need an address each.
            here = f"127.0.0.{1 + attempt % 2}"
            forward = shell.forward((here, 0), 0)
            stack.callback(forward.close)
            port = str(forward.address[1])
            options = ["--host", "127.0.0.1", "--port", port, "--port-end", port, "--control"]
            options += ["--tracker", f"127.0.0.1:{tracker}", "--key", key, "--custom-addr", here]
            try:
                server = board_server.start(shell, path, options)
            except DeviceError as fault:
                forward.close()
                if _TAKEN not in fault.details:
                    raise
                continue
            stack.callback(server.stop)
            self.key, self._forward, self.address = key, forward, forward.address
            return server
        raise DeviceError(f"no port is free on both this host and {self.served.name}")

    def _attend(self, server: Server, shell: SshShell) -> None:
        """Pass on what is asked of a server and hear what it says, until it ends or shall end."""
        self._events = queue.SimpleQueue()
        reader = threading.Thread(
            target=_read, args=(server.process, shell, self._events), name=f"ear {self.served.name}", daemon=True
        )
        reader.start()
        sent = self.key
        self.state, self.fault = "ready", None
        self._changed()
        check_at = time.monotonic() + _CHECK_EVERY_S
        while not self._stopping.is_set():
            if sent != self._wanted:
                sent = self._wanted
                server.process.write(f"key {sent}\n" if sent else "withdraw\n")
            try:
                event = self._events.get(timeout=max(0.0, check_at - time.monotonic()))
            except queue.Empty:
                self._check(shell)
                check_at = time.monotonic() + _CHECK_EVERY_S
                continue
            if isinstance(event, _End):
                shell.check_alive("serving RPC")
                return
            if isinstance(event, str):
                self._hear(event)

    def _check(self, shell: SshShell) -> None:
        """Look whether an idle device still answers: a frozen one keeps its connections."""
        if not self._quiet and self.session_since is None:
            self._celsius = _hottest(shell, timeout=_CHECK_S)

    def _hear(self, line: str) -> None:
        if line.startswith("session "):
            self.session_since = time.time() if line.endswith(" begins") else None
        elif line.startswith("ok key "):
            self.key = line.removeprefix("ok key ")
        elif line == "ok withdraw":
            self.key = None
        else:
            _LOG.warning("%s: the board server says: %s", self.served.name, line)
        self._changed()


def private_key(name: str) -> str:
    """Return a key for the tracker that nobody can guess."""
    return f"{name}.{secrets.token_hex(16)}"


def _hottest(shell: SshShell, timeout: float) -> float | None:
    values = [int(word) for word in shell.run(_CELSIUS, timeout=timeout).stdout.split() if re.fullmatch(r"-?\d+", word)]
    return max(values) / 1000 if values else None


def _read(process: RemoteProcess, shell: SshShell, events: queue.SimpleQueue[str | _End | _Wake]) -> None:
    """Turn what a server says into events."""
    while True:
        try:
            line = process.readline(_LOOK_S)
            if not line:
                break
            events.put(line.rstrip("\n"))
        except DeviceError:  # it has nothing to say, or cannot be heard any more
            with contextlib.suppress(DeviceError):
                shell.check_alive("listening to the board server")
                _ = process.stderr  # its log is taken from the connection, which would fill up
                continue
            break
    events.put(_End())
