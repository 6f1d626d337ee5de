"""The devices of a roll-out and the limits of each type: from a fleet.toml, a devices.toml or Ansible's inventory."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import board as boards
from toolchain import devices, files
from toolchain.device import tail
from toolchain.device.rate import LEAST_PERIOD_S, Rate
from toolchain.devices import Application, Device, Slot
from toolchain.errors import InputError, did_you_mean
from toolchain.pipeline.rollout import ansible
from toolchain.shell import is_adb, parse_address
from toolchain.validation import CONFIG, SlotName, validate

_TABLES = ("devices", "types")
_MAX_NAMES = 5
_LATER = ("slots", "p999_ms", "period_ms")  # keys that fleets did not always have
_Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@checked_dataclass(frozen=True, config=CONFIG)
class SlotLimits:
    """Requirements for one slot of every device of one type."""

    latency_ms: _Milliseconds | None = None  # a device with a larger median fails
    run: Application | None = None  # the application of devices that name none of their own
    p999_ms: _Milliseconds | None = None  # a device fails unless its p99.9 is shown to be within it
    period_ms: _Milliseconds | None = None  # how often the model runs then

    def rate(self) -> Rate | None:
        """Return the rate at which p99.9 is measured; None without a limit.

        Raises:
            InputError: A day is too short for a verdict at this rate.
        """
        if not (self.p999_ms and self.period_ms):
            return None
        return tail.rate_of(self.p999_ms / 1e3, self.period_ms / 1e3)


@checked_dataclass(frozen=True, config=CONFIG)
class Limits(SlotLimits):
    """Requirements for every device of one type, from the `types` table of a fleet.toml."""

    slots: dict[SlotName, SlotLimits] = field(default_factory=dict)


@dataclass(frozen=True)
class Fleet:
    """Devices in their order, and the limits of their types."""

    devices: Mapping[str, Device]
    types: Mapping[str, Limits] = field(default_factory=dict)
    unnamed: int = 0  # how many hosts of an inventory have no board type, and take no part

    def limits(self, board: str, slot: str = "") -> SlotLimits:
        """Return the requirements of a type; those of its own releases for no slot."""
        limits = self.types.get(board, Limits())
        return limits.slots.get(slot, SlotLimits()) if slot else limits

    def for_board(self, board: str, slot: str = "") -> Fleet:
        """Return the devices of one type, each with the application of a slot, or of its own releases.

        Raises:
            InputError: There are none.
        """
        limits = self.limits(board, slot)
        chosen = {
            name: _for_slot(device, slot, limits.run) for name, device in self.devices.items() if device.board == board
        }
        if not chosen:
            types = sorted({device.board for device in self.devices.values()})
            raise InputError(
                f"the package is for board {board}, and the fleet has no such device",
                details=f"its devices are: {', '.join(types)}",
                hint=did_you_mean(board, types) or "roll out a package that was built for one of them",
            )
        kept = (
            Limits(slots={slot: limits})
            if slot
            else Limits(limits.latency_ms, limits.run, limits.p999_ms, limits.period_ms)
        )
        return Fleet(chosen, {board: kept})

    @property
    def digest(self) -> str:
        """A digest of everything in it, so that a changed address or limit is noticed."""
        value = {"devices": _as_json(self.devices), "types": _as_json(self.types), "order": list(self.devices)}
        return files.sha256_bytes(files.canonical_json(value))


def _for_slot(device: Device, slot: str, application: Application | None) -> Device:
    """Return a device with nothing of other slots, and with an application, unless it has its own there."""
    run = device.for_slot(slot).run or application
    if slot:
        return dataclasses.replace(device, run=None, slots={slot: Slot(run)})
    return dataclasses.replace(device, run=run, slots={})


def _as_json(table: Mapping[str, Any]) -> Any:
    # Without a value they are left out: so the digest is that of fleets before there were such keys.
    rows = {
        name: {key: value for key, value in dataclasses.asdict(row).items() if key not in _LATER or value}
        for name, row in table.items()
    }
    return json.loads(json.dumps(rows, default=lambda path: str(Path(path).resolve())))


def read(path: Path | None, inventory: Path | None = None, board_variable: str = ansible.BOARD) -> Fleet:
    """Read a fleet.toml or a devices.toml, an inventory of Ansible, or both; a fleet.toml may then have only types.

    Raises:
        InputError: One of them has faults, both name the same device, or there is none.
    """
    fleet = _read(path) if path else Fleet({})
    if inventory:
        listed = ansible.read(inventory, board_variable)
        if duplicates := sorted(fleet.devices.keys() & listed.devices.keys()):
            more = f" and {len(duplicates) - _MAX_NAMES} more" if len(duplicates) > _MAX_NAMES else ""
            names = ", ".join(duplicates[:_MAX_NAMES]) + more
            raise InputError(f"{path} and {inventory} both contain {names}", hint="list each device once")
        fleet = Fleet({**fleet.devices, **listed.devices}, fleet.types, listed.unnamed)
    if not fleet.devices:
        raise InputError(f"there is no device in {path or inventory}", hint="docs/rollout.md describes the file")
    for name in dict.fromkeys((*fleet.types, *(device.board for device in fleet.devices.values()))):
        if boards.load(name).connection == "local":
            raise InputError(
                f"board {name} is this machine, and a roll-out goes to devices over SSH or adb",
                hint="use `toolchain deploy` for this machine",
            )
    _check_addresses(fleet.devices)
    return fleet


def _read(path: Path) -> Fleet:
    table = devices.read_table(path)
    if not table.keys() & set(_TABLES):  # a devices.toml may have its devices at the top
        return Fleet(devices.devices_of(path, table))
    if unknown := sorted(table.keys() - set(_TABLES)):
        hint = did_you_mean(unknown[0], _TABLES) or f"known keys: {', '.join(_TABLES)}"
        raise InputError(f"{path} has 1 fault(s)", details=f"{unknown[0]}: unknown key ({hint})", hint=hint)
    types, faults = validate(dict[str, Limits], table.get("types", {}), "type")
    if types is None:
        raise devices.with_faults(path, faults)
    for name, limits in types.items():
        _check_tails(path, f"types.{name}", limits)
        for slot, slot_limits in limits.slots.items():
            _check_tails(path, f"types.{name}.slots.{slot}", slot_limits)
    return Fleet(devices.devices_of(path, table.get("devices", {})), types)


def _check_tails(path: Path, where: str, limits: SlotLimits) -> None:
    """Refuse a limit of p99.9 without a period, or the other way round, and one that nothing could show."""
    if (limits.p999_ms is None) != (limits.period_ms is None):
        raise InputError(
            f"{path}: {where} has one of p999_ms and period_ms, which belong together",
            hint="write both, for example p999_ms = 40.0 and period_ms = 33.0",
        )
    if limits.period_ms and limits.period_ms < LEAST_PERIOD_S * 1e3:
        raise InputError(
            f"{path}: {where}.period_ms is below {LEAST_PERIOD_S * 1e3:g}", hint="write how often the application runs"
        )
    limits.rate()


def _check_addresses(listed: Mapping[str, Device]) -> None:
    """Refuse invalid addresses, and two names of one device: it would be deployed to twice."""
    names: dict[tuple[object, ...], str] = {}
    for name, device in listed.items():
        try:
            if not is_adb(device.host):
                parse_address(device.host)
        except InputError as fault:
            raise InputError(f"device {name}: {fault.message}", details=fault.details, hint=fault.hint) from fault
        other = names.setdefault((device.host, device.root, device.ssh_config), name)
        if other != name:
            raise InputError(
                f"{other} and {name} are the same device: {device.host}",
                hint="remove one of them, or correct its address",
            )
