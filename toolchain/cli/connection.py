"""Which board and which device a command's options name, and the connection to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import completion
from toolchain.cli.gathering import gathered, option
from toolchain.cli.options import PATH, Limit
from toolchain.cli.reports import PATIENCE
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.board import Board
    from toolchain.device.waiting import Patience
    from toolchain.devices import Device
    from toolchain.farm.boards import Wanted
    from toolchain.pipeline import Lab
    from toolchain.places.labgrid import Placed
    from toolchain.shell import SshOptions

_LONGEST_WAIT_S = 7 * 86400.0


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
        from toolchain import board

        kind = board.load(self.board_name).resolved()
        return kind.in_float16(half_sums=half_sums) if float16 else kind


@dataclass(frozen=True)
class AddressOptions(BoardOptions):
    """Which device is meant, and how it is reached."""

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

    def lab(self, kind: Board) -> dict[str, Device]:
        """Return the devices of the lab by name; for this machine none are asked for."""
        from toolchain.devices import load_devices

        return {} if kind.connection == "local" else load_devices(self.devices)

    def device(self, kind: Board) -> Device:
        """Decide which device of a board type is meant; nothing is asked of it.

        Raises:
            InputError: No device was named and none can be chosen, or a named one is of another type.
        """
        from toolchain.devices import find_device

        if self.place and (self.host or kind.connection == "local"):
            other = "--host" if self.host else f"board {kind.name}, which is this machine,"
            raise InputError(f"{other} and --place exclude each other", hint="leave one of them out")
        if placed := self._placed():
            return placed.device(kind.name, self.lab(kind).get(self.place))
        return find_device(kind, self.host, self.lab(kind))

    def _placed(self) -> Placed | None:
        """Acquire the place, if one is named, for as long as the command runs; return where it is."""
        from toolchain.places import labgrid

        if not self.place:
            return None
        context = click.get_current_context().find_root()
        key = f"{__name__} {self.place}"
        if key not in context.meta:
            taken = self.patience().get(lambda: context.with_resource(labgrid.acquired(self.place)))
            context.meta[key] = taken
        found: Placed = context.meta[key]
        return found

    def patience(self) -> Patience:
        """Return how long this command waits, for all that others are at work on."""
        from toolchain.device.waiting import Patience

        context = click.get_current_context(silent=True)
        if context is None:
            return Patience(getattr(self, "wait_s", 0.0))
        meta, console = context.meta, context.find_root().obj
        if PATIENCE not in meta:
            meta[PATIENCE] = Patience(getattr(self, "wait_s", 0.0), *([console.say] if console else []))
        found: Patience = meta[PATIENCE]
        return found

    def folder(self) -> str:
        """Return the folder on the device; empty for the board's own.

        Raises:
            InputError: It is no folder for a device.
        """
        from toolchain.devices import check_root

        return check_root(self.root) if self.root else ""

    def ssh(self) -> SshOptions:
        """Return how the user, and the environment, want devices to be reached."""
        from toolchain.shell import SshOptions

        found = SshOptions(
            config_file=self.ssh_config,
            known_hosts=self.known_hosts,
            identity=self.identity,
            password=os.environ.get("TOOLCHAIN_SSH_PASSWORD"),
        )
        placed = self._placed()
        return placed.ssh(found) if placed else found


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

    def boards(
        self, kind: Board, what: str, tracker: str | None = None, key: str | None = None, most: int = 0
    ) -> Wanted:
        """Say which boards are measured on; nothing is asked of them.

        Args:
            kind: The board type.
            what: What is tuned or looked at; others who want the boards are told.
            tracker: Address of a tracker of the user's own; None for the farm's.
            key: Key of the boards at that tracker; None for the board type.
            most: How many of the farm's boards at most; 0 for all.

        Raises:
            InputError: The options exclude each other, or are none.
        """
        from toolchain.farm.boards import Wanted, parse_tracker

        at_place = {self.place: self.device(kind)} if self.place else {}
        return Wanted(
            board=kind,
            host=self.host or self.place,
            devices={**self.lab(kind), **at_place},
            ssh=self.ssh(),
            root=self.folder(),
            tracker=parse_tracker(tracker) if tracker else None,
            key=key or "",
            purpose=f"tune {what}",
            patience=self.patience(),
            most=most,
        )


@contextlib.contextmanager
def open_device(
    kind: Board,
    options: AddressOptions,
    say: Callable[[str], None] = lambda _line: None,
    tell: Callable[[str], None] | None = None,
) -> Iterator[Lab]:
    """Connect to the device that a command's options name.

    Args:
        kind: The board type, resolved.
        options: The options.
        say: Told which file of devices names the device.
        tell: Told what was put right on the device before a change; `say` by default.

    Raises:
        InputError: There is no such device.
        DeviceError: It cannot be reached.
    """
    from toolchain.devices import whence
    from toolchain.pipeline import preflight

    device = options.device(kind)
    if kind.connection != "local" and (source := whence(device, options.devices)):
        say(f"device {device.host} of {source}")
    named = preflight.Named(options.host or "", options.lab(kind))
    ssh, folder, patience = options.ssh(), options.folder(), options.patience()
    with preflight.opened(kind, device, ssh, folder, named, tell or say, patience) as lab:
        yield lab


board = gathered("board", BoardOptions)
address = gathered("device", AddressOptions)
device = gathered("device", DeviceOptions)
