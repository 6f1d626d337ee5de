"""The devices of a roll-out, and what is asked of each type: from a fleet.toml, a devices.toml, Ansible's inventory."""

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
from toolchain.devices import Application, Device
from toolchain.errors import InputError, did_you_mean
from toolchain.pipeline.rollout import ansible
from toolchain.shell import is_adb, parse_address
from toolchain.validation import CONFIG, validate

_TABLES = ("devices", "types")
_SHOWN = 5


@checked_dataclass(frozen=True, config=CONFIG)
class Limits:
    """What is asked of every device of one type, from the `types` table of a fleet.toml.

    Attributes:
        latency_ms: A device whose median is above it fails.
        run: The application of those devices that name none of their own.
    """

    latency_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    run: Application | None = None


@dataclass(frozen=True)
class Fleet:
    """Devices, in their order, and what is asked of them.

    Attributes:
        devices: The devices by their names.
        types: What is asked of a board type, by its name.
        unnamed: How many hosts of an inventory are of no board type, and take no part.
    """

    devices: Mapping[str, Device]
    types: Mapping[str, Limits] = field(default_factory=dict)
    unnamed: int = 0

    def limits(self, board: str) -> Limits:
        """Return what is asked of the devices of a type."""
        return self.types.get(board, Limits())

    def of(self, board: str) -> Fleet:
        """Return the devices of one type, each with its application.

        Raises:
            InputError: There are none.
        """
        limits = self.limits(board)
        found = {
            name: dataclasses.replace(device, run=device.run or limits.run)
            for name, device in self.devices.items()
            if device.board == board
        }
        if not found:
            known = sorted({device.board for device in self.devices.values()})
            raise InputError(
                f"the package is for board {board}, and the fleet has no such device",
                details=f"its devices are: {', '.join(known)}",
                hint=did_you_mean(board, known) or "roll out a package that was built for one of them",
            )
        return Fleet(found, {board: limits})

    @property
    def digest(self) -> str:
        """A digest of all that is said of it: whoever changes an address or a limit has another fleet."""
        value = {"devices": _plain(self.devices), "types": _plain(self.types), "order": list(self.devices)}
        return files.sha256_bytes(files.canonical_json(value))


def _plain(table: Mapping[str, Any]) -> Any:
    rows = {name: dataclasses.asdict(one) for name, one in table.items()}
    return json.loads(json.dumps(rows, default=lambda path: str(Path(path).resolve())))


def read(path: Path | None, inventory: Path | None = None, board_variable: str = ansible.BOARD) -> Fleet:
    """Read a fleet.

    Args:
        path: A fleet.toml or a devices.toml; beside an inventory it may have types alone.
        inventory: What `ansible-inventory --list` printed.
        board_variable: The variable of the inventory that says a host's board type.

    Raises:
        InputError: One of them has faults, both name the same device, or there is none.
    """
    found = _read(path) if path else Fleet({})
    if inventory:
        listed = ansible.read(inventory, board_variable)
        if twice := sorted(found.devices.keys() & listed.devices.keys()):
            raise InputError(f"{path} and {inventory} both contain {_some(twice)}", hint="list each device once")
        found = Fleet({**found.devices, **listed.devices}, found.types, listed.unnamed)
    if not found.devices:
        raise InputError(f"there is no device in {path or inventory}", hint="docs/rollout.md describes the file")
    _check_boards(found)
    _check_addresses(found.devices)
    return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _read(path: Path) -> Fleet:
    table = devices.read_table(path)
    if not table.keys() & set(_TABLES):  # a devices.toml may have its devices at the top
        return Fleet(devices.devices_of(path, table))
    if strange := sorted(table.keys() - set(_TABLES)):
        hint = did_you_mean(strange[0], _TABLES) or f"known keys: {', '.join(_TABLES)}"
        raise InputError(f"{path} has 1 fault(s)", details=f"{strange[0]}: unknown key ({hint})", hint=hint)
    types, faults = validate(dict[str, Limits], table.get("types", {}), "type")
    if types is None:
        raise devices.with_faults(path, faults)
    return Fleet(devices.devices_of(path, table.get("devices", {})), types)


def _check_boards(fleet: Fleet) -> None:
    """Refuse types that there are not, or that no roll-out over a network reaches."""
    for name in dict.fromkeys((*fleet.types, *(device.board for device in fleet.devices.values()))):
        if boards.load(name).connection == "local":
            raise InputError(
                f"board {name} is this machine, and a roll-out goes to devices over SSH or adb",
                hint="use `toolchain deploy` for this machine",
            )


def _check_addresses(found: Mapping[str, Device]) -> None:
    """Refuse what is no address, and two names of one device: it would be deployed to twice."""
    seen: dict[tuple[object, ...], str] = {}
    for name, device in found.items():
        try:
            if not is_adb(device.host):
                parse_address(device.host)
        except InputError as fault:
            raise InputError(f"device {name}: {fault.message}", details=fault.details, hint=fault.hint) from fault
        other = seen.setdefault((device.host, device.root, device.ssh_config), name)
        if other != name:
            raise InputError(
                f"{other} and {name} are the same device: {device.host}",
                hint="remove one of them, or correct its address",
            )
