"""The client's side of the farm: starts its daemon, sends it requests, and ends it."""

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
from toolchain.farm.protocol import Link, Message, ServedDevice
from toolchain.native import programs
from toolchain.shell import SshOptions, check_options, is_adb
from toolchain.shell.adb import client as adb

Tell = Callable[[str], None]
"""Called with a line about progress."""

_START_S, _ANSWER_S, _END_S = 90.0, 30.0, 15.0
_UP_S = 120.0
_DEFAULT_SSH = SshOptions()


@dataclass(frozen=True)
class FarmDevice:
    """A device to serve."""

    name: str
    board: Board  # resolved
    device: Device  # its entry in devices.toml
    ssh: SshOptions = field(default=_DEFAULT_SSH)  # in addition to its entry


def to_serve(request: FarmDevice, tell: Tell) -> ServedDevice:
    """Build a device's board server, or take it from the cache, and describe the device for the daemon.

    Raises:
        InputError: It is reached by adb, but there are SSH options.
        BuildError: There is no board server for it, or it cannot be built.
    """
    board, device = request.board, request.device
    ssh = request.ssh.before(device.ssh_config)
    check_options(device.host, ssh)
    return ServedDevice(
        name=request.name,
        board=board.name,
        host=device.host,
        root=device.root or board.root,
        emulated=board.emulated or device.emulated,
        program=programs.build(programs.BOARD_SERVER, board.triple, board.machine, tell),
        # The daemon runs in another folder, so paths must be absolute.
        ssh=dataclasses.replace(
            ssh,
            config_file=ssh.config_file.absolute() if ssh.config_file else None,
            known_hosts=tuple(path.absolute() for path in ssh.known_hosts),
            identity=ssh.identity.absolute() if ssh.identity else None,
        ),
        adb_server=adb.server_address() if is_adb(device.host) else "",
    )


def whoami(purpose: str = "") -> str:
    """Describe this process to others who request the same board."""
    who = f"{state.user_name() or os.getuid()}@{platform.node()} pid {os.getpid()}"
    return f"{who}: {purpose}" if purpose else who


def is_running(folder: Path | None = None) -> bool:
    link = protocol.connect(folder or protocol.folder())
    if link is None:
        return False
    link.close()
    return True


def open_link(folder: Path | None = None) -> Link:
    link = protocol.connect(folder or protocol.folder())
    if link is None:
        raise DeviceError("the farm is not running", hint="toolchain farm up")
    return link


def ask(link: Link, message: Message, seconds: float = 0.0, tell: Tell = lambda _text: None) -> Any:
    """Send the daemon a request over a new link and return its answer.

    Args:
        link: A connection that was not used yet.
        message: The request.
        seconds: Longest silence; 0 for the default.
        tell: Called with each line of progress.

    Raises:
        ToolchainError: The daemon answers with an error, or not at all.
    """
    try:
        link.send(message)
        while (answer := link.receive(seconds or _ANSWER_S)) is not None:
            if "tell" in answer:
                tell(str(answer["tell"]))
            elif "error" in answer:
                raise protocol.parse_fault(answer["error"])
            else:
                return answer["ok"]
    except OSError as fault:
        raise DeviceError(
            "the farm's daemon does not answer", details=reason(fault), hint="toolchain farm down"
        ) from fault
    raise DeviceError("the farm's daemon ended before it answered", hint="toolchain farm up")


def up(devices: Iterable[FarmDevice], tell: Tell) -> Message:
    """Serve more devices, starting the daemon if needed; return the `status`.

    Raises:
        DeviceError: Some devices cannot be served yet. The others are served; the daemon keeps trying these.
    """
    served: list[ServedDevice] = []
    faults: dict[str, ToolchainError] = {}
    for device in devices:
        try:
            served.append(to_serve(device, tell))
        except ToolchainError as fault:
            faults[device.name] = fault
    if not served:
        raise next(iter(faults.values()))
    folder = protocol.folder()
    start_daemon(folder, tell)
    report: Message = serve(folder, served, tell)
    names = {device.name for device in served}
    for board in report["boards"]:
        if board["name"] in names and board["fault"] and not board["served"]:
            faults[board["name"]] = protocol.parse_fault(board["fault"])
    if faults:
        raise _not_served(faults, len(names | faults.keys()))
    return report


def serve(folder: Path, served: Sequence[ServedDevice], tell: Tell) -> Any:
    """Let a daemon serve devices, and wait until each is ready or has reported a fault."""
    with open_link(folder) as link:
        return ask(link, {"do": "up", "devices": [device.message() for device in served]}, _UP_S, tell)


def first_fault(report: Message) -> ToolchainError:
    """Return the error of the first board of a status that has one."""
    return protocol.parse_fault(next(board["fault"] for board in report["boards"] if board["fault"]))


def _not_served(faults: Mapping[str, ToolchainError], count: int) -> ToolchainError:
    lines = []
    for name, fault in faults.items():
        lines += [f"{name}: {fault.message}", *(f"  {line}" for line in fault.details.splitlines())]
    if count == 1:
        fault = next(iter(faults.values()))
        return type(fault)(next(iter(lines)), details=fault.details, hint=fault.hint)
    hint = next((fault.hint for fault in faults.values() if fault.hint), "") or "toolchain farm status"
    return DeviceError(f"{len(faults)} of {count} devices cannot be served yet", details="\n".join(lines), hint=hint)


def start_daemon(folder: Path, tell: Tell, *, attached: bool = False) -> Any:
    """Start the daemon of a folder unless there is one, wait until it answers, and return its process, or None.

    Raises:
        DeviceError: It does not start; the end of its log is in the details.
    """
    link = protocol.connect(folder)
    if link is not None:
        link.close()
        return None
    protocol.make_folder(folder)
    tell("starting the farm daemon")
    argv = [sys.executable, "-P", "-m", "toolchain.farm.daemon", str(folder.absolute())]
    log = folder / protocol.LOG
    daemon = process.spawn_background(argv + (["attached"] if attached else []), log, attached=attached)
    deadline = time.monotonic() + _START_S
    while (link := protocol.connect(folder)) is None:
        if daemon.poll() is not None or time.monotonic() > deadline:
            daemon.kill()
            daemon.wait()
            details = process.tail(log.read_text(encoding="utf-8", errors="replace"), 8)
            raise DeviceError("the farm daemon does not start", details=details, hint="" if attached else f"see {log}")
        time.sleep(0.05)
    link.close()
    return daemon


def down(names: Collection[str] = ()) -> tuple[str, ...]:
    """Stop serving the named devices, or all, and return their names. The daemon ends with the last one."""
    folder = protocol.folder()
    link = protocol.connect(folder)
    if link is None:
        return ()
    with link:
        daemon = link.peer_pid
        try:
            removed = tuple(ask(link, {"do": "down", "names": list(names)}))
        except DeviceError:
            if names:
                raise
            removed = ()  # the daemon hangs, and is killed below
    if not names or not served_names():
        with (folder / protocol.LOCK).open("rb") as lock_file:
            if not _await_unlocked(lock_file, _END_S):  # it does not end by itself
                with contextlib.suppress(ProcessLookupError):
                    os.kill(daemon, signal.SIGKILL)
                _await_unlocked(lock_file, _END_S)
    return removed


def _await_unlocked(lock: IO[bytes], seconds: float) -> bool:
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
    report = status()
    return tuple(board["name"] for board in report["boards"]) if report else ()


def status(folder: Path | None = None) -> Message | None:
    """Ask the daemon, the farm's or that of a folder, for the boards it serves; None if there is no daemon."""
    link = protocol.connect(folder or protocol.folder())
    if link is None:
        return None
    with link:
        report: Message = ask(link, {"do": "status"})
        return report


def lock(name: str, seconds: float) -> Message:
    """Lock a board for some time, so that no other client gets it.

    Raises:
        DeviceError: Another client has it, or the farm serves nothing.
        InputError: There is no such board.
    """
    with open_link() as link:
        grant: Message = ask(link, {"do": "lock", "board": name, "who": whoami(), "seconds": seconds})
        return grant


def release(name: str) -> Message | None:
    """End a lock or a lease of a board, and its session; return its former grant, or None.

    Raises:
        DeviceError: The farm serves nothing.
        InputError: There is no such board.
    """
    with open_link() as link:
        holder: Message | None = ask(link, {"do": "release", "board": name})
        return holder


def choose(names: Sequence[str], devices: Mapping[str, Device], load: Callable[[str], Board]) -> list[FarmDevice]:
    """Choose the devices to serve: the named ones, or all that are reached over SSH.

    Raises:
        InputError: There is no such device, no device at all, or it is this machine.
    """
    for name in names:
        if name not in devices:
            raise InputError(
                f"there is no device {name!r}",
                details="known devices: " + (", ".join(devices) or "none"),
                hint=did_you_mean(name, devices) or "add it to devices.toml",
            )
    password = os.environ.get("TOOLCHAIN_SSH_PASSWORD")
    chosen = [
        FarmDevice(name, load(device.board).resolved(), device, SshOptions(password=password))
        for name, device in devices.items()
        if not names or name in names
    ]
    remote = [device for device in chosen if device.board.connection == "ssh"]
    local = [device.name for device in chosen if device.board.connection != "ssh"]
    if local and (names or not remote):
        raise InputError(f"{shlex.join(local)} is this machine, which a farm cannot serve", hint="leave it out")
    if not remote:
        raise InputError(
            "there are no devices to serve",
            hint="add them to devices.toml, or start virtual ones: toolchain farm up --virtual rpi4=2",
        )
    return remote
