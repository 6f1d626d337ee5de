"""The options that name a board and a device, and the connection to that device."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import click

from toolchain.cli import completion
from toolchain.cli.common import PATH
from toolchain.cli.gathering import gather, option
from toolchain.cli.reports import PATIENCE
from toolchain.cli.values import Limit
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.board import Board, Precision
    from toolchain.device.connected import ConnectedDevice
    from toolchain.device.probe.facts import DeviceFacts
    from toolchain.device.waiting import Patience
    from toolchain.devices import Device
    from toolchain.farm.boards import BoardRequest
    from toolchain.places.labgrid import AcquiredPlace
    from toolchain.shell import SshOptions

_LONGEST_WAIT_S = 7 * 86400.0
_HERE = "local"
_SSH_NOTES = f"{__name__} SSH notes"


def _meta() -> dict[Any, Any]:
    """Return the memory of the running command, so that a device is probed once; empty outside of a command."""
    context = click.get_current_context(silent=True)
    return context.find_root().meta if context else {}


def _say() -> Callable[[str], None]:
    """Return the command's progress function; outside of a command, one that does nothing."""
    context = click.get_current_context(silent=True)
    console = context.find_root().obj if context else None
    return console.say if console else lambda _line: None


@dataclass(frozen=True)
class BoardOptions:
    """The option that names a board type."""

    board_name: str = option(
        "--board",
        default="local",
        show_default=True,
        shell_complete=completion.boards,
        metavar="BOARD",
        help="Board type, or a board file (.toml).",
    )

    def board(self, **precision: Unpack[Precision]) -> Board:
        """Load the board type, resolved, with layers in a precision as `Board.with_precision` has it."""
        from toolchain import board as board_files

        board = board_files.load(self.board_name).resolved()
        return board.with_precision(**precision)


@dataclass(frozen=True)
class Selected:
    """The board type of a command, and how it was chosen.

    Attributes:
        board: The board type, resolved.
        reason: Why a probe of the device chose it; empty without a probe.
        emulated: Whether the probe found signs of an emulator.
    """

    board: Board
    reason: str = ""
    emulated: bool = False


@dataclass(frozen=True)
class AddressOptions(BoardOptions):
    """The options that name a device and how to reach it."""

    board_name: str = option(
        "--board",
        default="",
        metavar="BOARD",
        shell_complete=completion.boards,
        help="Board type, or a board file (.toml). Default: that of --host, or this machine.",
    )
    host: str | None = option(
        "--host",
        shell_complete=completion.hosts,
        metavar="HOST",
        help="Device: user@address[:port], adb:SERIAL, or a name in devices.toml.",
    )
    place: str = option(
        "--place",
        default="",
        metavar="NAME",
        help="labgrid place to use instead of --host. It is acquired for the duration of the command.",
    )
    devices: Path | None = option(
        "--devices", type=PATH, help="List of devices. Default: devices.toml of the project, and yours."
    )
    root: str | None = option("--root", metavar="FOLDER", help="Folder on the device. Default: as in the board file.")
    identity: Path | None = option("-i", "--identity", type=PATH, help="Private SSH key.")
    ssh_config: Path | None = option("--ssh-config", type=PATH, help="SSH configuration. Default: ~/.ssh/config.")
    known_hosts: tuple[Path, ...] = option(
        "--known-hosts", type=PATH, multiple=True, help="Trusted host keys. Default: ~/.ssh/known_hosts."
    )

    def board(self, **precision: Unpack[Precision]) -> Board:
        """Return the board type of the device, resolved; see `resolve`."""
        return self.resolve().board.with_precision(**precision)

    def resolve(self) -> Selected:
        """Decide the board type: that of --board, or else that of the device.

        An entry in devices.toml names the type; a device without an entry is probed once, which is reported.

        Raises:
            InputError: There is no such board type, or a devices.toml has faults.
            ToolchainError: The device cannot be reached, or no board type fits it.
        """
        from toolchain import board as board_files

        if self.board_name or not (self.host or self.place):
            return Selected(board_files.load(self.board_name or _HERE).resolved())
        if self.host and self.place:
            raise InputError("--host and --place cannot be combined", hint="leave one of them out")
        meta = _meta()
        if listed := self._listed_board():
            noted = (f"{__name__} entry", self.host)
            if (self.host or self.place) not in self.lab(listed) and noted not in meta:  # found by its address
                meta[noted] = True
                _say()(f"board {listed.name}: from the entry of devices.toml with the address {self.host}")
            return Selected(listed.resolved())
        key = (__name__, self._probe_key())
        if key not in meta:
            meta[key] = self._probe()
        selected: Selected = meta[key]
        return selected

    def for_bundle(self, source: str) -> Self:
        """Return the options with the board type of a package or a bundle, if nothing else names one.

        For a device without an entry: the type that fits it best may not be the one that the package was built for.
        """
        from toolchain import board as board_files
        from toolchain import bundle as bundles
        from toolchain import registry

        if self.board_name or not (self.host or self.place) or registry.is_address(source) or self._listed_board():
            return self
        with bundles.at_hand(Path(source)) as bundle:
            name = bundle.manifest.board
        return dataclasses.replace(self, board_name=name) if name in board_files.names() else self

    def _listed_board(self) -> Board | None:
        """Return the board type of the named device in devices.toml; None if it has no entry."""
        from toolchain.adoption import selection
        from toolchain.devices import load_devices

        return selection.listed(self.host or self.place, load_devices(self.devices))

    def _probe(self) -> Selected:
        from toolchain.adoption import selection
        from toolchain.device.connected import explain_host
        from toolchain.devices import load_devices
        from toolchain.progress import stage
        from toolchain.shell import open_shell

        place, say = self._acquire_place(), _say()
        address = place.host if place else self.host
        names = load_devices(self.devices)
        say(stage(f"probing {address} for its board type"))
        with explain_host(self.host or "", names), open_shell(address, config=self.ssh()) as shell:
            choice = selection.select(shell)
        say(choice.sentence(address or ""))
        return Selected(choice.board.resolved(), choice.reason, choice.emulated)

    def lab(self, board: Board) -> dict[str, Device]:
        """Return the devices of the lab by name, none for this machine; a file of --devices is always checked."""
        from toolchain.devices import load_devices

        is_here = board.connection == "local"
        devices = load_devices(self.devices) if self.devices or not is_here else {}
        return {} if is_here else devices

    def device(self, board: Board) -> Device:
        """Decide which device of a board type is meant, without contacting it.

        Raises:
            InputError: No device was named and none can be chosen, or a named one is of another type.
        """
        from toolchain.devices import find_device

        if self.place and (self.host or board.connection == "local"):
            other = "--host" if self.host else f"board {board.name}, which is this machine,"
            raise InputError(f"{other} and --place cannot be combined", hint="leave one of them out")
        if place := self._acquire_place():
            return self._mark_emulated(place.device(board.name, self.lab(board).get(self.place)))
        return self._mark_emulated(find_device(board, self.host, self.lab(board)))

    def _probe_key(self) -> Self:
        """Return the options that decide which device is probed, as the key of its result."""
        return dataclasses.replace(self, board_name="", root=None)

    def _mark_emulated(self, device: Device) -> Device:
        """Mark a device as emulated if a probe has found signs of an emulator."""
        probed = _meta().get((__name__, self._probe_key()))
        return dataclasses.replace(device, emulated=True) if probed and probed.emulated else device

    def _acquire_place(self) -> AcquiredPlace | None:
        """Acquire the labgrid place, if one is named, until the command ends."""
        from toolchain.places import labgrid

        if not self.place:
            return None
        context = click.get_current_context().find_root()
        key = f"{__name__} {self.place}"
        if key not in context.meta:
            acquired = self.patience().get(lambda: context.with_resource(labgrid.acquire(self.place)))
            context.meta[key] = acquired
        place: AcquiredPlace = context.meta[key]
        return place

    def patience(self) -> Patience:
        """Return how long this command waits for devices in use: one budget for everything that it waits for."""
        from toolchain.device.waiting import Patience

        context = click.get_current_context(silent=True)
        if context is None:
            return Patience(getattr(self, "wait_s", 0.0))
        meta, console = context.meta, context.find_root().obj
        if PATIENCE not in meta:
            meta[PATIENCE] = Patience(getattr(self, "wait_s", 0.0), *([console.say] if console else []))
        patience: Patience = meta[PATIENCE]
        return patience

    def folder(self) -> str:
        """Return the folder on the device; empty for that of the board file.

        Raises:
            InputError: It is not a valid folder on a device.
        """
        from toolchain.devices import check_root

        return check_root(self.root) if self.root else ""

    def chosen_slot(self) -> str:
        """Return the slot of the store; empty for its own releases, which all commands without --slot use.

        Raises:
            InputError: It is not a valid name.
        """
        return ""

    def ssh(self) -> SshOptions:
        """Return the SSH options of the command line and the environment."""
        from toolchain.shell import SshOptions

        options = SshOptions(
            config_file=self.ssh_config,
            known_hosts=self.known_hosts,
            identity=self.identity,
            password=os.environ.get("TOOLCHAIN_SSH_PASSWORD"),
            report=_say(),
            noted=_meta().setdefault(_SSH_NOTES, set()),
        )
        place = self._acquire_place()
        return place.ssh(options) if place else options

    def board_request(
        self, board: Board, purpose: str, tracker: str | None = None, key: str | None = None, limit: int = 0
    ) -> BoardRequest:
        """Return which boards to measure on, without contacting them.

        Args:
            board: The board type.
            purpose: What is tuned or examined, shown to others who wait for the boards.
            tracker: Address of the user's own tracker; None for the farm.
            key: Key of the boards at that tracker; None for the board type.
            limit: Largest number of boards of the farm; 0 for all.

        Raises:
            InputError: The options cannot be combined, or one is not valid.
        """
        from toolchain.farm.boards import BoardRequest, parse_tracker

        name = self.host or self.place
        lab = self.lab(board)
        unlisted = {name: self.device(board)} if self.place or (self.host and self.host not in lab) else {}
        return BoardRequest(
            board=board,
            host=name,
            devices={**lab, **unlisted},
            ssh=self.ssh(),
            root=self.folder(),
            tracker=parse_tracker(tracker) if tracker else None,
            key=key or "",
            purpose=f"tune {purpose}",
            patience=self.patience(),
            limit=limit,
        )


@dataclass(frozen=True)
class DeviceOptions(AddressOptions):
    """The options of commands that work on a device, which may be in use."""

    wait_s: float = option(
        "--wait",
        metavar="SECONDS",
        type=Limit(min=0.0, max=_LONGEST_WAIT_S),
        default=0.0,
        help="Wait up to SECONDS if the device is in use. Default: fail at once with exit code 75.",
    )


@dataclass(frozen=True)
class StatusOptions(AddressOptions):
    """The options of commands for a release of a device, in one of its slots, that do not wait for others."""

    slot: str = option(
        "--slot",
        metavar="NAME",
        default="",
        help="One of several models of the device, each with its own current release. Default: the one without a name.",
    )

    def chosen_slot(self) -> str:
        """Return the slot of --slot, checked."""
        from toolchain.devices import check_slot

        return check_slot(self.slot) if self.slot else ""


@dataclass(frozen=True)
class SlotOptions(StatusOptions, DeviceOptions):
    """The options of commands for a release of a device, in one of its slots."""


@contextlib.contextmanager
def open_device(
    board: Board,
    options: AddressOptions,
    say: Callable[[str], None] = lambda _line: None,
    progress: Callable[[str], None] | None = None,
    *,
    makes_slot: bool = False,
) -> Iterator[ConnectedDevice]:
    """Connect to the device that a command's options name.

    Args:
        board: The board type, resolved.
        options: The options.
        say: Called with the file that names the device.
        progress: Called with what was repaired on the device before a change; `say` by default.
        makes_slot: Whether the command makes the slot if the device does not have it.

    Raises:
        InputError: There is no such device, or slot.
        DeviceError: It cannot be reached.
    """
    from toolchain.device.connected import Connection

    slot, entry = options.chosen_slot(), options.device(board)
    announce(entry, board, options, say)
    connection = Connection(
        board=board,
        entry=entry,
        ssh=options.ssh(),
        root=options.folder(),
        progress=progress or say,
        patience=options.patience(),
        host=options.host or "",
        names=options.lab(board),
        slot=slot,
    )
    with connection.open() as device:
        if not makes_slot:
            device.store.check_slot()
        yield device


def announce(entry: Device, board: Board, options: AddressOptions, say: Callable[[str], None]) -> None:
    """Report which devices.toml names the device, if one does."""
    from toolchain.devices import source_of

    if board.connection != "local" and (source := source_of(entry, options.devices)):
        say(f"device {entry.host} of {source}")


def cpu_warnings(
    device: ConnectedDevice, facts: DeviceFacts, options: AddressOptions, threads: int | None
) -> tuple[str, ...]:
    """Warn about threads on slow cores, and about unused CPU features of the device; never the latter for an emulator.

    `threads` are those that the user requests.
    """
    from toolchain.adoption import unused
    from toolchain.devices import source_of

    texts = [device.board.warning_of_threads(threads or 0)]
    if not device.emulated and device.board.connection != "local":
        listed = str(source_of(device.entry, options.devices) or "")
        texts.append(unused.warning(device.board, facts, device.shell, listed=listed))
    return tuple(filter(None, texts))


board_options = gather("board", BoardOptions)
device_options = gather("device", DeviceOptions)
slot_options = gather("device", SlotOptions)
status_options = gather("device", StatusOptions)
