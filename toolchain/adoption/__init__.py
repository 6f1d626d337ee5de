"""Adds a device to a device list: probes it, checks for obstacles, and chooses its board type.

Nothing is written before all checks have passed, except a host key that a person has confirmed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolchain import board as boards
from toolchain import device_list, files, state
from toolchain.adoption import choice, obstacles
from toolchain.adoption.choice import Choice
from toolchain.device import probe
from toolchain.device.probe import DeviceProbe
from toolchain.device.store import Store
from toolchain.devices import Device, read_devices
from toolchain.errors import InputError, VerificationError
from toolchain.shell import Address, Shell, SshOptions, check_options, is_adb, open_shell, parse_address
from toolchain.shell.adb.client import PREFIX, serial_of

if TYPE_CHECKING:
    from toolchain.shell.host_keys import UnknownHostKeyError

_MOST_HOPS = 10
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_FINGERPRINT = re.compile(r"(SHA256:)?[A-Za-z0-9+/]{43}=?")


@dataclass(frozen=True)
class AdoptionRequest:
    """The options of `toolchain board add`."""

    host: str
    ssh: SshOptions
    fingerprint: str = ""  # of the expected host key; empty to ask a person
    name: str = ""  # empty for a name derived from the address
    board: str = ""  # board type, or the name of a new one; empty to choose one
    root: str = ""  # folder on the device; empty for the default
    devices: Path | None = None  # device list; None for the project's, or the user's own
    emulated: bool | None = None  # whether its times are an emulator's; None to decide by its signs
    more: tuple[str, ...] = ()  # other options of the user's command, for suggested commands

    def command(self, **changes: Any) -> str:
        request = replace(self, **changes)
        ssh = request.ssh
        options = [
            ("--fingerprint", request.fingerprint),
            ("--root", request.root),
            ("--name", request.name),
            ("--board", request.board),
            ("--devices", request.devices),
            ("-i", ssh.identity),
            ("--ssh-config", ssh.config_file),
            *(("--known-hosts", file) for file in ssh.known_hosts),
        ]
        arguments = [argument for option, value in options if value for argument in (option, str(value))]
        if request.emulated is not None:
            arguments.append("--emulated" if request.emulated else "--no-emulated")
        return shlex.join(["toolchain", "board", "add", request.host, *arguments, *request.more])

    def for_another_login(self) -> str:
        """Return the command that adds the device with another login; adb has only one."""
        if is_adb(self.host):
            return self.command(host="USER@HOST")
        return self.command(host=f"OTHER@{self.host.rpartition('@')[2]}")


@dataclass(frozen=True)
class Entry:
    """The entry of a device list to add or change."""

    file: Path
    name: str
    old: Device | None  # None for a new entry


@dataclass(frozen=True)
class Adoption:
    probe: DeviceProbe
    choice: Choice
    board_file: Path | None  # the written board file; None if an existing board type fits
    entry: Entry
    device: Device
    changed: bool  # whether the device list was changed
    running: str  # name of the release that it already runs; empty without one


# Asks a person to confirm a server's key; raises an error without confirmation.
Approve = Callable[["UnknownHostKeyError"], None]


def resolve_address(host: str) -> str:
    """Return the address for a device list: `adb:` becomes the serial of the only attached device.

    Raises:
        DeviceError: No device is attached, or several are.
    """
    if not is_adb(host) or serial_of(host):
        return host
    from toolchain.shell.adb import client  # noqa: PLC0415 - only adb devices need it

    return PREFIX + client.find(client.program(), "").serial


def choose_entry(request: AdoptionRequest) -> Entry:
    """Choose the list and the name of a device, without contacting it.

    Raises:
        InputError: A list has faults, the name is taken or not valid, or there is no such board type.
    """
    address = _address(request)
    choice.check_named(request.board)
    if request.fingerprint and not _FINGERPRINT.fullmatch(request.fingerprint):
        raise InputError(
            f"{request.fingerprint!r} is not a valid fingerprint",
            hint="--fingerprint SHA256:..., as `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints on the device",
        )
    if request.name and not _NAME.fullmatch(request.name):
        raise InputError(
            f"{request.name!r} is not a valid device name", hint="write letters, digits, dots, hyphens and underscores"
        )
    lists = _lists(request)
    listed = {file: read_devices(file) if file.is_file() else {} for file in lists}
    for file, devices in listed.items():
        for name, device in devices.items():
            if _is_same(device, request) and request.name in {"", name}:
                return Entry(file, name, device)
    names = {name for devices in listed.values() for name in devices}
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", address.host).replace(".", "-").strip("-") or "device"
    with_port = [f"{plain}-{address.port}"] if address.port else []
    suggestions = (plain, *with_port, *(f"{plain}-{count}" for count in range(2, 1000)))
    name = request.name or next(suggestion for suggestion in suggestions if suggestion not in names)
    if name in names:
        raise InputError(
            f"{name} is another device already",
            details=f"it stands in {next(file for file, devices in listed.items() if name in devices)}",
            hint="give this one another --name, or correct that entry",
        )
    return Entry(lists[0], name, None)


def _address(request: AdoptionRequest) -> Address:
    if not is_adb(request.host):
        return parse_address(request.host)
    check_options(request.host, request.ssh)
    if request.fingerprint:
        raise InputError(
            f"{request.host} is reached by adb, to which --fingerprint does not apply",
            details="adb has no host keys; the user accepts this computer's key on the device's screen",
            hint=request.command(fingerprint=""),
        )
    return Address(request.host)


def _lists(request: AdoptionRequest) -> list[Path]:
    """Return the lists that may have an entry of the device; a new entry is added to the first."""
    variable = os.environ.get("TOOLCHAIN_DEVICES")
    if file := request.devices or (Path(variable) if variable else None):
        return [file]
    project, user = state.project_devices(), state.user_devices()
    if project is None:
        return [user]
    # A project's list that the user did not name must not refer to an SSH configuration: see `devices`.
    return [user, project] if request.ssh.config_file else [project, user]


def _is_same(device: Device, request: AdoptionRequest) -> bool:
    """Whether an entry leads to the same login by the same route, even if it is written differently."""
    if is_adb(request.host) or is_adb(device.host):
        return device.host == request.host
    # Only the configuration that the user names is read: one that an entry names may come from another user.
    ours, theirs = request.ssh.config_file, device.ssh_config
    if (ours is None) != (theirs is None) or (ours and theirs and ours.resolve() != theirs.resolve()):
        return False
    try:
        addresses = [parse_address(device.host), parse_address(request.host)]
        if addresses[0] == addresses[1]:
            return True
        from toolchain.shell.config import Config  # noqa: PLC0415 - paramiko takes 0.1 s

        routes = [
            [(hop.name.lower(), hop.proxy_command) for hop in Config(request.ssh).route(address)]
            for address in addresses
        ]
        return routes[0] == routes[1]
    except InputError:
        return False  # `connect` reports the fault


def connect(request: AdoptionRequest, approve: Approve) -> Shell:
    """Connect to a device. Over SSH, each server's host key must be known or confirmed by `approve`.

    Raises:
        VerificationError: A key is not trusted, or does not have the requested fingerprint.
        DeviceError: The device cannot be reached, or refuses us.
    """
    if is_adb(request.host):
        return open_shell(request.host, config=request.ssh)
    from toolchain.shell.host_keys import UnknownHostKeyError, trust  # noqa: PLC0415 - paramiko takes 0.1 s
    from toolchain.shell.ssh import SshShell  # noqa: PLC0415

    address = parse_address(request.host)
    for _ in range(_MOST_HOPS):
        try:
            shell = SshShell(address, request.ssh)
        except UnknownHostKeyError as fault:
            approve(fault)
            trust(fault.key)
            continue
        with contextlib.ExitStack() as stack:
            stack.callback(shell.close)
            check_fingerprint(shell.name, shell.fingerprint, request.fingerprint)
            stack.pop_all()
        return shell
    raise VerificationError(f"the host keys on the way to {request.host} change with each connection")


def check_fingerprint(name: str, actual: str, expected: str) -> None:
    if expected and _bare(actual) != _bare(expected):
        raise VerificationError(
            f"{name} has a host key of another fingerprint: {actual}",
            details=f"expected: {expected}\na server has a key of each type, and shows one of them",
            hint="on the device: for f in /etc/ssh/*_key.pub; do ssh-keygen -lf $f; done; if none of these matches, "
            "another machine intercepts the connection",
        )


def _bare(fingerprint: str) -> str:
    return fingerprint.removeprefix("SHA256:").rstrip("=")


def adopt(request: AdoptionRequest, entry: Entry, shell: Shell) -> Adoption:
    """Probe a device, choose its board type, and write its entry, and its board file if that is new.

    Raises:
        ToolchainError: A release cannot run there, or a file cannot be written; then none is left behind.
    """
    probed, chosen = _examine(request, entry, shell)
    emulated = _is_emulated(request, entry, probed)
    probed = replace(probe.measure_link(shell, probed), server=shell.server)
    running = Store(shell, probed.place.root).releases.current()
    old = entry.old or Device(board=chosen.board.name, host=request.host)
    device = replace(
        old,
        board=chosen.board.name,
        root=request.root or old.root,
        ssh_config=request.ssh.config_file.absolute() if request.ssh.config_file else None,
        emulated=emulated,
    )
    board_file = None
    if chosen.text:
        board_file = boards.users_folder() / f"{chosen.board.name}.toml"
        # `edit` changes nothing if another command has just written this file.
        if not files.edit(board_file, lambda before: before or chosen.text.encode()):
            raise InputError(f"{board_file} is there already", hint="run the same command again")
    try:
        changed = device_list.add(entry.file, entry.name, device)
    except BaseException:
        if board_file:
            board_file.unlink(missing_ok=True)
        raise
    return Adoption(probed, chosen, board_file, entry, device, changed, running.name if running else "")


def _examine(request: AdoptionRequest, entry: Entry, shell: Shell) -> tuple[DeviceProbe, Choice]:
    """Probe a device, choose its board type, and check that its folder can hold releases."""
    another, login = request.command(root=obstacles.ANOTHER_ROOT), request.for_another_login()
    configured = request.root or (entry.old.root if entry.old else None) or ""
    board_name = request.board or (entry.old.board if entry.old else "")
    usual = boards.load(board_name).root if choice.is_there(board_name) else ""
    probed = probe.ask(shell, configured or usual, login)
    obstacles.check_system(probed, another)
    old = entry.old.board if entry.old else ""
    # The entry's board type is kept if its programs start on the device.
    keeps = not request.board and old in boards.names() and choice.runs(boards.load(old), probed)
    chosen = choice.choose(probed, old, "") if keeps else choice.choose(probed, request.board, request.name)
    if not configured:
        root, tried = chosen.board.root, probed.place.root
        # The device reports `~/` expanded.
        if not (tried.endswith(root[1:]) if root.startswith("~/") else tried == root):
            probed = replace(probed, place=probe.ask(shell, root, login).place)
    obstacles.check(probed, another)
    return probed, chosen


def _is_emulated(request: AdoptionRequest, entry: Entry, probed: DeviceProbe) -> bool:
    """Decide whether a device is an emulator: by its signs, or if these are unsure, by the user's option.

    Raises:
        VerificationError: The user denies it, and the signs are certain.
    """
    if probed.emulation and not probed.unsure:
        if request.emulated is False:
            raise VerificationError(
                f"{probed.name} is emulated, so --no-emulated does not apply",
                details="; ".join(probed.emulation),
                hint=request.command(emulated=None),
            )
        return True
    if request.emulated is not None:
        return request.emulated
    return entry.old.emulated if entry.old else probed.unsure
