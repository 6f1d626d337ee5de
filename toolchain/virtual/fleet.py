"""Virtual boards: made, started, listed and removed, with everything that SSH needs to know of them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
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

__all__ = ["VirtualBoard", "down", "parse_wanted", "status", "up"]

MOST = 32
"""Boards of one type that one command may ask for."""

_KEY, _KNOWN_HOSTS, _SSH_CONFIG = "id_ed25519", "known_hosts", "ssh_config"
_BANNER_S = 120.0
_LOCK_S = 3600.0  # another command may build images and start machines meanwhile
_HOST_KEY = re.compile(r"(ssh-ed25519 [A-Za-z0-9+/]+={0,2})(?: [^\r\n]*)?\s*")
# What both OpenSSH's and paramiko's reading of an ssh_config leave as it is.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+@:,=-]+")


def up(
    wanted: Mapping[str, int], tell: Tell = lambda _message: None, *, kernel: bool = False, wait: float = _BANNER_S
) -> tuple[VirtualBoard, ...]:
    """Bring up virtual boards, so that as many of each type run as are wanted; those that run stay.

    Args:
        wanted: How many boards of which type.
        tell: Who is told what happens.
        kernel: Whole machines with a kernel of their own instead of containers.
        wait: Seconds until a board must answer.

    Returns:
        All boards of these types and this kind, in the order of their names; each answers with SSH's banner.

    Raises:
        InputError: There is no such board type, no virtual board of it, or the number makes no sense.
        DeviceError: They cannot be run here, or one does not answer. Boards that were new are removed again.
        BuildError: The image that they need cannot be made.
    """
    orders = [_checked(name, count) for name, count in wanted.items()]
    with _locked(tell) as folder:
        kinds = _kinds(folder)
        kind = kinds[1 if kernel else 0]
        for order in orders:
            kind.prepare(order.board, tell)
        login = _login(folder)
        with _undone_on_failure(kind):
            for order in orders:
                _reach(kind, order, login, _names(kinds), tell)
            ready = [one for one in kind.found() if one.board in wanted and one.running]
            for one in ready:
                _await_banner(kind, one, wait)
            _write(folder, kinds)
    return tuple(ready)


def down(names: Collection[str] = (), tell: Tell = lambda _message: None) -> tuple[str, ...]:
    """Remove virtual boards and all that was on them: the named ones, or every one.

    Returns:
        The names of those that were removed.

    Raises:
        InputError: There is no virtual board of a given name; nothing was removed.
        DeviceError: What runs them does not answer.
    """
    with _locked(tell) as folder:
        kinds = _kinds(folder)
        found = {one.name: (kind, one) for kind in kinds for one in kind.found()}
        for name in names:
            if name not in found:
                raise InputError(
                    f"there is no virtual board {name!r}",
                    details="known devices: " + (", ".join(found) or "none"),
                    hint=did_you_mean(name, found) or "list them: `toolchain farm status`",
                )
        gone = [name for name in found if not names or name in names]
        for name in gone:
            kind, one = found[name]
            tell(f"removing {name}")
            kind.remove(one)
        _write(folder, kinds)
    return tuple(gone)


def status() -> tuple[VirtualBoard, ...]:
    """List the virtual boards of this farm, whether they run or not.

    Raises:
        DeviceError: What runs them does not answer.
    """
    return tuple(one for kind in _kinds(_folder()) for one in kind.found())


def parse_wanted(text: str) -> dict[str, int]:
    """Read `rpi4=2,pynq=1`; a board type without a number stands for one board.

    Raises:
        InputError: The text is not of that form.
    """
    wanted: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if not name or name in wanted or not re.fullmatch(r"[0-9]{0,4}", number) or part.strip().endswith("="):
            raise InputError(f"{text!r} is not a valid list of virtual boards", hint="write --virtual rpi4=2,pynq=1")
        wanted[name] = int(number or 1)
    return wanted


def ssh_config() -> Path:
    """Return the SSH configuration that knows the virtual boards by their names."""
    return _folder() / _SSH_CONFIG


@dataclass(frozen=True)
class _Order:
    """So many boards of a type."""

    board: Board
    count: int


def _checked(name: str, count: int) -> _Order:
    wanted = board.load(name)
    boards.architecture(wanted)
    if not 1 <= count <= MOST:
        raise InputError(f"{count} is not a valid number of virtual boards of type {name}", hint=f"use 1 to {MOST}")
    return _Order(wanted, count)


def _kinds(folder: Path) -> Sequence[Kind]:
    return (DockerBoards(folder), KernelBoards(folder))


def _names(kinds: Sequence[Kind]) -> set[str]:
    return {one.name for kind in kinds for one in kind.found()}


# --- the farm's folder ---


def _folder() -> Path:
    """Name the farm's folder; ssh_config names files in it, in words that need no quotes."""
    folder = devices.farm_devices().parent.absolute()
    if not _PLAIN_PATH.fullmatch(str(folder)):
        raise InputError(
            f"the farm's folder {folder} cannot be written in an ssh_config",
            hint="set TOOLCHAIN_CACHE to a folder without spaces and special characters in its name",
        )
    return folder


@contextlib.contextmanager
def _locked(tell: Tell) -> Iterator[Path]:
    """Hold the farm's folder, so that farm commands run one after the other; an empty one is removed afterwards."""
    folder = _folder()
    handle = _lock(folder, tell)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # something is left in it
            folder.rmdir()
        os.close(handle)


def _lock(folder: Path, tell: Tell) -> int:
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
        # Whoever held it may have removed the folder.
        if folder.exists() and os.path.samestat(os.fstat(handle), folder.stat()):
            return handle
        os.close(handle)


def _login(folder: Path) -> Login:
    """Return the farm's client key, which is made at the first time; only the user can read it."""
    path = folder / _KEY
    if not path.exists():
        _write_private(path, Ed25519PrivateKey.generate())
    try:
        private = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as fault:
        raise InputError(
            f"the farm's key {path} cannot be read", details=reason(fault), hint="`toolchain farm down` removes it"
        ) from fault
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Login(public.decode(), files.sha256_bytes(public)[:16])


def _write_private(path: Path, key: Ed25519PrivateKey) -> None:
    """Write a key whole or not at all, and at no time readable for others."""
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(handle, "wb") as stream:
        stream.write(key.private_bytes(encoding, form, serialization.NoEncryption()))
    Path(name).replace(path)


def _write(folder: Path, kinds: Sequence[Kind]) -> None:
    """Write what SSH and the toolchain need to know of the boards that run; without any boards nothing is left."""
    found = [(kind, one) for kind in kinds for one in kind.found()]
    if not found:
        shutil.rmtree(folder)
        return
    keys = {one: _host_key(kind, one) for kind, one in found if one.running}
    running = [one for one, key in keys.items() if key]
    files.write_atomic(folder / _KNOWN_HOSTS, "".join(f"{one.name} {keys[one]}\n" for one in running).encode())
    files.write_atomic(folder / _SSH_CONFIG, "".join(_host_entry(folder, one) for one in running).encode())
    files.write_atomic(devices.farm_devices(), "\n".join(_device_entry(one) for one in running).encode())


def _host_key(kind: Kind, one: VirtualBoard) -> str:
    """Return a board's host key, checked: what a board says of itself must not become another line of a file."""
    found = _HOST_KEY.fullmatch(kind.host_key(one))
    return found[1] if found else ""


def _host_entry(folder: Path, one: VirtualBoard) -> str:
    lines = [
        "HostName 127.0.0.1",
        f"HostKeyAlias {one.name}",
        f"Port {one.port}",
        f"User {boards.USER}",
        f"IdentityFile {folder / _KEY}",
        "IdentitiesOnly yes",
        f"UserKnownHostsFile {folder / _KNOWN_HOSTS}",
        "GlobalKnownHostsFile none",
    ]
    return "\n  ".join([f"Host {one.name}", *lines]) + "\n"


def _device_entry(one: VirtualBoard) -> str:
    return (
        f'[devices.{one.name}]\nboard = "{one.board}"\nhost = "{one.name}"\n'
        f'ssh_config = "{_SSH_CONFIG}"\nemulated = true\n'
    )


# --- boards ---


@contextlib.contextmanager
def _undone_on_failure(kind: Kind) -> Iterator[None]:
    """Remove the boards that a failed or interrupted block made, and stop those it started."""
    before = {one.name: one.running for one in kind.found()}
    try:
        yield
    except BaseException:
        for one in kind.found():
            if one.name not in before:
                kind.remove(one)
            elif one.running and not before[one.name]:
                kind.stop(one)
        raise


def _reach(kind: Kind, order: _Order, login: Login, taken: set[str], tell: Tell) -> None:
    """Let as many boards of a type run as are wanted: those there are, then new ones."""
    mine = [one for one in kind.found() if one.board == order.board.name]
    for one in [one for one in mine if one.client != login.fingerprint]:
        tell(f"removing {one.name}, which accepts a different key than the farm's")
        kind.remove(one)
        mine.remove(one)
    for one in [one for one in mine if not one.running][: max(0, order.count - sum(one.running for one in mine))]:
        tell(f"starting {one.name} again")
        kind.start(one)
    for _ in range(order.count - len(mine)):
        made = kind.create(order.board, login, taken)
        taken.add(made.name)
        tell(f"started {made.name}")


def _await_banner(kind: Kind, one: VirtualBoard, seconds: float) -> None:
    """Wait until a board speaks SSH: what forwards its port takes connections long before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if _has_banner(one.port):
            return
        if one.name not in {other.name for other in kind.found() if other.running}:
            raise DeviceError(f"{one.name} ended before its SSH server answered", details=kind.log(one))
        time.sleep(0.05)
    raise DeviceError(f"{one.name} did not answer within {seconds:g} s", details=kind.log(one))


def _has_banner(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as probe:
            probe.settimeout(2.0)
            return probe.recv(4) == b"SSH-"
    except OSError:
        return False
