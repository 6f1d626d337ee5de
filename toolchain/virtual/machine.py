"""Virtual boards as whole machines: Debian's kernel for the board's architecture, run by QEMU's system emulation.

A machine is a folder with its settings, its disk and what its console said. It runs if QEMU's process does, which
outlives the command that started it and is found again by its process id.
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
from toolchain.board import Board
from toolchain.errors import DeviceError
from toolchain.virtual import board as boards
from toolchain.virtual import image as farm_image
from toolchain.virtual.board import Login, Tell, VirtualBoard
from toolchain.virtual.container import connect, free_port

DISK_BYTES = 2 << 30
"""Size of a machine's own disk, which takes only the space that is written."""

_SETTINGS, _PID, _DISK, _CONSOLE = "machine.json", "pid", "disk.img", "console.log"
_PARTS = ("kernel", "initrd", "root.ext4")
_MEMORY_MIB = 512
_ATTEMPTS = 5
_PORT_TAKEN = "Could not set up host forwarding rule"
_HOST_KEY = re.compile(r"^board-host-key: (ssh-ed25519 \S+)", re.MULTILINE)
_END_S = 10.0
_CLOCK_SLACK_S = 2.0

_EMULATORS = {
    "arm64": ("qemu-system-aarch64", "virt,gic-version=3"),
    "armhf": ("qemu-system-arm", "virt,highmem=off"),
}
# A machine has fewer CPUs to choose from than a user land: no Cortex-A9, for one.
_CPUS = {
    "arm64": ("cortex-a53", {"cortex-a35", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1"}),
    "armhf": ("cortex-a15", {"cortex-a7", "cortex-a15"}),
}


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a machine is, as its file says."""

    board: str
    architecture: str
    cpu: str
    port: int
    image: str
    public: str
    client: str


class KernelBoards:
    """The boards of one farm that are machines.

    Args:
        folder: The farm's folder; the machines lie in one below it.
    """

    def __init__(self, folder: Path) -> None:
        self._machines = folder / "machines"
        self._images: dict[str, str] = {}

    def found(self) -> tuple[VirtualBoard, ...]:
        """See `Kind.found`."""
        folders = sorted(self._machines.glob("*")) if self._machines.is_dir() else []
        return tuple(self._described(one) for one in folders if (one / _SETTINGS).is_file())

    def _described(self, folder: Path) -> VirtualBoard:
        settings = _read(folder)
        return VirtualBoard(
            folder.name, settings.board, "kernel", settings.port, _process(folder) is not None, settings.client
        )

    def prepare(self, wanted: Board, tell: Tell) -> None:
        """See `Kind.prepare`."""
        emulator = _EMULATORS[boards.architecture(wanted)][0]
        if shutil.which(emulator) is None:
            raise DeviceError(f"{emulator} is not installed here", hint="apt-get install qemu-system-arm")
        self._images[wanted.name] = _unpacked(wanted, tell)

    def create(self, wanted: Board, login: Login, taken: Collection[str]) -> VirtualBoard:
        """See `Kind.create`."""
        self._sweep()
        architecture = boards.architecture(wanted)
        default, known = _CPUS[architecture]
        cpu = wanted.target.mcpu if wanted.target.mcpu in known else default
        image = self._images[wanted.name]
        folder = self._machines / boards.next_name(wanted.name, taken)
        folder.mkdir(mode=0o700, parents=True)
        try:
            for attempt in range(_ATTEMPTS):
                port = free_port()
                settings = _Settings(wanted.name, architecture, cpu, port, image, login.public, login.fingerprint)
                files.write_atomic(folder / _SETTINGS, files.canonical_json(dataclasses.asdict(settings)))
                try:
                    _boot(folder, settings)
                    break
                except DeviceError as fault:
                    if _PORT_TAKEN not in fault.details or attempt == _ATTEMPTS - 1:
                        raise
        except BaseException:
            _remove(folder)
            raise
        return self._described(folder)

    def _sweep(self) -> None:
        """Remove what a killed command left of a machine that it had hardly begun to make, or to remove."""
        for folder in self._machines.glob("*"):
            if not (folder / _SETTINGS).exists():
                _remove(folder)

    def start(self, one: VirtualBoard) -> None:
        """See `Kind.start`."""
        folder = self._machines / one.name
        settings = _read(folder)
        if not all((_cache(settings.image) / part).is_file() for part in _PARTS):
            raise DeviceError(
                f"{one.name} cannot be started again: its image was removed",
                hint=f"toolchain farm down {one.name}",
            )
        _boot(folder, settings)

    def stop(self, one: VirtualBoard) -> None:
        """See `Kind.stop`."""
        _kill(self._machines / one.name)

    def remove(self, one: VirtualBoard) -> None:
        """See `Kind.remove`."""
        _remove(self._machines / one.name)

    def log(self, one: VirtualBoard) -> str:
        """See `Kind.log`."""
        return process.tail(_console(self._machines / one.name))

    def host_key(self, one: VirtualBoard) -> str:
        """See `Kind.host_key`: the machine says it at its console before it has a network."""
        found = _HOST_KEY.search(_console(self._machines / one.name))
        return found[1] if found else ""


# --- the image ---


def _cache(image: str) -> Path:
    return files.cache_root() / "machines" / image


def _unpacked(wanted: Board, tell: Tell) -> str:
    """Take kernel, RAM disk and root file system out of the image; return the name under which the cache has them."""
    image = farm_image.ensure(connect(), farm_image.MACHINE, wanted, tell)
    name = str(image.id).partition(":")[2][:16]
    target = _cache(name)
    target.mkdir(parents=True, exist_ok=True)
    missing = [part for part in _PARTS if not (target / part).is_file()]
    if missing:
        tell(f"unpacking the machine for {wanted.name}")
        for part in missing:
            with files.atomic_path(target / part) as temporary:
                farm_image.copy_out(image, f"/{part}", temporary)
    return name


# --- a machine ---


def _read(folder: Path) -> _Settings:
    return _Settings(**files.read_json(folder / _SETTINGS, DeviceError))


def _console(folder: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (folder / _CONSOLE).read_bytes().decode(errors="replace").replace("\r", "")
    return ""


def _boot(folder: Path, settings: _Settings) -> None:
    """Start QEMU, which goes on by itself once the machine is set up.

    Raises:
        DeviceError: It cannot; its words are in the details.
    """
    disk = folder / _DISK
    if not disk.exists():
        with disk.open("wb") as stream:
            stream.truncate(DISK_BYTES)
    (folder / _CONSOLE).unlink(missing_ok=True)
    (folder / _PID).unlink(missing_ok=True)
    process.run(_command(folder, settings), timeout=60.0, error=DeviceError)


def _command(folder: Path, settings: _Settings) -> list[str]:
    emulator, machine = _EMULATORS[settings.architecture]
    image = _cache(settings.image)
    words = {
        "console": "ttyAMA0",
        "panic": "-1",
        "board.name": folder.name,
        "board.key": settings.public.replace(" ", ","),
    }
    line = " ".join(["quiet", *(f"{name}={value}" for name, value in words.items())])
    return [
        *(emulator, "-name", folder.name, "-M", machine, "-cpu", settings.cpu, "-smp", "1", "-m", str(_MEMORY_MIB)),
        *("-accel", "tcg,thread=multi,tb-size=64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-kernel", str(image / "kernel"), "-initrd", str(image / "initrd"), "-append", line),
        *("-drive", f"if=none,id=root,format=raw,readonly=on,file={image / 'root.ext4'}"),
        *("-device", "virtio-blk-device,drive=root,serial=root"),
        *("-drive", f"if=none,id=data,format=raw,cache=writeback,file={folder / _DISK}"),
        *("-device", "virtio-blk-device,drive=data,serial=data"),
        *("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{settings.port}-:22"),
        *("-device", "virtio-net-device,netdev=net", "-device", "virtio-rng-device"),
        *("-serial", f"file:{folder / _CONSOLE}", "-daemonize", "-pidfile", str(folder / _PID)),
    ]


def _remove(folder: Path) -> None:
    """End a machine and remove its folder, the settings first: what is left without them counts as rubbish."""
    _kill(folder)
    (folder / _SETTINGS).unlink(missing_ok=True)
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # others are there
        folder.parent.rmdir()


def _kill(folder: Path) -> None:
    """End a machine's process at once, and wait until it has ended."""
    with _held(folder) as handle:
        if handle is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not select.select([handle], [], [], _END_S)[0]:
            raise DeviceError(f"{folder.name} does not stop", details=f"process {_process(folder)}")


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[int | None]:
    """Hold a machine's process by a descriptor, which no other process can take over as it could take its number."""
    pid = _process(folder)
    try:
        handle = None if pid is None else os.pidfd_open(pid)
    except ProcessLookupError:
        handle = None
    try:
        yield handle if _process(folder) == pid else None  # the number is still its own
    finally:
        if handle is not None:
            os.close(handle)


def _process(folder: Path) -> int | None:
    """Return the number of a machine's process; None if it has ended, also if the number is another process's now."""
    try:
        pid = int((folder / _PID).read_text(encoding="ascii"))
        written = (folder / _PID).stat().st_mtime
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    state, started = fields[0], _boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    mine = os.fsencode(folder / _PID) in words and started <= written + _CLOCK_SLACK_S
    return pid if mine and state != "Z" else None


def _boot_time() -> float:
    stat = Path("/proc/stat").read_text(encoding="ascii")
    return float(next(line.split()[1] for line in stat.splitlines() if line.startswith("btime ")))
