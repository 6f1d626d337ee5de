"""Adds a device to a devices.toml without changing the rest of the file, comments included."""

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
    """Add a device to a list, or correct its entry; return whether the file was changed.

    A missing file is made. The device must have an absolute SSH configuration; its entry's application is left as it
    is.

    Raises:
        InputError: The list has faults, or cannot be written.
    """
    if path.exists():
        read_devices(path)
    return files.edit(path, lambda before: _edited(path, before.decode("utf-8"), name, device).encode())


def _edited(path: Path, before: str, name: str, device: Device) -> str:
    mark = _MARK if before.startswith(_MARK) else ""
    text = before.removeprefix(mark)
    # Edited with Unix line ends, after which the file's own are restored; mixed ones are left alone.
    windows = 0 < text.count("\r\n") == text.count("\n")
    text, end = (text.replace("\r\n", "\n"), "\r\n") if windows else (text, "\n")
    old = _devices_of(tomllib.loads(text))
    entry: dict[str, Any] = {key: str(value) for key in _KEYS if (value := getattr(device, key))}
    if device.emulated != old.get(name, {}).get(_EMULATED, False):
        entry[_EMULATED] = device.emulated
    if old.get(name, {}).items() >= entry.items():
        return before
    expected = {**old, name: {**old.get(name, {}), **entry}}
    for change in (_insert, _append):
        try:
            after = change(text, name, entry)
            if _devices_of(tomllib.loads(after)) == expected:
                return mark + after.replace("\n", end)
        except (tomlkit.exceptions.TOMLKitError, tomllib.TOMLDecodeError):
            continue  # the file's layout does not allow this change
    lines = tomlkit.dumps({"devices": {name: entry}})
    why = "its tables are written in a way that cannot be edited safely"
    raise InputError(f"{path} cannot be edited", details=why, hint=f"add these lines yourself:\n{lines}")


def _devices_of(table: dict[str, Any]) -> dict[str, Any]:
    devices: dict[str, Any] = table.get("devices", table)
    return devices


def _insert(before: str, name: str, entry: dict[str, Any]) -> str:
    """Insert an entry where the others are: below `devices`, or at the top."""
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
    """Append an entry at the end."""
    return f"{before.rstrip()}\n\n{tomlkit.dumps({'devices': {name: entry}})}"
