"""Which board and which device a command's options name, and the connection to it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from toolchain.cli import completion
from toolchain.cli.common import PATH, Limit
from toolchain.cli.gathering import gather, option
from toolchain.cli.reports import PATIENCE
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.board import Board
    from toolchain.device.connected import ConnectedDevice
    from toolchain.device.store import DeviceFacts
    from toolchain.device.waiting import Patience
    from toolchain.devices import Device
    from toolchain.farm.boards import BoardRequest
    from toolchain.places.labgrid import AcquiredPlace
    from toolchain.shell import SshOptions

_LONGEST_WAIT_S = 7 * 86400.0
_HERE = "local"
_NOTED = f"{__name__} noted"


def _meta() -> dict[Any, Any]:
    """Return what this command remembers; nothing outside of one."""
    context = click.get_current_context(silent=True)
    return context.find_root().meta if context else {}


def _say() -> Callable[[str], None]:
    """Return what shows a line about progress; it shows nothing outside of a command."""
    context = click.get_current_context(silent=True)
    console = context.find_root().obj if context else None
    return console.say if console else lambda _line: None


@dataclass(frozen=True)
class BoardOptions:
    """Which board type is meant."""

    board_name: str = option(
        "--board",
        default="local",
        show_default=True,
        shell_complete=completion.boards,
        metavar="BOARD",
        help="Board type, or a board file (.toml).",
    )

    def board(self, *, float16: bool = False, half_sums: bool = False) -> Board:
        """Load the board type, resolved; with float16, as one that computes in half precision, and maybe sums in it."""
        from toolchain import board as board_files

        board = board_files.load(self.board_name).resolved()
        return board.in_float16(half_sums=half_sums) if float16 else board


@dataclass(frozen=True)
class Selected:
    """The board type of a command, and how it was chosen.

    Attributes:
        board: The board type, resolved.
        reason: Why it is the one, where a probe of the device chose it; else empty.
        emulated: Whether the probe found signs of an emulator.
    """

    board: Board
    reason: str = ""
    emulated: bool = False


@dataclass(frozen=True)
class AddressOptions(BoardOptions):
    """Which device is meant, and how it is reached."""

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

    def board(self, *, float16: bool = False, half_sums: bool = False) -> Board:
        """Return the board type of the device, resolved; see `resolve`."""
        board = self.resolve().board
        return board.in_float16(half_sums=half_sums) if float16 else board

    def resolve(self) -> Selected:
        """Decide the board type: the one that is named, or else that of the device that is.

        An entry of a devices.toml says it; a device without an entry is probed once, and its board type is told.

        Raises:
            InputError: There is no such board type, or a list of devices has faults.
            ToolchainError: The device cannot be reached, or no release would run on it.
        """
        from toolchain import board as board_files

        if self.board_name or not (self.host or self.place):
            return Selected(board_files.load(self.board_name or _HERE).resolved())
        if self.host and self.place:
            raise InputError("--host and --place cannot be combined", hint="leave one of them out")
        if listed := self._listed_board():
            self._report_entry(listed)
            return Selected(listed.resolved())
        meta, key = _meta(), (__name__, self._probe_key())
        if key not in meta:
            meta[key] = self._probe()
        selected: Selected = meta[key]
        return selected

    def for_bundle(self, source: str) -> Self:
        """Return the options with the board type that a package or a bundle was built for, where nothing says another.

        That is where a device has no entry: its best board type is not the one that it has to be then.
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
        """Return the board type that the lists of devices say of the named device; None if they do not."""
        from toolchain.adoption import selection
        from toolchain.devices import load_devices

        return selection.listed(self.host or self.place, load_devices(self.devices))

    def _report_entry(self, listed: Board) -> None:
        """Tell once of the board type of an address that has an entry by another name."""
        meta, key = _meta(), (f"{__name__} entry", self.host)
        if (self.host or self.place) in self.lab(listed) or key in meta:
            return
        meta[key] = True
        _say()(f"board {listed.name}: from the entry of devices.toml with the address {self.host}")

    def _probe(self) -> Selected:
        from toolchain.adoption import selection
        from toolchain.device.connected import explained_host
        from toolchain.devices import load_devices
        from toolchain.progress import stage
        from toolchain.shell import open_shell

        place, say = self._acquire_place(), _say()
        address = place.host if place else self.host
        names = load_devices(self.devices)
        say(stage(f"probing {address} for its board type"))
        with explained_host(self.host or "", names), open_shell(address, config=self.ssh()) as shell:
            choice = selection.select(shell)
        say(choice.sentence(address or ""))
        return Selected(choice.board.resolved(), choice.reason, choice.emulated)

    def lab(self, board: Board) -> dict[str, Device]:
        """Return the devices of the lab by name, none for this machine; a list that was named must be right."""
        from toolchain.devices import load_devices

        is_here = board.connection == "local"
        devices = load_devices(self.devices) if self.devices or not is_here else {}
        return {} if is_here else devices

    def device(self, board: Board) -> Device:
        """Decide which device of a board type is meant; nothing is asked of it.

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
        """Return the options without those that do not decide which device is probed."""
        return dataclasses.replace(self, board_name="", root=None)

    def _mark_emulated(self, device: Device) -> Device:
        """Return a device, as an emulator if a probe has shown signs of one."""
        probed = _meta().get((__name__, self._probe_key()))
        return dataclasses.replace(device, emulated=True) if probed and probed.emulated else device

    def _acquire_place(self) -> AcquiredPlace | None:
        """Acquire the place, if one is named, for as long as the command runs; return where it is."""
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
        """Return how long this command waits, for all that others are at work on."""
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
        """Return the folder on the device; empty for the board's own.

        Raises:
            InputError: It is not a valid folder on a device.
        """
        from toolchain.devices import check_root

        return check_root(self.root) if self.root else ""

    def ssh(self) -> SshOptions:
        """Return how the user, and the environment, want devices to be reached."""
        from toolchain.shell import SshOptions

        options = SshOptions(
            config_file=self.ssh_config,
            known_hosts=self.known_hosts,
            identity=self.identity,
            password=os.environ.get("TOOLCHAIN_SSH_PASSWORD"),
            report=_say(),
            noted=_meta().setdefault(_NOTED, set()),
        )
        place = self._acquire_place()
        return place.ssh(options) if place else options


@dataclass(frozen=True)
class DeviceOptions(AddressOptions):
    """Which device is worked on, and how long it is waited for."""

    wait_s: float = option(
        "--wait",
        metavar="SECONDS",
        type=Limit(min=0.0, max=_LONGEST_WAIT_S),
        default=0.0,
        help="Wait up to SECONDS if the device is in use. Default: fail at once with exit code 75.",
    )

    def board_request(
        self, board: Board, purpose: str, tracker: str | None = None, key: str | None = None, limit: int = 0
    ) -> BoardRequest:
        """Say which boards are measured on; nothing is asked of them.

        Args:
            board: The board type.
            purpose: What is tuned or looked at; others who want the boards are told.
            tracker: Address of a tracker of the user's own; None for the farm's.
            key: Key of the boards at that tracker; None for the board type.
            limit: How many of the farm's boards at most; 0 for all.

        Raises:
            InputError: The options exclude each other, or are none.
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


@contextlib.contextmanager
def open_device(
    board: Board,
    options: AddressOptions,
    say: Callable[[str], None] = lambda _line: None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[ConnectedDevice]:
    """Connect to the device that a command's options name.

    Args:
        board: The board type, resolved.
        options: The options.
        say: Told which file of devices names the device.
        progress: Told what was put right on the device before a change; `say` by default.

    Raises:
        InputError: There is no such device.
        DeviceError: It cannot be reached.
    """
    from toolchain.device.connected import Connection

    entry = options.device(board)
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
    )
    with connection.open() as device:
        yield device


def announce(entry: Device, board: Board, options: AddressOptions, say: Callable[[str], None]) -> None:
    """Say which list of devices names the device, if one does."""
    from toolchain.devices import source_of

    if board.connection != "local" and (source := source_of(entry, options.devices)):
        say(f"device {entry.host} of {source}")


def unused_cpu_warnings(device: ConnectedDevice, facts: DeviceFacts, options: AddressOptions) -> tuple[str, ...]:
    """Return the warning of what the device's CPU has and its board type leaves unused; an emulator's says nothing."""
    from toolchain.adoption import unused
    from toolchain.devices import source_of

    if device.emulated or device.board.connection == "local":
        return ()
    text = unused.warning(device.board, facts, device.shell, listed=str(source_of(device.entry, options.devices) or ""))
    return (text,) if text else ()


board_options = gather("board", BoardOptions)
address_options = gather("device", AddressOptions)
device_options = gather("device", DeviceOptions)
