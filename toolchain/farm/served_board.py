"""One device that the daemon serves: maintains its connection, its board server and its lock."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from toolchain import architecture
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.errors import BusyError, DeviceError, ToolchainError
from toolchain.farm.protocol import ServedDevice
from toolchain.native import programs
from toolchain.native.programs import Program
from toolchain.rpc import server as board_server
from toolchain.rpc.server import Server
from toolchain.shell import RemoteProcess, Shell, open_shell

_LOG = logging.getLogger(__name__)

_KEEPALIVE_S = 5  # a device without power is noticed after three of them
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_READ_S, _FIRST_CHECK_S, _CHECK_EVERY_S, _CHECK_S = 20.0, 2.0, 30.0, 20.0
_SOON_S = 3.0  # a server that ends sooner is started again only after a pause
_MAX_EVENTS, _MAX_EVENT_LENGTH = 1000, 1000
_BUSY_S = 1.0  # interval of attempts to take a lock that another user has
_BLOCK = 1 << 16
# A client that hangs must not keep its board for ever. A tuning run is far below these limits: its trials pause for
# less than five minutes, and its sessions take less than an hour.
_LIMITS = ("--session-limit", "3600", "--idle-limit", "300")

_CELSIUS = "cat /sys/class/thermal/thermal_zone*/temp 2>/dev/null || :"


@dataclass(frozen=True)
class Claim:
    """The owner of a device's lock, and the key that its board server accepts; neither for a free device."""

    owner: Owner | None = None
    key: str | None = field(default=None, repr=False)  # secret
    within: str = ""  # the token of processes that may work inside the lock


class BoardLock:
    """The lock of one device, on one connection.

    Attributes:
        owner: None if it is free.
        is_lost: Whether the process that holds it on the device ended before `free`.
    """

    def __init__(self, store: Store, on_lost: Callable[[], None]) -> None:
        self.owner: Owner | None = None
        self.is_lost = False
        self._store = store
        self._on_lost = on_lost  # called by another thread
        self._stack = contextlib.ExitStack()

    def take(self, claim: Claim) -> None:
        """Take it, unless the claim has no owner.

        Raises:
            BusyError: Another user has it.
            DeviceError: It cannot be taken, or the device is lost.
        """
        if claim.owner is not None:
            self._stack.enter_context(self._store.lock(claim.owner, within=claim.within, lost=self._lose))
            self.owner = claim.owner

    def free(self) -> None:
        self._stack.close()
        self.owner, self.is_lost = None, False

    def _lose(self) -> None:
        self.is_lost = True
        self._on_lost()


class _End:
    """The board server or the connection has ended."""


class _Wake:
    """The claim has changed, the lock was lost, or the board is to stop."""


class _Relay:
    """Passes bytes between clients and one board, without reading them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def run(self, client: socket.socket, board: socket.socket) -> None:
        """Pass bytes both ways until both ends have sent all, or one is gone, or `cut` is called."""
        ends = {client, board}
        with self._lock:
            self._open |= ends
        try:
            back = threading.Thread(target=_pump, args=(board, client), name="from the board", daemon=True)
            back.start()
            _pump(client, board)
            back.join()
        finally:
            with self._lock:
                self._open -= ends
            board.close()

    def cut(self) -> None:
        with self._lock:
            for end in self._open:
                _shut_down(end)


def _program_for(program: Program, store: Store) -> Program:
    """Return the board server for a device: the board type's, or one for musl, which may have to be built."""
    if not store.facts().musl:
        return program
    triple = architecture.of_machine(program.machine).musl
    return programs.build(programs.BOARD_SERVER, triple, program.machine, _LOG.info)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(_BLOCK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # one end is gone, so the other is closed, too
        _shut_down(source)
        _shut_down(sink)


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class ServedBoard:
    """A device that is served whenever it can be reached.

    Only its own thread changes the attributes; other threads read them.

    Attributes:
        state: `connecting` until it was reached for the first time, then `ready` or `lost`.
        fault: Why it is not ready, or who has its lock.
        key: The only key for which its server opens a session; None without one. It is a secret.
        session_since: The start of its current session, in seconds since 1970.
        celsius: Its last temperature while it was idle; None if it reports none.
        occupied: The user, not a client of the farm, who used the device at the last check.
    """

    def __init__(self, served: ServedDevice, changed: Callable[[], None]) -> None:
        self.served = served
        self.state: Literal["connecting", "ready", "lost"] = "connecting"
        self.fault: ToolchainError | None = None
        self.key: str | None = None
        self.session_since: float | None = None
        self.celsius: float | None = None
        self.occupied: BusyError | None = None
        self._changed = changed  # called after each change of an attribute
        self._claim = Claim()  # the desired state, which `_align` establishes
        self._sent: str | None = None  # the last key that was sent to the server
        self._take_at = 0.0  # when the lock is tried again
        self._unanswered: collections.deque[str | None] = collections.deque()
        self._owner: Owner | None = None
        self._quiet = False
        self._events: queue.SimpleQueue[str | _End | _Wake] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._shell: Shell | None = None
        self._server: Server | None = None
        self._relay = _Relay()
        self._thread = threading.Thread(target=self._run, name=f"board {served.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, claim: Claim, *, quiet: bool = False) -> None:
        """Take its lock for a claim, and let its server open sessions for the claim's key only; all others end.

        Until the lock is free, `fault` is the BusyError that names its owner. While `quiet`, the daemon runs nothing on
        the device, because the client measures there.
        """
        self._claim, self._quiet, self._take_at = claim, quiet, 0.0
        self._events.put(_Wake())

    def rest(self, *, quiet: bool) -> None:
        """Set `quiet`; see `offer`."""
        self._quiet = quiet

    @property
    def settled(self) -> bool:
        """Whether its lock and its server's key are as claimed."""
        return self.state == "ready" and (self._owner, self.key) == (self._claim.owner, self._claim.key)

    @property
    def is_busy(self) -> bool:
        """Whether another user, not a client of the farm, is using it."""
        return isinstance(self.fault, BusyError) and not self.settled

    def dial(self, timeout_s: float) -> socket.socket:
        shell, server = self._shell, self._server
        if shell is None or server is None:
            raise self.fault or DeviceError(
                f"the farm is still connecting to {self.served.name}", hint="toolchain farm status"
            )
        return board_server.dial(shell, server, timeout_s)

    def connect(self, client: socket.socket, board: socket.socket) -> None:
        """Pass bytes between a client and the server, until either is gone or `cut` is called."""
        self._relay.run(client, board)

    def cut(self) -> None:
        """End the connections of its clients; their sessions end with their key, see `offer`."""
        self._relay.cut()

    def stop(self) -> None:
        """Begin to end its server and the connection; `join` waits for that."""
        self._stopping.set()
        self._events.put(_Wake())

    def join(self, timeout: float) -> None:
        self._thread.join(max(0.0, timeout))

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
            except Exception as fault:  # noqa: BLE001 - the device is tried again after any fault; `farm status` shows it
                _LOG.exception("%s", self.served.name)
                self._lose(DeviceError(f"{type(fault).__name__} while serving {self.served.name}", details=str(fault)))
            pause = _FIRST_PAUSE_S if was_ready else min(2 * pause, _LONGEST_PAUSE_S)
            self._stopping.wait(pause)

    def _lose(self, fault: ToolchainError) -> None:
        if not self._stopping.is_set() and (self.fault is None or fault.message != self.fault.message):
            _LOG.warning("%s: %s", self.served.name, fault.message)
        self.state, self.fault = "lost", fault
        self.key = self.session_since = self._server = None
        self._changed()

    def _serve(self, stack: contextlib.ExitStack) -> None:
        """Connect, and run one server after the other until the connection is lost."""
        served = self.served
        options = dataclasses.replace(served.ssh, keepalive=_KEEPALIVE_S)
        shell = stack.enter_context(open_shell(served.host, config=options))
        self._shell = shell
        store = Store(shell, served.root, _LOG.warning)
        path = self._push(store)
        lock = BoardLock(store, lambda: self._events.put(_Wake()))
        stack.callback(self._free, lock)
        while not self._stopping.is_set():
            began = time.monotonic()
            with contextlib.ExitStack() as resources:
                server = board_server.start(shell, path, _LIMITS)
                resources.callback(server.stop)
                resources.callback(self._relay.cut)
                self._attend(server, shell, store, lock)
            if self._stopping.is_set():
                return
            details = "\n".join(server.process.stderr.strip().splitlines()[-1:])
            fault = DeviceError(f"the board server on {served.name} ended", details=details)
            if time.monotonic() - began < _SOON_S:
                raise fault
            self._lose(fault)

    def _push(self, store: Store) -> str:
        """Push the board server as soon as no other user is using the device; return its path there."""
        while True:
            try:
                store.check_free()
                return board_server.push(_program_for(self.served.program, store), store)
            except BusyError as fault:
                self._lose(fault)
                if self._stopping.wait(_BUSY_S):
                    raise

    def _free(self, lock: BoardLock) -> None:
        lock.free()
        self._owner = None

    def _attend(self, server: Server, shell: Shell, store: Store, lock: BoardLock) -> None:
        """Establish each claim and handle the server's output, until the server ends or `stop` is called."""
        self._events = queue.SimpleQueue()
        reader = threading.Thread(
            target=_read, args=(server.process, shell, self._events), name=f"reader {self.served.name}", daemon=True
        )
        reader.start()
        self._unanswered.clear()
        self._sent = None
        self._server, self.state, self.fault = server, "ready", None
        self._changed()
        check_at = time.monotonic() + _FIRST_CHECK_S
        while not self._stopping.is_set():
            claim = self._claim  # read once: another thread may replace it meanwhile
            self._align(server, lock, claim)
            wake_at = check_at if lock.owner == claim.owner else min(check_at, time.monotonic() + _BUSY_S)
            try:
                event = self._events.get(timeout=max(0.0, wake_at - time.monotonic()))
            except queue.Empty:
                if time.monotonic() < check_at:
                    continue
                self._check(shell, store)
                check_at = time.monotonic() + _CHECK_EVERY_S
                continue
            if isinstance(event, _End):
                shell.check_alive("serving RPC")
                return
            if isinstance(event, str):
                self._handle_line(event)

    def _align(self, server: Server, lock: BoardLock, claim: Claim) -> None:
        # The server gets the key after the lock, and loses it before, so that no session runs on an unlocked device.
        if lock.is_lost or lock.owner != claim.owner:
            self._order(server, None)
        if lock.is_lost:
            self._relay.cut()
            self._free(lock)
        if lock.owner not in {None, claim.owner} and not self._unanswered and self.session_since is None:
            self._free(lock)
        if lock.owner is None:
            self._take(lock, claim)
        if lock.owner == claim.owner:
            self._order(server, claim.key)

    def _take(self, lock: BoardLock, claim: Claim) -> None:
        before = self.fault
        if claim.owner is None:
            self.fault = None
        elif time.monotonic() >= self._take_at:
            try:
                lock.take(claim)
                self.fault = self.occupied = None
            except BusyError as fault:
                self.fault = self.occupied = fault
                self._take_at = time.monotonic() + _BUSY_S
        self._owner = lock.owner
        if self._owner or self.fault is not before:
            self._changed()

    def _order(self, server: Server, key: str | None) -> None:
        """Send the server a key, unless it was the last one sent."""
        if key != self._sent:
            self._sent = key
            self._unanswered.append(key)
            server.process.write(f"key {key}\n" if key else "withdraw\n")

    def _check(self, shell: Shell, store: Store) -> None:
        """Check that an idle device answers, and whether other users are using it."""
        # A frozen device keeps its connections, so only an answer proves that it works.
        if self._quiet or self.session_since is not None:
            return
        readings = shell.run(_CELSIUS, timeout=_CHECK_S).stdout.split()
        millidegrees = [int(reading) for reading in readings if re.fullmatch(r"-?[0-9]{1,9}", reading)]
        self.celsius = max(millidegrees) / 1000 if millidegrees else None
        if self._owner is None:
            try:
                store.check_free()
                self.occupied = None
            except BusyError as fault:
                self.occupied = fault

    def _handle_line(self, line: str) -> None:
        if line.startswith("session "):
            self.session_since = time.time() if line.endswith(" begins") else None
        elif self._unanswered:
            key = self._unanswered.popleft()
            if line.startswith("ok "):
                self.key = key
            else:
                # The server may repeat the secret in its refusal.
                answer = line.replace(key, "KEY") if key else line
                _LOG.error("%s: the board server refuses an order: %s", self.served.name, answer)
        self._changed()


def _read(process: RemoteProcess, shell: Shell, events: queue.SimpleQueue[str | _End | _Wake]) -> None:
    """Turn the server's lines into events."""
    while True:
        try:
            line = process.readline(_READ_S)
            if not line:
                break
            if events.qsize() > _MAX_EVENTS:  # a working server never has so many
                _LOG.error("%s printed more than a board server should print", shell.name)
                break
            events.put(line.rstrip("\n")[:_MAX_EVENT_LENGTH])
        except DeviceError:  # no line for a while, or the connection is lost
            with contextlib.suppress(DeviceError):
                shell.check_alive("listening to the board server")
                continue
            break
    events.put(_End())
