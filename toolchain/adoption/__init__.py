"""From a login to a device of the lab: what it is, what is in the way, which board type fits, and its entry.

Nothing is written here before all of that is known, but for a host key that a person has confirmed.
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
from toolchain.adoption import choice, obstacles, probe
from toolchain.adoption.choice import Choice
from toolchain.adoption.probe import Probed
from toolchain.device.store import Store
from toolchain.devices import Device, read_devices
from toolchain.errors import InputError, VerificationError
from toolchain.shell import Address, Shell, SshOptions, check_options, is_adb, open_shell, parse_address
from toolchain.shell.adb.address import PREFIX, serial_of

if TYPE_CHECKING:
    from toolchain.shell.host_keys import UnknownHostKeyError

_MOST_HOPS = 10
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_FINGERPRINT = re.compile(r"(SHA256:)?[A-Za-z0-9+/]{43}=?")


@dataclass(frozen=True)
class Wanted:
    """What a user asks for."""

    host: str  # the device's address
    ssh: SshOptions  # how it is reached
    fingerprint: str = ""  # the host key that it must have; empty if a person is asked
    name: str = ""  # what it is to be called; empty for a name made of its address
    board: str = ""  # its board type, or the name of a new one; empty if that is left to us
    root: str = ""  # folder on it; empty for the usual one
    devices: Path | None = None  # the list that it is added to; None for the project's, or the user's own
    # whether its times are an emulator's, where it does not show that itself; None if that is left to us
    emulated: bool | None = None
    more: tuple[str, ...] = ()  # what else the user's command says, for a command that goes on

    def command(self, **changes: Any) -> str:
        """Return the command that asks for this, but for what changes."""
        wanted = replace(self, **changes)
        ssh = wanted.ssh
        given = [
            ("--fingerprint", wanted.fingerprint),
            ("--root", wanted.root),
            ("--name", wanted.name),
            ("--board", wanted.board),
            ("--devices", wanted.devices),
            ("-i", ssh.identity),
            ("--ssh-config", ssh.config_file),
            *(("--known-hosts", file) for file in ssh.known_hosts),
        ]
        words = [word for option, value in given if value for word in (option, str(value))]
        if wanted.emulated is not None:
            words.append("--emulated" if wanted.emulated else "--no-emulated")
        return shlex.join(["toolchain", "board", "add", wanted.host, *words, *wanted.more])

    def for_another_login(self) -> str:
        """Return the command that adds the device with another login; by adb there is but one."""
        if is_adb(self.host):
            return self.command(host="USER@HOST")
        return self.command(host=f"OTHER@{self.host.rpartition('@')[2]}")


@dataclass(frozen=True)
class Entry:
    """Where a device stands, or will."""

    file: Path  # the list
    name: str  # its name there
    old: Device | None  # what stands there by that name; None if nothing does


@dataclass(frozen=True)
class Adopted:
    """A device of the lab."""

    found: Probed  # what it is
    choice: Choice  # its board type
    board_file: Path | None  # the file of that which was written; None if there is one that fits
    entry: Entry  # where it stands
    device: Device  # what stands there
    written: bool  # whether the list was changed
    running: str  # name of the release that it runs already; empty if it runs none


# asks a person whether a server's key is the right one; raises unless it is
Approve = Callable[["UnknownHostKeyError"], None]


def resolved(host: str) -> str:
    """Return the address that a list of devices gets: of adb's only device, its serial; nothing is asked of it.

    Raises:
        InputError: It is none of adb's addresses.
        DeviceError: No device is attached, or several are.
    """
    if not is_adb(host) or serial_of(host):
        return host
    from toolchain.shell.adb import client  # noqa: PLC0415 - others do without

    return PREFIX + client.find(client.program(), "").serial


def place(wanted: Wanted) -> Entry:
    """Decide where a device will stand, and by which name; nothing is asked of it.

    Raises:
        InputError: A list has faults, the name is another device's or none, or there is no such board type.
    """
    address = _address(wanted)
    choice.check_named(wanted.board)
    if wanted.fingerprint and not _FINGERPRINT.fullmatch(wanted.fingerprint):
        raise InputError(
            f"{wanted.fingerprint!r} is not a valid fingerprint",
            hint="--fingerprint SHA256:..., as `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` says it there",
        )
    if wanted.name and not _NAME.fullmatch(wanted.name):
        raise InputError(
            f"{wanted.name!r} is not a valid device name", hint="write letters, digits, dots, hyphens and underscores"
        )
    lists = _lists(wanted)
    known = {file: read_devices(file) if file.is_file() else {} for file in lists}
    for file, devices in known.items():
        for name, device in devices.items():
            if _is_same(device, wanted) and wanted.name in {"", name}:
                return Entry(file, name, device)
    names = {name for devices in known.values() for name in devices}
    name = wanted.name or _free_name(address.host, address.port, names)
    if name in names:
        raise InputError(
            f"{name} is another device already",
            details=f"it stands in {next(file for file, devices in known.items() if name in devices)}",
            hint="give this one another --name, or correct that entry",
        )
    return Entry(lists[0], name, None)


def _address(wanted: Wanted) -> Address:
    """Return what a device is named after, unless it gets a name.

    Raises:
        InputError: The address is none, or there are options of SSH for adb.
    """
    if not is_adb(wanted.host):
        return parse_address(wanted.host)
    check_options(wanted.host, wanted.ssh)
    if wanted.fingerprint:
        raise InputError(
            f"{wanted.host} is reached by adb, to which --fingerprint does not apply",
            details="adb has no host keys; the device asks about this computer's key on its screen",
            hint=wanted.command(fingerprint=""),
        )
    return Address(wanted.host)


def _lists(wanted: Wanted) -> list[Path]:
    """Return the lists that a device may stand in; a new one is added to the first."""
    variable = os.environ.get("TOOLCHAIN_DEVICES")
    if named := wanted.devices or (Path(variable) if variable else None):
        return [named]
    project = state.project_devices()
    mine = [state.user_devices()]
    if project is None:
        return mine
    # A list that nobody has named may lead to no SSH configuration: see `devices`.
    return [*mine, project] if wanted.ssh.config_file else [project, *mine]


def _is_same(device: Device, wanted: Wanted) -> bool:
    """Whether an entry leads to the same login by the same way, however both are written.

    Only the configuration that the user wants is read: another one, which an entry names, may come from another user.
    """
    if is_adb(wanted.host) or is_adb(device.host):
        return device.host == wanted.host
    ours, theirs = wanted.ssh.config_file, device.ssh_config
    if (ours is None) != (theirs is None) or (ours and theirs and ours.resolve() != theirs.resolve()):
        return False
    try:
        written = [parse_address(device.host), parse_address(wanted.host)]
        return written[0] == written[1] or _way(written[0], wanted.ssh) == _way(written[1], wanted.ssh)
    except InputError:
        return False  # whoever connects is told


def _way(address: Address, options: SshOptions) -> list[tuple[str, str]]:
    from toolchain.shell.config import Config  # noqa: PLC0415 - paramiko takes 0.1 s

    return [(hop.name.lower(), hop.proxy_command) for hop in Config(options).route(address)]


def _free_name(host: str, port: int | None, taken: set[str]) -> str:
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", host).replace(".", "-").strip("-") or "device"
    tries = [plain, *([f"{plain}-{port}"] if port else []), *(f"{plain}-{count}" for count in range(2, 1000))]
    return next(one for one in tries if one not in taken)


def connect(wanted: Wanted, approve: Approve) -> Shell:
    """Connect to a device.

    Over SSH the key of each server on the way is a known one, or a person has confirmed it.

    Raises:
        VerificationError: A key is not trusted, or not the one that was asked for.
        DeviceError: The device cannot be reached, or refuses us.
    """
    if is_adb(wanted.host):
        return open_shell(wanted.host, config=wanted.ssh)
    from toolchain.shell.host_keys import UnknownHostKeyError, trust  # noqa: PLC0415 - paramiko takes 0.1 s
    from toolchain.shell.ssh import SshShell  # noqa: PLC0415

    address = parse_address(wanted.host)
    for _ in range(_MOST_HOPS):
        try:
            shell = SshShell(address, wanted.ssh)
        except UnknownHostKeyError as fault:
            approve(fault)
            trust(fault.key)
            continue
        with contextlib.ExitStack() as stack:
            stack.callback(shell.close)
            check_fingerprint(shell.name, shell.fingerprint, wanted.fingerprint)
            stack.pop_all()
        return shell
    raise VerificationError(f"the host keys on the way to {wanted.host} change with each connection")


def check_fingerprint(name: str, found: str, wanted: str) -> None:
    """Refuse a host key that is not the one that was asked for.

    Raises:
        VerificationError: It is another one.
    """
    if wanted and _bare(found) != _bare(wanted):
        raise VerificationError(
            f"{name} has a host key of another fingerprint: {found}",
            details=f"asked for: {wanted}\na server has a key of each type, and shows one of them",
            hint="on the device: for f in /etc/ssh/*_key.pub; do ssh-keygen -lf $f; done; if none of these matches, "
            "another machine intercepts the connection",
        )


def _bare(fingerprint: str) -> str:
    return fingerprint.removeprefix("SHA256:").rstrip("=")


def adopt(wanted: Wanted, entry: Entry, shell: Shell) -> Adopted:
    """Ask a device what it is, choose its board type, and write it down.

    Raises:
        ToolchainError: Something is in the way there, or a file cannot be written here; then none is.
    """
    found, chosen = _examined(wanted, entry, shell)
    emulated = _is_emulated(wanted, entry, found)
    found = replace(probe.measured(shell, found), server=shell.server)
    running = Store(shell, found.place.root).current()
    old = entry.old or Device(board=chosen.board.name, host=wanted.host)
    device = replace(
        old,
        board=chosen.board.name,
        root=wanted.root or old.root,
        ssh_config=wanted.ssh.config_file.absolute() if wanted.ssh.config_file else None,
        emulated=emulated,
    )
    board_file = _write_board(chosen)
    try:
        written = device_list.add(entry.file, entry.name, device)
    except BaseException:
        if board_file:
            board_file.unlink(missing_ok=True)
        raise
    return Adopted(found, chosen, board_file, entry, device, written, running.name if running else "")


def _examined(wanted: Wanted, entry: Entry, shell: Shell) -> tuple[Probed, Choice]:
    """Ask a device what it is, choose its board type, and see that releases can be in the folder that this has."""
    another, login = wanted.command(root=obstacles.ANOTHER_ROOT), wanted.for_another_login()
    given = wanted.root or (entry.old.root if entry.old else None) or ""
    found = probe.ask(shell, given or _root(wanted, entry), login)
    obstacles.check_system(found, another)
    chosen = _choice(wanted, entry, found)
    if not given and not _is_at(chosen.board.root, found):
        found = replace(found, place=probe.ask(shell, chosen.board.root, login).place)
    obstacles.check(found, another)
    return found, chosen


def _is_at(root: str, found: Probed) -> bool:
    """Whether a folder of a board file is the one that was looked at."""
    asked = found.place.root
    return asked.endswith(root[1:]) if root.startswith("~/") else asked == root


def _is_emulated(wanted: Wanted, entry: Entry, found: Probed) -> bool:
    """Decide whether a device is an emulator: by its signs, or where these may mislead, by what the user says.

    Raises:
        VerificationError: The user says that it is none, and it shows that it is one.
    """
    if found.emulation and not found.unsure:
        if wanted.emulated is False:
            raise VerificationError(
                f"{found.name} is emulated, whatever --no-emulated says",
                details="; ".join(found.emulation),
                hint=wanted.command(emulated=None),
            )
        return True
    if wanted.emulated is not None:
        return wanted.emulated
    return entry.old.emulated if entry.old else found.unsure


def _root(wanted: Wanted, entry: Entry) -> str:
    """Return the folder of the board type; empty where that is not known by now."""
    named = wanted.board or (entry.old.board if entry.old else "")
    if choice.is_there(named):
        return boards.load(named).root
    return ""


def _choice(wanted: Wanted, entry: Entry, found: Probed) -> Choice:
    """Keep the board type that an entry has, if programs for it start on the device; else choose one."""
    old = entry.old.board if entry.old else ""
    if not wanted.board and old in boards.names() and choice.runs(boards.load(old), found):
        return choice.choose(found, old, "")
    return choice.choose(found, wanted.board, wanted.name)


def _write_board(chosen: Choice) -> Path | None:
    if not chosen.text:
        return None
    target = boards.users_folder() / f"{chosen.board.name}.toml"
    if not files.edit(target, lambda before: before or chosen.text.encode()):
        raise InputError(f"{target} is there already", hint="run the same command again")
    return target
