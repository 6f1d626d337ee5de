"""Adds a device to a devices.toml: what else stands in it, comments among that, stays as it is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions
from tomlkit.items import InlineTable

from toolchain import files
from toolchain.devices import Device, read_devices
from toolchain.errors import InputError

_KEYS = ("board", "host", "root", "ssh_config")
_EMULATED = "emulated"
_MARK = "\ufeff"


def add(path: Path, name: str, device: Device) -> bool:
    """Add a device to a list, or correct what its entry says; the file is made if it is missing.

    Args:
        path: The devices.toml.
        name: The device's name.
        device: What it is; its SSH configuration is an absolute path. How its application runs is left as it is.

    Returns:
        Whether anything was written: not where the list says so already.

    Raises:
        InputError: The list has faults, or cannot be written.
    """
    if path.exists():
        read_devices(path)
    return files.edit(path, lambda before: _with(path, before.decode("utf-8"), name, device).encode())


def _with(path: Path, before: str, name: str, device: Device) -> str:
    mark = _MARK if before.startswith(_MARK) else ""
    text, end = _with_plain_ends(before.removeprefix(mark))
    old = _devices_of(tomllib.loads(text))
    entry: dict[str, Any] = {key: str(value) for key in _KEYS if (value := getattr(device, key))}
    if device.emulated != old.get(name, {}).get(_EMULATED, False):
        entry[_EMULATED] = device.emulated
    if old.get(name, {}).items() >= entry.items():
        return before
    expected = {**old, name: {**old.get(name, {}), **entry}}
    for change in (_put, _append):
        try:
            after = change(text, name, entry)
            if _devices_of(tomllib.loads(after)) == expected:
                return mark + after.replace("\n", end)
        except (tomlkit.exceptions.TOMLKitError, tomllib.TOMLDecodeError):
            continue  # it is written in a way that this change has no place in
    raise _by_hand(path, name, entry)


def _with_plain_ends(text: str) -> tuple[str, str]:
    """Return a text with the line ends that it is edited with, and those that it has; mixed ones stay as they are."""
    ends = text.count("\r\n")
    return (text.replace("\r\n", "\n"), "\r\n") if ends and ends == text.count("\n") else (text, "\n")


def _devices_of(table: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = table.get("devices", table)
    return found


def _put(before: str, name: str, entry: dict[str, Any]) -> str:
    """Put an entry where the others stand: below `devices`, or at the top."""
    document: Any = tomlkit.parse(before)
    if not document:
        document["devices"] = tomlkit.table(is_super_table=True)
    devices = document.get("devices", document)
    if name not in devices:
        devices[name] = tomlkit.inline_table() if isinstance(devices, InlineTable) else tomlkit.table()
    for key, value in entry.items():
        devices[name][key] = value
    return tomlkit.dumps(document)


def _append(before: str, name: str, entry: dict[str, Any]) -> str:
    """Write an entry below everything else."""
    return f"{before.rstrip()}\n\n{tomlkit.dumps({'devices': {name: entry}})}"


def _by_hand(path: Path, name: str, entry: dict[str, Any]) -> InputError:
    lines = tomlkit.dumps({"devices": {name: entry}})
    why = "its tables are written in a way that cannot be edited safely"
    return InputError(f"{path} cannot be edited", details=why, hint=f"add these lines yourself:\n{lines}")
