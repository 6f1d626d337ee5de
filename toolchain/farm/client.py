"""The farm that serves the lab's devices, from a client's side: its daemon is started, asked and ended."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import platform
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from toolchain import process, state
from toolchain.board import Board
from toolchain.devices import Device
from toolchain.errors import DeviceError, InputError, ToolchainError, did_you_mean, reason
from toolchain.farm import protocol
from toolchain.farm.protocol import Link, Message, Served
from toolchain.native import programs
from toolchain.shell import SshOptions, check_options, is_adb
from toolchain.shell.adb import client as adb

Tell = Callable[[str], None]
"""Called with a line about progress."""

_START_S, _ANSWER_S, _END_S = 90.0, 30.0, 15.0
_UP_S = 120.0
_NOT_UP = "the farm is not running"
_DEFAULT_SSH = SshOptions()


@dataclass(frozen=True)
class Place:
    """A device that shall be served.

    Attributes:
        name: Its name.
        board: Its board type, resolved.
        device: Its entry in devices.toml.
        ssh: How it is reached, besides what its entry says.
    """

    name: str
    board: Board
    device: Device
    ssh: SshOptions = field(default=_DEFAULT_SSH)


def described(place: Place, tell: Tell) -> Served:
    """Build a device's board server, or take it from the cache, and put together what the daemon needs.

    Raises:
        InputError: It is reached by adb, and there are options of SSH.
        BuildError: There is no board server for it, or it cannot be built.
    """
    board, device = place.board, place.device
    ssh = place.ssh.before(device.ssh_config)
    check_options(device.host, ssh)
    return Served(
        name=place.name,
        board=board.name,
        host=device.host,
        root=device.root or board.root,
        emulated=board.emulated or device.emulated,
        program=programs.build(programs.BOARD_SERVER, board.triple, board.machine, tell),
        ssh=dataclasses.replace(
            ssh,
            config_file=ssh.config_file.absolute() if ssh.config_file else None,
            known_hosts=tuple(path.absolute() for path in ssh.known_hosts),
            identity=ssh.identity.absolute() if ssh.identity else None,
        ),
        adb_server=adb.server_address() if is_adb(device.host) else "",
    )


def whoami(purpose: str = "") -> str:
    """Say who this process is, for others who want the same board."""
    who = f"{state.user_name() or os.getuid()}@{platform.node()} pid {os.getpid()}"
    return f"{who}: {purpose}" if purpose else who


def serving(place: Path | None = None) -> bool:
    """Tell whether the farm serves devices just now."""
    link = protocol.connect(place or protocol.folder())
    if link is None:
        return False
    link.close()
    return True


def connected(place: Path | None = None) -> Link:
    """Connect to the daemon.

    Raises:
        DeviceError: There is none.
    """
    link = protocol.connect(place or protocol.folder())
    if link is None:
        raise DeviceError(_NOT_UP, hint="toolchain farm up")
    return link


def answer(link: Link, message: Message, seconds: float = 0.0, tell: Tell = lambda _text: None) -> Any:
    """Ask the daemon for something.

    Args:
        link: A connection that was not used yet.
        message: What to do.
        seconds: Longest silence; 0 for the usual one.
        tell: Who is told about progress.

    Raises:
        ToolchainError: What the daemon answers, or that it does not answer.
    """
    try:
        link.send(message)
        while (found := link.receive(seconds or _ANSWER_S)) is not None:
            if "tell" in found:
                tell(str(found["tell"]))
            elif "error" in found:
                raise protocol.fault_of(found["error"])
            else:
                return found["ok"]
    except OSError as fault:
        raise DeviceError(
            "the farm's daemon does not answer", details=reason(fault), hint="toolchain farm down"
        ) from fault
    raise DeviceError("the farm's daemon ended before it answered", hint="toolchain farm up")


def up(places: Iterable[Place], tell: Tell) -> Message:
    """Serve devices, besides those that are served; start the daemon if there is none.

    Args:
        places: The devices.
        tell: Who is told what happens.

    Returns:
        What `status` returns.

    Raises:
        DeviceError: Devices cannot be served; all others are, and those too once they can be.
    """
    served, faults = _prepared(places, tell)
    if not served:
        raise next(iter(faults.values()))
    place = protocol.folder()
    start_daemon(place, tell)
    found: Message = serve(place, served, tell)
    names = {one.name for one in served}
    lacking = [one for one in found["boards"] if one["name"] in names and one["fault"] and not one["served"]]
    faults |= {one["name"]: protocol.fault_of(one["fault"]) for one in lacking}
    if faults:
        raise _partly(faults, len(names | faults.keys()))
    return found


def _prepared(places: Iterable[Place], tell: Tell) -> tuple[list[Served], dict[str, ToolchainError]]:
    served: list[Served] = []
    faults: dict[str, ToolchainError] = {}
    for place in places:
        try:
            served.append(described(place, tell))
        except ToolchainError as fault:
            faults[place.name] = fault
    return served, faults


def serve(place: Path, served: Sequence[Served], tell: Tell) -> Any:
    """Let a daemon serve devices, and wait until each is ready or has told why it is not."""
    with connected(place) as link:
        return answer(link, {"do": "up", "devices": [one.message() for one in served]}, _UP_S, tell)


def first_fault(found: Message) -> ToolchainError:
    """Return the error of the first device of a status that cannot be served."""
    return protocol.fault_of(next(one["fault"] for one in found["boards"] if one["fault"]))


def _partly(faults: Mapping[str, ToolchainError], count: int) -> ToolchainError:
    lines = []
    for name, fault in faults.items():
        lines += [f"{name}: {fault.message}", *(f"  {line}" for line in fault.details.splitlines())]
    if count == 1:
        fault = next(iter(faults.values()))
        return type(fault)(next(iter(lines)), details=fault.details, hint=fault.hint)
    hint = next((fault.hint for fault in faults.values() if fault.hint), "") or "toolchain farm status"
    return DeviceError(f"{len(faults)} of {count} devices cannot be served yet", details="\n".join(lines), hint=hint)


def start_daemon(place: Path, tell: Tell, *, attached: bool = False) -> Any:
    """Start the daemon of a folder unless there is one, and wait until it answers.

    Returns:
        Its process; None if there was one.

    Raises:
        DeviceError: It does not start; the end of its log is in the details.
    """
    link = protocol.connect(place)
    if link is not None:
        link.close()
        return None
    protocol.make_folder(place)
    tell("starting the farm daemon")
    words = [sys.executable, "-P", "-m", "toolchain.farm.daemon", str(place.absolute())]
    log = place / protocol.LOG
    daemon = process.spawn_background(words + (["attached"] if attached else []), log, attached=attached)
    deadline = time.monotonic() + _START_S
    while (link := protocol.connect(place)) is None:
        if daemon.poll() is not None or time.monotonic() > deadline:
            daemon.kill()
            daemon.wait()
            words_of = process.tail(log.read_text(encoding="utf-8", errors="replace"), 8)
            raise DeviceError("the farm daemon does not start", details=words_of, hint="" if attached else f"see {log}")
        time.sleep(0.05)
    link.close()
    return daemon


def down(names: Collection[str] = ()) -> tuple[str, ...]:
    """End to serve devices: the named ones, or all. With the last, the daemon ends.

    Returns:
        The names of those that were served.
    """
    place = protocol.folder()
    link = protocol.connect(place)
    if link is None:
        return ()
    with link:
        daemon = link.peer
        try:
            gone = tuple(answer(link, {"do": "down", "names": list(names)}))
        except DeviceError:
            if names:
                raise
            gone = ()  # it hangs
    if not names or not served_names():
        _await_end(place, daemon)
    return gone


def _await_end(place: Path, daemon: int) -> None:
    """Wait until the daemon is gone; end it if it does not end by itself."""
    with (place / protocol.LOCK).open("rb") as lock:
        if not _free(lock, _END_S):
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon, signal.SIGKILL)
            _free(lock, _END_S)


def _free(lock: IO[bytes], seconds: float) -> bool:
    """Wait until nobody holds a lock."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return True
    return False


def served_names() -> tuple[str, ...]:
    """Name the devices that are served."""
    found = status()
    return tuple(one["name"] for one in found["boards"]) if found else ()


def status(place: Path | None = None) -> Message | None:
    """Ask the daemon, the farm's or that of a folder, for the boards it serves.

    Returns:
        None if there is no daemon.
    """
    link = protocol.connect(place or protocol.folder())
    if link is None:
        return None
    with link:
        found: Message = answer(link, {"do": "status"})
        return found


def lock(name: str, seconds: float) -> Message:
    """Keep a board from everybody for some time.

    Raises:
        DeviceError: Somebody has it, or the farm serves nothing.
        InputError: There is no such board.
    """
    with connected() as link:
        found: Message = answer(link, {"do": "lock", "board": name, "who": whoami(), "seconds": seconds})
        return found


def release(name: str) -> Message | None:
    """End a lock or a lease, whoever has it, and the session of that.

    Returns:
        Who had the board, since when; None if nobody had.

    Raises:
        DeviceError: The farm serves nothing.
        InputError: There is no such board.
    """
    with connected() as link:
        found: Message | None = answer(link, {"do": "release", "board": name})
        return found


def choose(names: Sequence[str], devices: Mapping[str, Device], load: Callable[[str], Board]) -> list[Place]:
    """Pick the devices to serve: the named ones, or all that are reached over SSH.

    Args:
        names: Their names.
        devices: The lab's devices.
        load: Loads a board type.

    Raises:
        InputError: There is no such device, none at all, or it is this machine.
    """
    for name in names:
        if name not in devices:
            raise InputError(
                f"there is no device {name!r}",
                details="known devices: " + (", ".join(devices) or "none"),
                hint=did_you_mean(name, devices) or "add it to devices.toml",
            )
    password = os.environ.get("TOOLCHAIN_SSH_PASSWORD")
    all_of_them = [
        Place(name, load(device.board).resolved(), device, SshOptions(password=password))
        for name, device in devices.items()
        if not names or name in names
    ]
    found = [one for one in all_of_them if one.board.connection == "ssh"]
    here = [one.name for one in all_of_them if one.board.connection != "ssh"]
    if here and (names or not found):
        raise InputError(f"{shlex.join(here)} is this machine, which a farm cannot serve", hint="leave it out")
    if not found:
        raise InputError(
            "there are no devices to serve",
            hint="add them to devices.toml, or start virtual ones: toolchain farm up --virtual rpi4=2",
        )
    return found
