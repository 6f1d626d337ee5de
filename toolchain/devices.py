"""The devices of one lab, from devices.toml: where each is, and of which board type."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import files, state
from toolchain.board import Board
from toolchain.errors import InputError
from toolchain.validation import CONFIG, DEVICE_FOLDER, SLOT, DeviceFolder, Fault, SlotName, Word, parse_toml, validate

UnitName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_:.@-]*\.service$", max_length=255)]
_LONGEST_COMMAND = 4096
_SHOWN = 100  # letters of a wrong name


def _one_line(text: str) -> str:
    if len(text) > _LONGEST_COMMAND or not text.strip() or not text.replace("\t", " ").isprintable():
        raise ValueError(f"should be one line of shell, of at most {_LONGEST_COMMAND} printable characters")
    return text


# one line of shell, run on the device, or on this machine for a meter
Command = Annotated[str, AfterValidator(_one_line)]


@checked_dataclass(frozen=True, config=CONFIG)
class Application:
    """The application that runs a device's current release, from the `run` table of a device."""

    unit: UnitName | None = None  # unit of systemd that is restarted
    # the login's own, `systemctl --user`, or the system's, `sudo -n systemctl`
    scope: Literal["user", "system"] = "user"
    restart: Command | None = None  # command that restarts it instead, where there is no systemd
    # command on the device that exits with 0 once the application is well; by default the unit must be and stay active
    health: Command | None = None
    within: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,2}s$")] = "30s"  # seconds that it may take, such as `30s`

    @model_validator(mode="after")
    def _check(self) -> Application:
        if (self.unit is None) == (self.restart is None):
            raise ValueError("names either a unit of systemd or a restart command")
        if self.unit is None and self.health is None:
            raise ValueError("has a restart command and no health command: nothing would tell whether it is well")
        if self.unit is None and self.scope != "user":
            raise ValueError("has a scope, which is a unit's, and no unit")
        return self

    @property
    def name(self) -> str:
        return self.unit or self.restart or ""

    @property
    def seconds(self) -> int:
        """Seconds that it may take to be well."""
        return int(self.within.removesuffix("s"))


@checked_dataclass(frozen=True, config=CONFIG)
class Meter:
    # on this machine; it prints a time stamp (seconds since 1970) and watts, a line for each reading, until it is ended
    command: Command


@checked_dataclass(frozen=True, config=CONFIG)
class Slot:
    """What a deploy to one slot of a device needs."""

    run: Application | None = None  # the application that runs its releases; None if a deploy only switches


@checked_dataclass(frozen=True, config=CONFIG)
class Device:
    board: Word
    # `user@address[:port]`, or an alias of the SSH configuration; or `adb:SERIAL`
    host: Annotated[str, Field(min_length=1, description="user@address[:port] or adb:SERIAL")]
    root: DeviceFolder | None = None  # folder on it, instead of the board type's
    ssh_config: Path | None = None  # SSH configuration of its own; in the file, relative to the file's folder
    emulated: bool = False  # whether it is an emulator, whose timings mean nothing
    run: Application | None = None  # the application that runs its releases; None if a deploy only switches
    power: Meter | None = None  # the meter in its supply; None for the sensors that it has
    tags: tuple[Word, ...] = ()  # words by which a roll-out picks devices
    slots: dict[SlotName, Slot] = field(
        default_factory=dict
    )  # by their names; a slot without an application needs none

    def for_slot(self, slot: str) -> Device:
        """Return the device with the application of a slot; empty stands for the store's own releases."""
        return dataclasses.replace(self, run=self.slots.get(slot, Slot()).run) if slot else self


def farm_devices() -> Path:
    """Return the devices file of the virtual boards, which `toolchain farm up` writes."""
    return files.cache_root() / "farm" / "devices.toml"


def load_devices(path: Path | None = None) -> dict[str, Device]:
    """Read the devices of this lab from `path`, `$TOOLCHAIN_DEVICES`, or the user's and the project's `devices.toml`.

    Returns:
        The devices by name. Where no file was named, the virtual boards of the farm are among them.

    Raises:
        InputError: The named file is missing or has faults, or a file that nobody named would run commands.
    """
    lab: dict[str, Device] = {}
    for source in _devices_files(path):
        devices = read_devices(source)
        is_named = bool(path or os.environ.get("TOOLCHAIN_DEVICES"))
        if not is_named and source == state.project_devices():
            _check_project(source, devices)
        lab |= devices
    return lab


def _devices_files(path: Path | None) -> tuple[Path, ...]:
    """Return the files with devices; a later entry replaces an earlier one."""
    variable = os.environ.get("TOOLCHAIN_DEVICES")
    file = path or (Path(variable) if variable else None)
    if file:
        return (file,)
    return (*([farm_devices()] if farm_devices().is_file() else []), *state.devices_files())


def source_of(device: Device, path: Path | None = None) -> Path | None:
    """Return the file that a device is from; None for an address of the command line. `path`: see `load_devices`."""
    return next((file for file in reversed(_devices_files(path)) if device in read_devices(file).values()), None)


def _check_project(source: Path, devices: Mapping[str, Device]) -> None:
    """Refuse commands in a device list that nobody named: it may have come with a checkout."""
    # An SSH configuration runs commands here (ProxyCommand, `Match exec`), and decides which host keys are trusted;
    # restart and health commands run on the device with the login's rights, and a unit of the system with root's
    # rights. The name of the login's own unit runs nothing but that unit.
    for name, device in devices.items():
        commands = ["ssh_config"] if device.ssh_config else []
        commands += _commands("run", device.run)
        commands += [key for slot, entry in device.slots.items() for key in _commands(f"slots.{slot}.run", entry.run)]
        commands += ["power.command"] if device.power else []
        if commands:
            raise InputError(
                f"device {name} of {source} has {' and '.join(commands)}, which runs commands; name the file first",
                details="a devices.toml that lies in the working folder, or above it, may come from another user",
                hint=f"look at it; then name it, --devices {source}, or move the entry to {state.user_devices()}",
            )


def _commands(table: str, run: Application | None) -> list[str]:
    """Return the keys of a `run` table that run commands."""
    if run is None:
        return []
    keys = [key for key in ("restart", "health") if getattr(run, key)]
    return [f"{table}.{key}" for key in (*keys, *(["scope"] if run.scope == "system" else []))]


def read_devices(source: Path) -> dict[str, Device]:
    """Read one list of devices, or raise an InputError with its faults."""
    table = read_table(source)
    return devices_of(source, table.get("devices", table))


def read_table(source: Path) -> dict[str, Any]:
    """Read a TOML file, or raise an InputError."""
    try:
        return parse_toml(source)
    except OSError as fault:
        raise InputError(f"cannot read {source}: {fault.strerror or fault}") from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise InputError(f"{source} is not TOML", details=str(fault)) from fault


def devices_of(source: Path, table: object) -> dict[str, Device]:
    """Validate a table of devices; SSH configurations are relative to the folder of `source`."""
    devices: dict[str, Device] | None
    devices, faults = validate(dict[str, Device], table, "device")
    if devices is None:
        raise with_faults(source, faults)
    for name, device in devices.items():
        # The compiler of a board file runs here, and the list may have come with a checkout.
        if device.board.endswith(".toml"):
            raise InputError(
                f"device {name} of {source} has the board {device.board}, which is a file and not a name",
                hint=f"write the board's name, {Path(device.board).stem}; a file is named with --board alone",
            )
        if device.host == "adb:":
            raise InputError(
                f"device {name} of {source} has the host adb:, which is whatever device is attached",
                details="an entry stands for one device, also when another is plugged in",
                hint='write its serial, host = "adb:SERIAL", as `adb devices` shows it',
            )
    folder = source.parent
    return {
        name: dataclasses.replace(device, ssh_config=folder / device.ssh_config) if device.ssh_config else device
        for name, device in devices.items()
    }


def with_faults(source: Path, faults: Sequence[Fault]) -> InputError:
    return InputError(f"{source} has {len(faults)} fault(s)", details="\n".join(map(str, faults)))


def find_device(board: Board, host: str | None, devices: Mapping[str, Device]) -> Device:
    """Decide which device of a board type is meant.

    `host` is an address, a name from devices.toml, or None for the only device of this type.

    Raises:
        InputError: No device was named and none can be chosen, or the named one is of another type.
    """
    if board.connection == "local":
        if host:
            raise InputError(
                f"board {board.name} is this machine; it takes no host",
                hint="leave --board (BOARD= with make) out: the board type of the host is used then",
            )
        return Device(board=board.name, host="local")
    if host:
        entry = devices.get(host)
        if entry and entry.board != board.name:
            raise InputError(
                f"device {host} is a {entry.board}, not a {board.name}",
                hint=f"use --board {entry.board}, or another device",
            )
        return entry or Device(board=board.name, host=host)
    fitting = [name for name, device in devices.items() if device.board == board.name]
    if len(fitting) == 1:
        return devices[fitting[0]]
    raise InputError(
        f"which {board.name} device?" + (f" There are {len(fitting)}: {', '.join(fitting)}" if fitting else ""),
        hint="give --host user@address[:port] or adb:SERIAL (HOST= with make), or its name in devices.toml",
    )


def check_root(text: str) -> str:
    """Return a folder on a device, or refuse one that no board file could name."""
    if not re.fullmatch(DEVICE_FOLDER, text):
        raise InputError(
            f"{text!r} is not a valid folder on a device",
            hint="write an absolute path, or one from ~/, without spaces or quotes",
        )
    return text


def check_slot(text: str) -> str:
    """Return the name of a slot, or refuse one that no folder of a store may have."""
    if not re.fullmatch(SLOT, text):
        raise InputError(
            f"{text[:_SHOWN]!r} is not the name of a slot",
            hint="write at most 32 lower-case letters, digits, - and _, such as detector",
        )
    return text
