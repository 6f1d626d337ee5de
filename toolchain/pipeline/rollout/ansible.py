"""Devices out of Ansible's inventory: the JSON that `ansible-inventory --list` prints. Ansible itself is not needed.

Only the hosts' addresses are read. Other settings of Ansible for `ssh` are refused by name: they belong in the SSH
configuration, which both Ansible and we read.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import devices, files
from toolchain.devices import Device
from toolchain.errors import InputError, did_you_mean

BOARD = "edge_board"  # the default variable with a host's board type
_OURS = "edge_"
_ROOT = "edge_root"
_SSH = {"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh"}
_UNSUPPORTED = (
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_ssh_private_key_file",
    "ansible_private_key_file",
    "ansible_password",
    "ansible_ssh_password",
    "ansible_ssh_pass",
)
_HOST_KEYS, _PORT_KEYS = ("ansible_host", "ansible_ssh_host"), ("ansible_port", "ansible_ssh_port")
_USER_KEYS = ("ansible_user", "ansible_ssh_user")
_MAX_PORT = 65535
_MAX_GROUPS = 1000


@dataclass(frozen=True)
class Inventory:
    """The devices of an inventory by name, and how many of its hosts have no board type."""

    devices: Mapping[str, Device]
    unnamed: int


def read(path: Path, board_variable: str = BOARD) -> Inventory:
    """Read an inventory; the groups of a host become its tags.

    Raises:
        InputError: It is not an inventory, or it has something that is not supported.
    """
    inventory = files.read_json(path)
    meta = inventory.get("_meta") if isinstance(inventory, dict) else None
    hosts = meta.get("hostvars") if isinstance(meta, dict) else None
    if not isinstance(hosts, dict):
        raise InputError(
            f"{path} is not an inventory: it has no _meta.hostvars",
            hint=f"`ansible-inventory -i INVENTORY --list > {path}` writes one",
        )
    groups = _groups(inventory)
    listed = [name for _group, members in _members(inventory) for name in members]
    # In the order of the groups; hosts without a group come last.
    usable = [name for name in dict.fromkeys([*listed, *hosts]) if isinstance(hosts.get(name), dict)]
    names = [name for name in usable if board_variable in hosts[name]]
    if not names:
        variables = sorted({key for host in hosts.values() for key in host})
        raise InputError(
            f"no host of {path} has the variable {board_variable} with its board type",
            hint=did_you_mean(board_variable, variables)
            or "set it for a group, or choose another variable with --board-var",
        )
    table = {name: _device(path, name, hosts[name], board_variable) for name in names}
    rows = {name: {**row, "tags": sorted(groups.get(name, ()))} for name, row in table.items()}
    return Inventory(devices.devices_of(path, rows), len(hosts) - len(names))


def _members(inventory: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    for group, content in inventory.items():
        members = content.get("hosts", []) if group != "_meta" and isinstance(content, dict) else []
        yield group, [name for name in members if isinstance(name, str)] if isinstance(members, list) else []


def _groups(inventory: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the groups of each host, their parent groups too."""
    parents: dict[str, set[str]] = {}
    for group, content in inventory.items():
        children = content.get("children", []) if isinstance(content, dict) else []
        for child in children if isinstance(children, list) else []:
            parents.setdefault(str(child), set()).add(group)
    groups: dict[str, set[str]] = {}
    for group, members in _members(inventory):
        for name in members:
            groups.setdefault(name, set()).update(_lineage(group, parents) - {"all", "ungrouped"})
    return groups


def _lineage(group: str, parents: Mapping[str, set[str]]) -> set[str]:
    lineage: set[str] = set()
    pending = [group]
    while pending and len(lineage) < _MAX_GROUPS:
        name = pending.pop()
        if name not in lineage:
            lineage.add(name)
            pending += parents.get(name, ())
    return lineage


def _device(path: Path, name: str, variables: Mapping[str, Any], board_variable: str) -> dict[str, Any]:
    """Return a host's entry as devices.toml would have it."""
    _check(path, name, variables, board_variable)
    host, port_value, user = (
        next((variables[key] for key in keys if key in variables), None)
        for keys in (_HOST_KEYS, _PORT_KEYS, _USER_KEYS)
    )
    host, port = str(host or name), "" if port_value is None else str(port_value)
    if port_value is not None:
        if not (port.isdecimal() and 0 < int(port) <= _MAX_PORT):
            raise InputError(
                f"host {name} of {path} has an invalid port: {port_value!r}", hint="set ansible_port to a number"
            )
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host).version == 6:  # noqa: PLR2004 - IPv6
                host = f"[{host}]"
        host = f"{host}:{int(port)}"
    address = f"{user}@{host}" if user else host
    root = {"root": variables[_ROOT]} if _ROOT in variables else {}
    return {"board": variables[board_variable], "host": address, **root}


def _check(path: Path, name: str, variables: Mapping[str, Any], board_variable: str) -> None:
    """Refuse variables that would make Ansible connect to something else than we do."""
    known = {board_variable, _ROOT}
    for key, value in variables.items():
        is_ours = key in known or key.startswith("ansible_")
        if key.startswith(_OURS) and key not in known | {BOARD}:
            hint = did_you_mean(key, known) or f"known variables: {', '.join(sorted(known))}"
            raise InputError(f"host {name} of {path} has an unknown variable of this toolchain: {key}", hint=hint)
        if key in _UNSUPPORTED or (key == "ansible_connection" and value not in _SSH):
            raise InputError(
                f"host {name} of {path} has {key}, which is not supported",
                details="the roll-out would connect to another device than Ansible does",
                hint="put it into ~/.ssh/config, which Ansible's ssh reads, too; a password is TOOLCHAIN_SSH_PASSWORD",
            )
        if is_ours and isinstance(value, str) and "{{" in value:
            raise InputError(
                f"host {name} of {path} has a template in {key}: {value!r:.80}",
                details="`ansible-inventory` does not evaluate templates",
                hint="write the value itself into the inventory",
            )
