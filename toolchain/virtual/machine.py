"""Virtual boards as whole machines: Debian's kernel for the board's architecture, run by QEMU's system emulation.

A machine is a folder with its settings, its disk and its console's output. QEMU's process outlives the command that
started it, and is found again by its process id.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import select
import shutil
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

from toolchain import files, process
from toolchain.architecture import of_debian
from toolchain.board import Board
from toolchain.errors import DeviceError
from toolchain.virtual import board as virtual_board
from toolchain.virtual import image as farm_image
from toolchain.virtual.board import Login, Tell, VirtualBoard
from toolchain.virtual.container import connect, free_port

DISK_BYTES = 2 << 30  # size of a sparse file

_SETTINGS, _PID, _DISK, _CONSOLE = "machine.json", "pid", "disk.img", "console.log"
_BOOT_FILES = ("kernel", "initrd", "root.ext4")
_MEMORY_MIB = 512
_ATTEMPTS = 5
_PORT_TAKEN = "Could not set up host forwarding rule"
_HOST_KEY = re.compile(r"^board-host-key: (ssh-ed25519 \S+)", re.MULTILINE)
_END_S = 10.0
_CLOCK_SLACK_S = 2.0  # the kernel's boot time has whole seconds


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The content of a machine's file."""

    board: str
    architecture: str  # Debian's name
    cpu: str
    port: int
    image: str
    public: str
    client: str


class KernelBoards:
    """The boards of one farm that are machines, in a folder below the farm's."""

    def __init__(self, folder: Path) -> None:
        self._machines = folder / "machines"
        self._images: dict[str, str] = {}

    def boards(self) -> tuple[VirtualBoard, ...]:
        folders = list(self._machines.glob("*")) if self._machines.is_dir() else []
        machines = [self._board_of(folder) for folder in folders if (folder / _SETTINGS).is_file()]
        return tuple(sorted(machines, key=lambda device: device.order))

    def _board_of(self, folder: Path) -> VirtualBoard:
        settings = _read(folder)
        return VirtualBoard(
            folder.name, settings.board, "kernel", settings.port, _process(folder) is not None, settings.client
        )

    def prepare(self, board: Board, tell: Tell) -> None:
        emulator = virtual_board.qemu(virtual_board.architecture(board)).system
        if shutil.which(emulator) is None:
            raise DeviceError(f"{emulator} is not installed here", hint=process.installing(emulator))
        image = farm_image.ensure(connect(), farm_image.MACHINE, board, tell)
        # The boot files are cached by the image's digest: machines of an older image keep theirs.
        digest = str(image.id).partition(":")[2][:16]
        folder = _cache(digest)
        folder.mkdir(parents=True, exist_ok=True)
        missing = [name for name in _BOOT_FILES if not (folder / name).is_file()]
        if missing:
            tell(f"unpacking the machine for {board.name}")
            for name in missing:
                with files.atomic_path(folder / name) as temporary:
                    farm_image.copy_out(image, f"/{name}", temporary)
        self._images[board.name] = digest

    def create(self, board: Board, login: Login, used_names: Collection[str]) -> VirtualBoard:
        for folder in self._machines.glob("*"):
            if not (folder / _SETTINGS).exists():  # left by a command that was killed while it made or removed it
                _remove(folder)
        architecture = virtual_board.architecture(board)
        cpu = virtual_board.system_cpu(board)
        image = self._images[board.name]
        folder = self._machines / virtual_board.next_name(board.name, used_names)
        folder.mkdir(mode=0o700, parents=True)
        try:
            for attempt in range(_ATTEMPTS):
                port = free_port()
                settings = _Settings(board.name, architecture.debian, cpu, port, image, login.public, login.fingerprint)
                files.write_atomic(folder / _SETTINGS, files.canonical_json(dataclasses.asdict(settings)))
                try:
                    _boot(folder, settings)  # another process may have taken the free port meanwhile
                    break
                except DeviceError as fault:
                    if _PORT_TAKEN not in fault.details or attempt == _ATTEMPTS - 1:
                        raise
        except BaseException:
            _remove(folder)
            raise
        return self._board_of(folder)

    def start(self, device: VirtualBoard) -> None:
        folder = self._machines / device.name
        settings = _read(folder)
        # The cache may have been cleared since the machine was created.
        if not all((_cache(settings.image) / name).is_file() for name in _BOOT_FILES):
            raise DeviceError(
                f"{device.name} cannot be started again: its image was removed",
                hint=f"toolchain farm down {device.name}",
            )
        _boot(folder, settings)

    def stop(self, device: VirtualBoard) -> None:
        _kill(self._machines / device.name)

    def remove(self, device: VirtualBoard) -> None:
        _remove(self._machines / device.name)

    def log(self, device: VirtualBoard) -> str:
        return process.tail(_console(self._machines / device.name))

    def host_key(self, device: VirtualBoard) -> str:
        """Return the key that the machine prints at its console before it has a network."""
        match = _HOST_KEY.search(_console(self._machines / device.name))
        return match[1] if match else ""


def _cache(image: str) -> Path:
    return files.cache_root() / "machines" / image


def _read(folder: Path) -> _Settings:
    return _Settings(**files.read_json(folder / _SETTINGS, DeviceError))


def _console(folder: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (folder / _CONSOLE).read_bytes().decode(errors="replace").replace("\r", "")
    return ""


def _boot(folder: Path, settings: _Settings) -> None:
    """Start QEMU, which goes to the background once the machine is set up.

    Raises:
        DeviceError: It does not start; its output is in the details.
    """
    disk = folder / _DISK
    if not disk.exists():
        with disk.open("wb") as stream:
            stream.truncate(DISK_BYTES)
    (folder / _CONSOLE).unlink(missing_ok=True)
    (folder / _PID).unlink(missing_ok=True)
    process.run(_command(folder, settings), timeout=60.0, error=DeviceError)


def _command(folder: Path, settings: _Settings) -> list[str]:
    qemu = virtual_board.qemu(of_debian(settings.architecture))
    image = _cache(settings.image)
    parameters = {
        "console": "ttyAMA0",
        "panic": "-1",
        "board.name": folder.name,
        "board.key": settings.public.replace(" ", ","),
    }
    kernel_line = " ".join(["quiet", *(f"{name}={value}" for name, value in parameters.items())])
    return [
        *(qemu.system, "-name", folder.name, "-M", qemu.board, "-cpu", settings.cpu),
        *("-smp", "1", "-m", str(_MEMORY_MIB)),
        *("-accel", "tcg,thread=multi,tb-size=64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-kernel", str(image / "kernel"), "-initrd", str(image / "initrd"), "-append", kernel_line),
        *("-drive", f"if=none,id=root,format=raw,readonly=on,file={image / 'root.ext4'}"),
        *("-device", "virtio-blk-device,drive=root,serial=root"),
        *("-drive", f"if=none,id=data,format=raw,cache=writeback,file={folder / _DISK}"),
        *("-device", "virtio-blk-device,drive=data,serial=data"),
        # restrict=on: the machine reaches nothing, and only its SSH port is reachable, from this machine alone.
        *("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{settings.port}-:22"),
        *("-device", "virtio-net-device,netdev=net", "-device", "virtio-rng-device"),
        *("-serial", f"file:{folder / _CONSOLE}", "-daemonize", "-pidfile", str(folder / _PID)),
    ]


def _remove(folder: Path) -> None:
    """End a machine and remove its folder. The settings go first: `create` removes folders without settings."""
    _kill(folder)
    (folder / _SETTINGS).unlink(missing_ok=True)
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # other machines are there
        folder.parent.rmdir()


def _kill(folder: Path) -> None:
    """End a machine's process, and wait until it has ended."""
    with _pidfd(folder) as handle:
        if handle is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not select.select([handle], [], [], _END_S)[0]:
            raise DeviceError(f"{folder.name} does not stop", details=f"process {_process(folder)}")


@contextlib.contextmanager
def _pidfd(folder: Path) -> Iterator[int | None]:
    """Open a machine's process by a descriptor: its id alone could belong to another process before the signal."""
    pid = _process(folder)
    try:
        handle = None if pid is None else os.pidfd_open(pid)
    except ProcessLookupError:
        handle = None
    try:
        yield handle if _process(folder) == pid else None  # checked again, now that the descriptor pins the process
    finally:
        if handle is not None:
            os.close(handle)


def _process(folder: Path) -> int | None:
    """Return the process id of a machine; None if it has ended, or another process has that id now."""
    try:
        pid = int((folder / _PID).read_text(encoding="ascii"))
        written_at = (folder / _PID).stat().st_mtime
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    stat = Path("/proc/stat").read_text(encoding="ascii")
    boot_time = float(next(line.split()[1] for line in stat.splitlines() if line.startswith("btime ")))
    state, started_at = fields[0], boot_time + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    # A process that is younger than the file with its id only has the same number.
    is_machine = os.fsencode(folder / _PID) in arguments and started_at <= written_at + _CLOCK_SLACK_S
    return pid if is_machine and state != "Z" else None
