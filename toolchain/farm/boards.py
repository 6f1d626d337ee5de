"""Where a board type is measured: on this machine, on the farm's boards, or behind somebody's tracker."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolchain.board import Board
from toolchain.device import lock
from toolchain.device.lock import WITHIN, Owner
from toolchain.device.store import Store
from toolchain.device.waiting import Patience, Waited
from toolchain.devices import Device, find_device, source_of
from toolchain.errors import DeviceError, InputError
from toolchain.farm import client as serving
from toolchain.farm import leases
from toolchain.farm.joining import Crew, Joining
from toolchain.farm.leases import Lease, LeasedBoard
from toolchain.rpc import registered
from toolchain.shell import LocalShell, SshOptions, open_shell
from toolchain.shell.adb import client as adb
from toolchain.tuning.measure import Event, Place, ServerPlace, TrackerPlace, local_server

Tell = Callable[[str], None]
"""Called with a line about progress."""


@dataclass(frozen=True)
class Wanted:
    """Which boards to measure on, from the command line.

    Attributes:
        board: The board type, resolved.
        host: Address or name of the only device to use; empty for all that the farm serves.
        devices: The lab's devices.
        ssh: How a device is reached that the farm does not serve.
        root: Folder on such a device, or on this machine; empty for the board file's.
        tracker: Host and port of a tracker of the user's own; None for the farm's.
        key: Key of the boards at that tracker; the board type by default.
        purpose: What for; others who want the same boards are told.
        patience: How long others may be at work on them, all in all; not at all by default.
        most: How many boards at most; 0 for all.
        shares: Whether boards that become free later join, and boards are given back where others wait, for who
            follows them with `Boards.follow`.

    Raises:
        InputError: These exclude each other.
    """

    board: Board
    host: str = ""
    devices: Mapping[str, Device] = field(default_factory=dict)
    ssh: SshOptions = field(default_factory=SshOptions)
    root: str = ""
    tracker: tuple[str, int] | None = None
    key: str = ""
    purpose: str = ""
    patience: Patience = field(default_factory=Patience, compare=False)
    most: int = 0
    shares: bool = False

    def __post_init__(self) -> None:
        here = self.board.connection == "local"
        if self.most and (here or self.host or self.tracker):
            raise InputError(
                "--boards limits how many of the farm's boards of a type are used",
                hint="leave it out: this machine, --host and --place are one board; a tracker's boards are all used",
            )
        if here and (self.host or self.tracker):
            raise InputError(
                f"board {self.board.name} is this machine, so --host and --tracker do not apply",
                hint="pass the device's board type with --board: `toolchain boards` lists the types",
            )
        if self.host and self.tracker:
            raise InputError("--host and --tracker cannot be combined", hint="choose a tracker's board with --key")
        if self.key and not self.tracker:
            raise InputError("--key requires --tracker", hint="choose the farm's boards with --board and --host")


@dataclass(frozen=True)
class Boards:
    """The boards of a run.

    Attributes:
        places: One for each.
        lease: The farm's lease of them, if they are the farm's.
        model: Name of the model of an accelerator that stands in for boards; empty where there are some.
        waited: Who was at work on them before, and how long they were waited for.
        machine: What `uname -m` says on those of the farm.
    """

    places: tuple[Place, ...]
    lease: Lease | None = None
    model: str = ""
    waited: tuple[Waited, ...] = ()
    machine: str = ""

    @property
    def emulated(self) -> bool:
        """Whether any of their times are not a real board's."""
        return bool(self.model) or any(place.emulated for place in self.places)

    def follow(self, crew: Crew, fits: Callable[[Place], bool], tell: Tell) -> None:
        """Let a crew measure on the boards that join, and no longer on those that others wait for.

        Args:
            crew: Who measures.
            fits: Looks whether a place may be measured on, and tells why not.
            tell: Called with a line about each change.
        """
        if self.lease is not None:
            make = functools.partial(_place, self.machine, self.lease)
            self.lease.follow(Joining(self.lease, crew, make, fits, self.emulated, tell))

    def report(self, event: Event) -> None:
        """Let `toolchain farm status` know what happens on a board."""
        if self.lease is None or event.place not in {board.name for board in self.lease.boards}:
            return
        if event.kind == "ended" and event.measured is not None:
            done, name = event.measured, event.trial.name if event.trial else ""
            what = f"{name} ({done.cause})" if done.cause else name
            self.lease.report_trial(event.place, what, ok=not done.cause, seconds=done.seconds)
        elif event.kind == "quarantined":
            self.lease.report_state(event.place, "quarantined", 1)
        elif event.kind == "back":
            self.lease.report_state(event.place, "ok", 0)


@contextlib.contextmanager
def opened(wanted: Wanted, tell: Tell) -> Iterator[Boards]:
    """Get the boards, and give them back at the end of the block.

    Raises:
        BusyError: Others are at work on them.
        InputError: There is no such device, or it is not said which one is meant.
        DeviceError: No board is free, or none can be reached.
    """
    with contextlib.ExitStack() as stack:
        boards = _taken(wanted, tell, wanted.patience, stack)
        for place in boards.places:
            stack.callback(place.close)
        yield replace(boards, waited=wanted.patience.waited)


def _taken(wanted: Wanted, tell: Tell, patience: Patience, stack: contextlib.ExitStack) -> Boards:
    """Get the boards until the stack is closed."""
    if wanted.board.connection == "local":
        return Boards((_here(wanted, tell, patience, stack),))
    if wanted.tracker:
        return Boards(_at_tracker(wanted, wanted.tracker, wanted.key or wanted.board.name))
    wanted = _by_name(wanted)
    folder = stack.enter_context(_folder(wanted, tell, patience))
    held = stack.enter_context(patience.get(lambda: _leased(wanted, folder)))
    machine = wanted.board.machine
    places = (_place(machine, held, one) for one in held.boards)
    return Boards(tuple(_inside(wanted, one, held, patience, stack) for one in places), held, machine=machine)


def _inside(wanted: Wanted, place: ServerPlace, held: Lease, patience: Patience, stack: contextlib.ExitStack) -> Place:
    """Take the inner lock of a board whose lease is an ancestor's, as under `farm lock NAME -- CMD`.

    Others may be at work inside of that one, too. A lease of one's own has the board's lock itself, and needs no other.
    """
    outer = os.environ.get(WITHIN)
    if not outer or outer not in {one.within for one in held.boards if one.name == place.name}:
        return place
    device = wanted.devices.get(place.name) or find_device(wanted.board, wanted.host or None, wanted.devices)
    shell = stack.enter_context(open_shell(device.host, config=wanted.ssh.before(device.ssh_config)))
    store = Store(shell, wanted.root or device.root or wanted.board.root, patience=patience)
    return _checked(place, stack.enter_context(store.lock(Owner.here(wanted.purpose))))


def _checked(place: ServerPlace, held: lock.Lease) -> ServerPlace:
    """Return a place where nothing more is measured once a lock is lost."""

    def dial(timeout_s: float) -> socket.socket:
        held.check()
        return place.dial(timeout_s)

    return replace(place, dial=dial)


def _here(wanted: Wanted, tell: Tell, patience: Patience, stack: contextlib.ExitStack) -> Place:
    """Return a server on this machine, which nobody deploys to meanwhile, and which nobody else measures on."""
    store = Store(stack.enter_context(LocalShell()), wanted.root or wanted.board.root, tell, patience)
    held = stack.enter_context(store.lock(Owner.here(wanted.purpose)))
    return _checked(stack.enter_context(local_server(wanted.board, tell)), held)


def is_served(wanted: Wanted) -> bool:
    """Whether the farm serves the boards that are wanted, and so looks after them itself."""
    return _serves(_by_name(wanted))


def _serves(wanted: Wanted) -> bool:
    return leases.serving() and (not wanted.host or wanted.host in serving.served_names())


def _by_name(wanted: Wanted) -> Wanted:
    """Call a device by the name that the farm serves it under: two servers on one board would disturb each other."""
    found = serving.status() if wanted.host else None
    known = found["boards"] if found else []
    if wanted.host in {one["name"] for one in known}:
        return wanted
    named = [one["name"] for one in known if one["host"] == wanted.host and _is_here(one)]
    return replace(wanted, host=named[0]) if len(named) == 1 else wanted


def _is_here(one: Mapping[str, Any]) -> bool:
    """Whether an address of adb means the same device to a farm as here: to another server it may be another one."""
    return one.get("adb_server", "") in {"", adb.server_address()}


@contextlib.contextmanager
def _folder(wanted: Wanted, tell: Tell, patience: Patience) -> Iterator[Path | None]:
    """Yield the folder of a daemon of this run's own, or None where the farm serves what is wanted."""
    if _serves(wanted):
        yield None
        return
    device = find_device(wanted.board, wanted.host or None, wanted.devices)
    # Several devices may have one host: an alias means another address in each one's own SSH configuration.
    name = wanted.host or next((name for name, one in wanted.devices.items() if one is device), device.host)
    if wanted.root:
        device = replace(device, root=wanted.root)
    if source := source_of(device):
        tell(f"device {name} of {source}")
    tell(f"serving {name} for this run; `toolchain farm up` serves all devices of the lab")
    with leases.private([leases.Place(name, wanted.board, device, wanted.ssh)], tell, patience) as folder:
        yield folder


def _leased(wanted: Wanted, folder: Path | None) -> Lease:
    names = [wanted.host] if wanted.host and folder is None else []
    return leases.lease(
        wanted.board.name,
        names,
        who=wanted.purpose,
        folder=folder,
        most=wanted.most,
        shares=wanted.shares and not names and folder is None,
        patience=wanted.patience,
    )


def _place(machine: str, held: Lease, one: LeasedBoard) -> ServerPlace:
    return ServerPlace(one.name, functools.partial(held.dial, one.name), one.key, machine, emulated=one.emulated)


def _at_tracker(wanted: Wanted, tracker: tuple[str, int], key: str) -> tuple[Place, ...]:
    known = [one for one in registered(tracker) if one.key == key]
    if not known:
        host, port = tracker
        raise DeviceError(
            f"the tracker at {host}:{port} has no board {key}",
            hint=f"start a board server with --tracker {host}:{port} --key {key}, or pass a registered --key",
        )
    places = (f"{key}-{number}" for number in range(1, len(known) + 1))
    return tuple(
        TrackerPlace(name, tracker, key, wanted.board.machine, emulated=wanted.board.emulated) for name in places
    )


def parse_tracker(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`.

    Raises:
        InputError: It is not of that form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"{text!r} is not a valid tracker address", hint="write --tracker 127.0.0.1:9190")
    return host, int(port)
