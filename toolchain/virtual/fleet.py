"""Virtual boards: makes, starts, lists and removes them, and writes the SSH configuration for them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from toolchain import board, devices, files, locks
from toolchain.board import Board
from toolchain.errors import BusyError, DeviceError, InputError, did_you_mean, reason
from toolchain.virtual import board as boards
from toolchain.virtual.board import Kind, Login, Tell, VirtualBoard
from toolchain.virtual.container import DockerBoards
from toolchain.virtual.machine import KernelBoards

__all__ = ["VirtualBoard", "down", "parse_counts", "status", "up"]

MAX_PER_TYPE = 32

_KEY, _KNOWN_HOSTS, _SSH_CONFIG = "id_ed25519", "known_hosts", "ssh_config"
_BANNER_S = 120.0
_LOCK_S = 3600.0  # another command may build images and start machines meanwhile
_HOST_KEY = re.compile(r"(ssh-ed25519 [A-Za-z0-9+/]+={0,2})(?: [^\r\n]*)?\s*")
# A path that both OpenSSH and paramiko read from an ssh_config without quotes.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+@:,=-]+")


def up(
    counts: Mapping[str, int],
    tell: Tell = lambda _message: None,
    *,
    kernel: bool = False,
    musl: bool = False,
    wait: float = _BANNER_S,
) -> tuple[VirtualBoard, ...]:
    """Start virtual boards until `counts[type]` of each type run; those that run stay.

    Args:
        counts: How many boards of which type.
        tell: Called with a line about each step.
        kernel: Whole machines with a kernel of their own instead of containers.
        musl: Containers with musl and busybox, as small systems have, instead of Debian.
        wait: Seconds until a board must answer.

    Returns:
        All running boards of these types and this kind, by name; each answers with SSH's banner.

    Raises:
        InputError: There is no such board type, no virtual board of it, or the number is not valid.
        DeviceError: They cannot run here, or one does not answer. Boards that were new are removed again.
        BuildError: Their image cannot be made.
    """
    orders = [_order(name, count) for name, count in counts.items()]
    with _locked(tell) as folder:
        kinds = _kinds(folder)
        kind = kinds["kernel" if kernel else "musl" if musl else "docker"]
        for order in orders:
            kind.prepare(order.board, tell)
        login = _login(folder)
        used_names = {device.name for each in kinds.values() for device in each.boards()}
        # Boards that a failed command left would not be in the SSH configuration, so no one could use them.
        with _undone_on_failure(kind):
            for order in orders:
                _reach(kind, order, login, used_names, tell)
            running = [device for device in kind.boards() if device.board in counts and device.running]
            for device in running:
                _await_banner(kind, device, wait)
            _write(folder, kinds)
    return tuple(running)


def down(names: Collection[str] = (), tell: Tell = lambda _message: None) -> tuple[str, ...]:
    """Remove virtual boards and all files on them: the named ones, or all; return their names.

    Raises:
        InputError: There is no virtual board of a given name; nothing was removed.
        DeviceError: What runs them does not answer.
    """
    with _locked(tell) as folder:
        kinds = _kinds(folder)
        existing = {device.name: (kind, device) for kind in kinds.values() for device in kind.boards()}
        for name in names:
            if name not in existing:
                raise InputError(
                    f"there is no virtual board {name!r}",
                    details="known devices: " + (", ".join(existing) or "none"),
                    hint=did_you_mean(name, existing) or "list them: `toolchain farm status`",
                )
        removed = [name for name in existing if not names or name in names]
        for name in removed:
            kind, device = existing[name]
            tell(f"removing {name}")
            kind.remove(device)
        _write(folder, kinds)
    return tuple(removed)


def status() -> tuple[VirtualBoard, ...]:
    """List the virtual boards of this farm, running or not, or raise a DeviceError."""
    return tuple(device for kind in _kinds(_folder()).values() for device in kind.boards())


def parse_counts(text: str) -> dict[str, int]:
    """Read `rpi4=2,pynq=1`, or raise an InputError; a board type without a number stands for one board."""
    counts: dict[str, int] = {}
    for entry in text.split(","):
        name, _, number = entry.strip().partition("=")
        if not name or name in counts or not re.fullmatch(r"[0-9]{0,4}", number) or entry.strip().endswith("="):
            raise InputError(f"{text!r} is not a valid list of virtual boards", hint="write --virtual rpi4=2,pynq=1")
        counts[name] = int(number or 1)
    return counts


@dataclass(frozen=True)
class _Order:
    board: Board
    count: int


def _order(name: str, count: int) -> _Order:
    board_type = board.load(name)
    boards.architecture(board_type)
    if not 1 <= count <= MAX_PER_TYPE:
        hint = f"use 1 to {MAX_PER_TYPE}"
        raise InputError(f"{count} is not a valid number of virtual boards of type {name}", hint=hint)
    return _Order(board_type, count)


def _kinds(folder: Path) -> Mapping[str, Kind]:
    return {"docker": DockerBoards(folder), "kernel": KernelBoards(folder), "musl": DockerBoards(folder, musl=True)}


def _folder() -> Path:
    """Return the farm's folder; ssh_config names files in it, so its path must need no quotes."""
    folder = devices.farm_devices().parent.absolute()
    if not _PLAIN_PATH.fullmatch(str(folder)):
        raise InputError(
            f"the farm's folder {folder} cannot be written in an ssh_config",
            hint="set TOOLCHAIN_CACHE to a folder without spaces and special characters in its name",
        )
    return folder


@contextlib.contextmanager
def _locked(tell: Tell) -> Iterator[Path]:
    """Lock the farm's folder, so that farm commands run one after the other; remove it afterwards if it is empty."""
    folder = _folder()
    while True:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as fault:
            raise files.unwritable(folder, fault) from fault
        try:
            locks.acquire(handle, f"the farm in {folder}", _LOCK_S, tell)
        except BusyError:
            os.close(handle)
            raise
        # The command that had the lock may have removed the folder: then this locks a folder that is gone.
        if folder.exists() and os.path.samestat(os.fstat(handle), folder.stat()):
            break
        os.close(handle)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()
        os.close(handle)


def _login(folder: Path) -> Login:
    """Return the farm's client key, which is made at first use; only the user can read it."""
    path = folder / _KEY
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
        # By mkstemp and a rename: a key is complete or missing, and never readable for others.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(key.private_bytes(encoding, form, serialization.NoEncryption()))
        Path(name).replace(path)
    try:
        private = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as fault:
        raise InputError(
            f"the farm's key {path} cannot be read", details=reason(fault), hint="`toolchain farm down` removes it"
        ) from fault
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Login(public.decode(), files.sha256_bytes(public)[:16])


def _write(folder: Path, kinds: Mapping[str, Kind]) -> None:
    """Write the SSH configuration and device list of the running boards; without any boards, remove the folder."""
    existing = [(kind, device) for kind in kinds.values() for device in kind.boards()]
    if not existing:
        shutil.rmtree(folder)
        return
    keys = {device: _host_key(kind, device) for kind, device in existing if device.running}
    running = [device for device, key in keys.items() if key]
    files.write_atomic(folder / _KNOWN_HOSTS, "".join(f"{device.name} {keys[device]}\n" for device in running).encode())
    files.write_atomic(folder / _SSH_CONFIG, "".join(_host_entry(folder, device) for device in running).encode())
    entries = [
        f'[devices.{device.name}]\nboard = "{device.board}"\nhost = "{device.name}"\n'
        f'ssh_config = "{_SSH_CONFIG}"\nemulated = true\n'
        for device in running
    ]
    files.write_atomic(devices.farm_devices(), "\n".join(entries).encode())


def _host_key(kind: Kind, device: VirtualBoard) -> str:
    """Return a board's host key if it is valid: a board must not add other lines to known_hosts."""
    match = _HOST_KEY.fullmatch(kind.host_key(device))
    return match[1] if match else ""


def _host_entry(folder: Path, device: VirtualBoard) -> str:
    lines = [
        "HostName 127.0.0.1",
        f"HostKeyAlias {device.name}",
        f"Port {device.port}",
        f"User {boards.USER}",
        f"IdentityFile {folder / _KEY}",
        "IdentitiesOnly yes",
        f"UserKnownHostsFile {folder / _KNOWN_HOSTS}",
        "GlobalKnownHostsFile none",
    ]
    return "\n  ".join([f"Host {device.name}", *lines]) + "\n"


@contextlib.contextmanager
def _undone_on_failure(kind: Kind) -> Iterator[None]:
    """Remove the boards that a failed or interrupted block created, and stop those that it started."""
    before = {device.name: device.running for device in kind.boards()}
    try:
        yield
    except BaseException:
        for device in kind.boards():
            if device.name not in before:
                kind.remove(device)
            elif device.running and not before[device.name]:
                kind.stop(device)
        raise


def _reach(kind: Kind, order: _Order, login: Login, used_names: set[str], tell: Tell) -> None:
    """Start boards of a type until enough run: existing ones first, then new ones."""
    existing = [device for device in kind.boards() if device.board == order.board.name]
    for device in [device for device in existing if device.client != login.fingerprint]:
        tell(f"removing {device.name}, which accepts a different key than the farm's")
        kind.remove(device)
        existing.remove(device)
    # After a reboot of this machine all boards are stopped; they keep their files.
    stopped = [device for device in existing if not device.running]
    missing = max(0, order.count - sum(device.running for device in existing))
    for device in stopped[:missing]:
        tell(f"starting {device.name} again")
        kind.start(device)
    for _ in range(order.count - len(existing)):
        device = kind.create(order.board, login, used_names)
        used_names.add(device.name)
        tell(f"started {device.name}")


def _await_banner(kind: Kind, device: VirtualBoard, seconds: float) -> None:
    """Wait until a board sends SSH's banner: its port is forwarded, so it accepts connections long before that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if _has_banner(device.port):
            return
        if device.name not in {other.name for other in kind.boards() if other.running}:
            raise DeviceError(f"{device.name} ended before its SSH server answered", details=kind.log(device))
        time.sleep(0.05)
    raise DeviceError(f"{device.name} did not answer within {seconds:g} s", details=kind.log(device))


def _has_banner(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as probe:
            probe.settimeout(2.0)
            return probe.recv(4) == b"SSH-"
    except OSError:
        return False
