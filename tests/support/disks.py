"""Disks that lose power: one that can be cut at any instant, and one that remembers every write.

The first is cheap: EXT4_IOC_SHUTDOWN without a flush of the journal drops all that is not on disk yet, as a power cut
would. The second is thorough: of every state that a cut could have left of it, an image is made. QEMU's `blklogwrites`
driver writes its log, in the format of the kernel's dm-log-writes, and QEMU's FUSE export makes it a file, so that the
kernel of this host mounts it and no guest is needed.

Both are mounted with `noauto_da_alloc`, which stops ext4 from hiding a missing fsync before a rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import os
import random
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.parts import require

_MAGIC = 0x6A736677736872
_FLUSH = 1
_DISCARD = 4
_SECTOR = 512
_LOG_MIB = 2048  # sparse
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2


@dataclass(frozen=True)
class Write:
    """One write that reached the disk: where, and what."""

    offset: int
    data: bytes


class Disk:
    """An ext4 file system in a file, on a loop device while it is mounted.

    Attributes:
        image: The file.
        point: Where it is mounted.
    """

    def __init__(self, folder: Path, mib: int = 128, options: Sequence[str] = ()) -> None:
        self.image = folder / "disk.img"
        self.point = folder / "mounted"
        self.point.mkdir()
        with self.image.open("wb") as stream:
            stream.truncate(mib << 20)
        _tool("mkfs.ext4", "-q", "-F", *options, self.image)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        _tool("mount", "-o", "loop,noauto_da_alloc", self.image, self.point)
        try:
            yield self.point
        finally:
            unmount(self.point)
            self._wait_until_released()

    def _wait_until_released(self) -> None:
        """Wait for a container that is just ending: as long as it holds the file system, a new mount is the old one."""
        deadline = time.monotonic() + 10
        while _tool("losetup", "--associated", self.image):
            if time.monotonic() > deadline:
                raise RuntimeError(f"something still uses {self.image} ten seconds after it was unmounted")
            time.sleep(0.02)

    def cut(self, *, committed: bool = False) -> None:
        """Lose everything that is not on disk, and every write from now on.

        With `committed` another program has synced a file of its own just before: then all renames are on the disk, but
        no data that was not synced.
        """
        if committed:
            with contextlib.suppress(OSError), (self.point / "other").open("wb", buffering=0) as stream:
                stream.write(b"x")
                os.fsync(stream.fileno())
        handle = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def full(self, *, of_files: bool = False) -> Iterator[None]:
        """Leave no free block for a block of code; with `of_files`, no free inode either."""
        filler = self.point / "filler"
        filler.mkdir()
        with (filler / "blocks").open("wb") as stream:
            with contextlib.suppress(OSError):
                for number in range(1 << 20 if of_files else 0):
                    (filler / str(number)).symlink_to("nowhere")
            size = step = 1 << 20
            while step >= _SECTOR:
                try:
                    os.posix_fallocate(stream.fileno(), size - step, step)
                    size += step
                except OSError:
                    step //= 2
                    size -= step
        try:
            yield
        finally:
            shutil.rmtree(filler)

    @contextlib.contextmanager
    def kept_busy(self) -> Iterator[None]:
        """Let another program sync a file of its own all the time, so that renames reach the disk before data does."""
        ended = threading.Event()

        def sync() -> None:
            with contextlib.suppress(OSError), (self.point / "other").open("wb", buffering=0) as stream:
                while not ended.wait(0.001):
                    stream.write(b"x")
                    os.fsync(stream.fileno())

        thread = threading.Thread(target=sync)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def cuttable(folder: Path, mib: int = 128, options: Sequence[str] = ()) -> Disk:
    """Return a disk that can be cut; leave the test out where there can be none. `options` are those of mkfs.ext4."""
    tools = all(shutil.which(name) for name in ("mkfs.ext4", "mount", "umount"))
    require("a power cut", "root and e2fsprogs", present=os.geteuid() == 0 and tools)
    disk = Disk(folder, mib, options)
    try:
        with disk.mounted():
            pass
    except RuntimeError:  # a container without loop devices
        require("a power cut", "a kernel that lets this container mount", present=False)
    return disk


class RecordedDisk:
    """An ext4 file system in a file, whose writes are recorded while it is mounted.

    Attributes:
        image: The disk as it was before the recording; the recording goes on in copies.
        point: Where it is mounted.
    """

    def __init__(self, folder: Path, image: Path) -> None:
        self._folder = folder
        self.image = image
        self.point = folder / "recorded"
        self.point.mkdir(exist_ok=True)
        self._log = folder / "writes.log"

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        """Mount a copy of the disk and record what is written to it."""
        copy, export = self._folder / "copy.img", self._folder / "export.img"
        shutil.copyfile(self.image, copy)
        export.touch()
        with self._log.open("wb") as stream:
            stream.truncate(_LOG_MIB << 20)
        server = _served(copy, self._log, export)
        try:
            with _loop(export) as device:
                _tool("mount", "-o", "noauto_da_alloc", device, self.point)
                try:
                    yield self.point
                finally:
                    unmount(self.point)
        finally:
            server.terminate()
            server.wait()
        self._check_log(copy)

    def _check_log(self, copy: Path) -> None:
        """Compare the disk as it is with the disk as the log has it: a log that is not whole proves nothing."""
        writes = [entry for entry in _entries(self._log) if entry is not None]
        replayed = _applied(self.image, writes, self._folder / "replayed.img")
        if not filecmp.cmp(replayed, copy, shallow=False):
            raise RuntimeError(f"{self._log} does not hold what was written to {copy}")
        replayed.unlink()

    def marked(self) -> int:
        """Return how many writes and flushes there were up to now."""
        subprocess.run(["sync", "-f", self.point], check=True)
        return len(list(_entries(self._log)))

    def states(self, folder: Path, *, subsets: int, seed: int = 0) -> Iterator[tuple[int, Path]]:
        """Yield an image for every state that a power cut could have left, with the number of writes before it.

        What was written before a flush is on the disk. Of what came after it, a disk may have kept the first so many,
        or any other part: after each flush every prefix is tried, and `subsets` random parts.
        """
        stream = random.Random(seed)  # noqa: S311 - seeded, so that a failure comes again
        base, target = folder / "base.img", folder / "state.img"
        shutil.copyfile(self.image, base)
        epoch: list[Write] = []
        for index, entry in enumerate([*_entries(self._log), None]):
            if entry is not None:
                epoch.append(entry)
                yield index + 1, _applied(base, epoch, target)
                continue
            for _ in range(subsets if len(epoch) > 1 else 0):
                yield index, _applied(base, [write for write in epoch if stream.random() < 0.5], target)
            shutil.copyfile(_applied(base, epoch, target), folder / "next.img")
            (folder / "next.img").replace(base)
            epoch = []


def require_recording() -> None:
    """Leave a test out where writes cannot be recorded."""
    present = shutil.which("qemu-storage-daemon") is not None and Path("/dev/fuse").exists()
    require("a disk that records its writes", "qemu-system-common, and a kernel with FUSE", present)


def unmount(point: Path) -> None:
    """Unmount; what a killed client left running has some seconds to end."""
    for _ in range(50):
        if subprocess.run(["umount", point], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    _tool("umount", "--lazy", point)
    raise RuntimeError(f"something still uses {point} five seconds after its client was killed")


def _tool(*arguments: str | Path) -> str:
    completed = subprocess.run(arguments, check=False, capture_output=True, text=True)
    if completed.returncode != 0:
        raise RuntimeError(f"{arguments} failed with exit code {completed.returncode}: {completed.stderr}")
    return completed.stdout.strip()


def _served(disk: Path, log: Path, export: Path) -> subprocess.Popen[bytes]:
    command = ["qemu-storage-daemon"]
    command += ["--blockdev", f"driver=file,node-name=disk,filename={disk}"]
    command += ["--blockdev", f"driver=file,node-name=log,filename={log}"]
    command += ["--blockdev", "driver=blklogwrites,node-name=both,file=disk,log=log"]
    command += ["--export", f"type=fuse,id=export,node-name=both,mountpoint={export},writable=on"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while export.stat().st_size == 0:
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            raise RuntimeError("qemu-storage-daemon does not serve the disk")
        time.sleep(0.02)
    return server


@contextlib.contextmanager
def _loop(file: Path) -> Iterator[str]:
    # Not direct: QEMU's export takes one buffer for all requests, and so must get them one after the other.
    device = _tool("losetup", "--find", "--show", "--direct-io=off", file)
    try:
        yield device
    finally:
        _tool("losetup", "--detach", device)


def _entries(log: Path) -> Iterator[Write | None]:
    """Yield every write in order, and None for each flush."""
    with log.open("rb") as stream:
        magic, _version, count, sector = struct.unpack("<QQQI", stream.read(28))
        if magic != _MAGIC:
            raise RuntimeError(f"{log} is no log of writes")
        stream.seek(sector)
        for _ in range(count):
            start, sectors, flags, _length = struct.unpack("<QQQQ", stream.read(32))
            stream.seek(sector - 32, os.SEEK_CUR)
            if flags & _FLUSH:
                yield None
            if not sectors:
                continue
            data = bytes(sectors * _SECTOR) if flags & _DISCARD else stream.read(sectors * _SECTOR)
            yield Write(start * _SECTOR, data)


def _applied(base: Path, writes: list[Write], target: Path) -> Path:
    shutil.copyfile(base, target)
    with target.open("r+b") as stream:
        for write in writes:
            stream.seek(write.offset)
            stream.write(write.data)
    return target
