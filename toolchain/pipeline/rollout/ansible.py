"""Devices out of Ansible's inventory: the JSON that `ansible-inventory --list` prints. Ansible itself is not needed.

Only where hosts are is taken from it. What Ansible would say to `ssh` besides is refused by name: it belongs into the
SSH configuration, which Ansible and we both read.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import devices, files
from toolchain.devices import Device
from toolchain.errors import InputError, did_you_mean

BOARD = "edge_board"
"""The variable that says which board type a host is of, if no other is named."""
_OURS = "edge_"
_ROOT = "edge_root"
_SSH = {"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh"}
_ELSEWHERE = (
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_ssh_private_key_file",
    "ansible_private_key_file",
    "ansible_password",
    "ansible_ssh_password",
    "ansible_ssh_pass",
)
_ALIASES = (("host", ("ansible_host", "ansible_ssh_host")), ("port", ("ansible_port", "ansible_ssh_port")))
_LARGEST_PORT = 65535
_MOST_GROUPS = 1000


@dataclass(frozen=True)
class Inventory:
    """What an inventory says: its devices by name, and how many hosts are of no board type."""

    devices: Mapping[str, Device]
    unnamed: int


def read(path: Path, board_variable: str = BOARD) -> Inventory:
    """Read an inventory; the groups of a host are its tags.

    Args:
        path: The file.
        board_variable: The variable that says which board type a host is of.

    Raises:
        InputError: It is none, or it says what cannot be taken.
    """
    found = files.read_json(path)
    meta = found.get("_meta") if isinstance(found, dict) else None
    hosts = meta.get("hostvars") if isinstance(meta, dict) else None
    if not isinstance(hosts, dict):
        raise InputError(
            f"{path} is not an inventory: it has no _meta.hostvars",
            hint=f"`ansible-inventory -i INVENTORY --list > {path}` writes one",
        )
    groups = _groups(found)
    names = [name for name in _ordered(found, hosts) if board_variable in hosts[name]]
    if not names:
        seen = sorted({key for one in hosts.values() for key in one})
        raise InputError(
            f"no host of {path} has the variable {board_variable} with its board type",
            hint=did_you_mean(board_variable, seen)
            or "set it for a group, or choose another variable with --board-var",
        )
    table = {name: _device(path, name, hosts[name], board_variable) for name in names}
    rows = {name: {**row, "tags": sorted(groups.get(name, ()))} for name, row in table.items()}
    return Inventory(devices.devices_of(path, rows), len(hosts) - len(names))


def _ordered(found: Mapping[str, Any], hosts: Mapping[str, Any]) -> list[str]:
    """Return the hosts that have variables, in the order of the groups; those of no group come last."""
    named = [name for _group, members in _members(found) for name in members]
    return [name for name in dict.fromkeys([*named, *hosts]) if isinstance(hosts.get(name), dict)]


def _members(found: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    for group, content in found.items():
        members = content.get("hosts", []) if group != "_meta" and isinstance(content, dict) else []
        yield group, [name for name in members if isinstance(name, str)] if isinstance(members, list) else []


def _groups(found: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the groups of each host, those above its own among them."""
    above: dict[str, set[str]] = {}
    for group, content in found.items():
        children = content.get("children", []) if isinstance(content, dict) else []
        for child in children if isinstance(children, list) else []:
            above.setdefault(str(child), set()).add(group)
    groups: dict[str, set[str]] = {}
    for group, members in _members(found):
        for name in members:
            groups.setdefault(name, set()).update(_lineage(group, above) - {"all", "ungrouped"})
    return groups


def _lineage(group: str, above: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [group]
    while left and len(found) < _MOST_GROUPS:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += above.get(one, ())
    return found


def _device(path: Path, name: str, variables: Mapping[str, Any], board_variable: str) -> dict[str, Any]:
    """Return what a devices.toml would say of a host."""
    _check(path, name, variables, board_variable)
    place = {what: next((variables[key] for key in keys if key in variables), None) for what, keys in _ALIASES}
    host = str(place["host"] or name)
    user = next((variables[key] for key in ("ansible_user", "ansible_ssh_user") if key in variables), None)
    port = _port(path, name, place["port"])
    address = (f"{user}@" if user else "") + _bracketed(host, port)
    root = {"root": variables[_ROOT]} if _ROOT in variables else {}
    return {"board": variables[board_variable], "host": address, **root}


def _bracketed(host: str, port: int | None) -> str:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        version = 4
    return host if port is None else f"[{host}]:{port}" if version == 6 else f"{host}:{port}"  # noqa: PLR2004


def _port(path: Path, name: str, said: object) -> int | None:
    if said is None:
        return None
    text = str(said)
    if not (text.isdecimal() and 0 < int(text) <= _LARGEST_PORT):
        raise InputError(f"host {name} of {path} has an invalid port: {said!r}", hint="set ansible_port to a number")
    return int(text)


def _check(path: Path, name: str, variables: Mapping[str, Any], board_variable: str) -> None:
    """Refuse what would lead elsewhere than Ansible goes."""
    known = {board_variable, _ROOT}
    for key, value in variables.items():
        mine = key in known or key.startswith("ansible_")
        if key.startswith(_OURS) and key not in known | {BOARD}:
            hint = did_you_mean(key, known) or f"known variables: {', '.join(sorted(known))}"
            raise InputError(f"host {name} of {path} has an unknown variable of this toolchain: {key}", hint=hint)
        if key in _ELSEWHERE or (key == "ansible_connection" and value not in _SSH):
            raise InputError(
                f"host {name} of {path} has {key}, which is not supported",
                details="the roll-out would connect to another device than Ansible does",
                hint="put it into ~/.ssh/config, which Ansible's ssh reads, too; a password is TOOLCHAIN_SSH_PASSWORD",
            )
        if mine and isinstance(value, str) and "{{" in value:
            raise InputError(
                f"host {name} of {path} has a template in {key}: {value!r:.80}",
                details="`ansible-inventory` does not evaluate templates",
                hint="write the value itself into the inventory",
            )
