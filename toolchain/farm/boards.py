"""The boards of a run: this machine, boards of the farm, or boards behind a tracker of the user's own."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from toolchain.board import Board
from toolchain.device import lock
from toolchain.device.lock import WITHIN, Owner
from toolchain.device.store import Store
from toolchain.device.waiting import Patience, Waited
from toolchain.devices import Device, find_device, source_of
from toolchain.errors import DeviceError, InputError, ToolchainError
from toolchain.farm import client, leases
from toolchain.farm.leases import Lease, LeasedBoard
from toolchain.rpc import registered
from toolchain.shell import LocalShell, SshOptions, open_shell
from toolchain.shell.adb import client as adb
from toolchain.tuning.measure import Event, Place, ServerPlace, TrackerPlace, local_server

_BOOT_S = 30.0

Tell = Callable[[str], None]
"""Called with a line about progress."""


@dataclass(frozen=True)
class BoardRequest:
    """The boards to measure on, from the command line.

    Raises:
        InputError: The options cannot be combined.
    """

    board: Board  # resolved
    host: str = ""  # address or name of the only device to use; empty for all boards of the farm
    devices: Mapping[str, Device] = field(default_factory=dict)  # from the device lists
    ssh: SshOptions = field(default_factory=SshOptions)  # for a device that the farm does not serve
    root: str = ""  # folder on such a device, or on this machine; empty for the board file's
    tracker: tuple[str, int] | None = None  # host and port of the user's own tracker
    key: str = ""  # key of the boards at that tracker; the board type by default
    purpose: str = ""  # shown to others who request the same boards
    patience: Patience = field(default_factory=Patience, compare=False)
    limit: int = 0  # boards at most; 0 for all
    shares: bool = False  # whether boards join and leave during the run, as in `leases.lease`

    def __post_init__(self) -> None:
        is_local = self.board.connection == "local"
        if self.limit and (is_local or self.host or self.tracker):
            raise InputError(
                "--boards limits how many of the farm's boards of a type are used",
                hint="leave it out: this machine, --host and --place are one board; a tracker's boards are all used",
            )
        if is_local and (self.host or self.tracker):
            raise InputError(
                f"board {self.board.name} is this machine, so --host and --tracker do not apply",
                hint="pass the device's board type with --board: `toolchain board list` lists the types",
            )
        if self.host and self.tracker:
            raise InputError("--host and --tracker cannot be combined", hint="choose a tracker's board with --key")
        if self.key and not self.tracker:
            raise InputError("--key requires --tracker", hint="choose the farm's boards with --board and --host")


class Workers(Protocol):
    """Measures on places, as a `MeasurePool` does."""

    def add(self, place: Place, fits: Callable[[], bool], /) -> None:
        """Also measure on a place, if it fits."""

    def retire(self, name: str, on_left: Callable[[], None], /) -> None:
        """Stop measuring on a place, and call `on_left` after its current trial."""


@dataclass(frozen=True)
class Boards:
    """The boards of a run, as places to measure on."""

    places: tuple[Place, ...]
    lease: Lease | None = None  # for the farm's boards
    model: str = ""  # name of an accelerator's model that replaces the boards
    waited: tuple[Waited, ...] = ()  # who used them before, and for how long this run waited
    machine: str = ""  # `uname -m` on the farm's boards

    @property
    def emulated(self) -> bool:
        """Whether any of their times are not a real board's."""
        return bool(self.model) or any(place.emulated for place in self.places)

    def follow(self, workers: Workers, fits: Callable[[Place], bool], tell: Tell) -> None:
        """Let workers measure on boards that join the lease, and stop on boards that others wait for.

        `fits` checks a place, and reports why it does not fit.
        """
        if self.lease is not None:
            make = functools.partial(_place, self.machine, self.lease)
            self.lease.follow(Joining(self.lease, workers, make, fits, self.emulated, tell))

    def report(self, event: Event) -> None:
        """Report a board's trials and state, for `toolchain farm status`."""
        if self.lease is None or event.place not in {board.name for board in self.lease.boards}:
            return
        if event.kind == "ended" and event.measured is not None:
            result, name = event.measured, event.trial.name if event.trial else ""
            trial = f"{name} ({result.cause})" if result.cause else name
            self.lease.report_trial(event.place, trial, ok=not result.cause, seconds=result.seconds)
        elif event.kind == "quarantined":
            self.lease.report_state(event.place, "quarantined", 1)
        elif event.kind == "back":
            self.lease.report_state(event.place, "ok", 0)


@dataclass(frozen=True)
class Joining:
    """Adds a lease's new boards to a run's workers, and removes those that others wait for."""

    lease: Lease
    workers: Workers
    make_place: Callable[[LeasedBoard], Place]
    fits: Callable[[Place], bool]
    emulated: bool  # whether the run's times are an emulator's
    tell: Tell

    def joined(self, board: LeasedBoard) -> None:
        if board.emulated and not self.emulated:
            self.tell(f"{board.name}: not used: it is emulated, and this run measures real boards")
            self.lease.give(board.name, for_good=True)
            return
        place = self.make_place(board)
        self.tell(f"{board.name}: joins")

        def fits() -> bool:
            if self.fits(place):
                return True
            self.lease.give(place.name, for_good=True)
            return False

        self.workers.add(place, fits)

    def recalled(self, name: str) -> None:
        self.tell(f"{name}: returned to the farm after its trial, because others wait for it")
        self.workers.retire(name, lambda: self.lease.give(name))

    def lost(self, name: str, why: ToolchainError) -> None:
        # The worker on this board notices it by itself: its session is cut.
        self.tell(f"{name}: {why.message}")


@contextlib.contextmanager
def open_boards(request: BoardRequest, tell: Tell) -> Iterator[Boards]:
    """Get the boards, and give them back at the end of the block.

    Raises:
        BusyError: Other users are using them.
        InputError: There is no such device, or several could be meant.
        DeviceError: No board is free, or none can be reached.
    """
    with contextlib.ExitStack() as stack:
        boards = _acquire(request, tell, stack)
        for place in boards.places:
            stack.callback(place.close)
        yield replace(boards, waited=request.patience.waited)


def _acquire(request: BoardRequest, tell: Tell, stack: contextlib.ExitStack) -> Boards:
    if request.board.connection == "local":
        # Locked like any other device, so that no other process deploys to it or measures on it meanwhile.
        shell = stack.enter_context(LocalShell())
        store = Store(shell, request.root or request.board.root, tell, request.patience)
        device_lock = stack.enter_context(store.lock(Owner.here(request.purpose)))
        return Boards((_guarded(stack.enter_context(local_server(request.board, tell)), device_lock),))
    if request.tracker:
        return Boards(_at_tracker(request, request.tracker, request.key or request.board.name))
    request = _with_served_name(request)
    folder = stack.enter_context(_daemon_folder(request, tell))
    lease = stack.enter_context(request.patience.get(lambda: _lease(request, folder)))
    machine = request.board.machine
    places = (_place(machine, lease, board) for board in lease.boards)
    return Boards(tuple(_inside(request, place, lease, stack) for place in places), lease, machine=machine)


def _inside(request: BoardRequest, place: ServerPlace, lease: Lease, stack: contextlib.ExitStack) -> Place:
    """Take the inner lock of a board whose lease is an ancestor's, as under `farm lock NAME -- CMD`."""
    # Other descendants may share that lease. A lease of this process has the board's lock, and needs no inner one.
    outer = os.environ.get(WITHIN)
    if not outer or outer not in {board.within for board in lease.boards if board.name == place.name}:
        return place
    device = request.devices.get(place.name) or find_device(request.board, request.host or None, request.devices)
    shell = stack.enter_context(open_shell(device.host, config=request.ssh.before(device.ssh_config)))
    store = Store(shell, request.root or device.root or request.board.root, patience=request.patience)
    return _guarded(place, stack.enter_context(store.lock(Owner.here(request.purpose))))


def _guarded(place: ServerPlace, device_lock: lock.Lease) -> ServerPlace:
    """Return a place that opens no session any more once a lock is lost."""

    def dial(timeout_s: float) -> socket.socket:
        device_lock.check()
        return place.dial(timeout_s)

    return replace(place, dial=dial)


def is_served(request: BoardRequest) -> bool:
    """Whether the farm serves the requested boards, and so keeps their locks and checks their health."""
    return _serves(_with_served_name(request))


def _serves(request: BoardRequest) -> bool:
    return leases.is_running() and (not request.host or request.host in client.served_names())


def _with_served_name(request: BoardRequest) -> BoardRequest:
    """Replace an address by the farm's name for the device: two servers on one board would disturb each other."""
    status = client.status() if request.host else None
    served = status["boards"] if status else []
    if request.host in {board["name"] for board in served}:
        return request
    # At another adb server the same address may be another device.
    adb_servers = {"", adb.server_address()}
    same_host = [board for board in served if board["host"] == request.host]
    names = [board["name"] for board in same_host if board.get("adb_server", "") in adb_servers]
    return replace(request, host=names[0]) if len(names) == 1 else request


@contextlib.contextmanager
def _daemon_folder(request: BoardRequest, tell: Tell) -> Iterator[Path | None]:
    """Yield the folder of a daemon of this run's own, or None where the farm serves the request."""
    if _serves(request):
        yield None
        return
    device = find_device(request.board, request.host or None, request.devices)
    # Compared by identity: devices with the same host may differ in their SSH configurations.
    name = request.host or next((name for name, each in request.devices.items() if each is device), device.host)
    if request.root:
        device = replace(device, root=request.root)
    if source := source_of(device):
        tell(f"device {name} of {source}")
    tell(f"serving {name} for this run; `toolchain farm up` serves all devices of the lab")
    to_serve = leases.FarmDevice(name, request.board, device, request.ssh)
    with leases.private([to_serve], tell, request.patience) as folder:
        yield folder


def _lease(request: BoardRequest, folder: Path | None) -> Lease:
    names = [request.host] if request.host and folder is None else []
    shares = request.shares and not names and folder is None
    return leases.lease(
        request.board.name,
        names,
        who=request.purpose,
        folder=folder,
        limit=request.limit,
        # Tuning takes hours, and is worth waiting until a board has booted again.
        wait=_BOOT_S if shares else leases.WAIT_S,
        shares=shares,
        patience=request.patience,
    )


def _place(machine: str, lease: Lease, board: LeasedBoard) -> ServerPlace:
    dial = functools.partial(lease.dial, board.name)
    return ServerPlace(board.name, dial, board.key, machine, emulated=board.emulated)


def _at_tracker(request: BoardRequest, tracker: tuple[str, int], key: str) -> tuple[Place, ...]:
    servers = [server for server in registered(tracker) if server.key == key]
    if not servers:
        host, port = tracker
        raise DeviceError(
            f"the tracker at {host}:{port} has no board {key}",
            hint=f"start a board server with --tracker {host}:{port} --key {key}, or pass a registered --key",
        )
    # A tracker gives any free board of a key, so these names do not denote particular boards.
    names = (f"{key}-{number}" for number in range(1, len(servers) + 1))
    board = request.board
    return tuple(TrackerPlace(name, tracker, key, board.machine, emulated=board.emulated) for name in names)


def parse_tracker(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, or raise an InputError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"{text!r} is not a valid tracker address", hint="write --tracker 127.0.0.1:9190")
    return host, int(port)
