"""Power cuts in the middle of a deploy: the file system loses what was not synced, and the next deploy just works.

EXT4_IOC_SHUTDOWN without a flush of the journal drops all that is not on disk yet, as a power cut would.
`noauto_da_alloc` stops ext4 from hiding a missing fsync before a rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import bundles, deploy_client
from tests.parts import require

CUTS = int(os.environ.get("TOOLCHAIN_CUTS", "10"))
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_IMAGE_MIB = 128


class Disk:
    """An ext4 file system in a file, on a loop device while it is mounted."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "disk.img"
        self.point = folder / "mounted"
        self.point.mkdir()
        with self.image.open("wb") as stream:
            stream.truncate(_IMAGE_MIB << 20)
        _tool("mkfs.ext4", "-q", "-F", self.image)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        _tool("mount", "-o", "loop,noauto_da_alloc", self.image, self.point)
        try:
            yield self.point
        finally:
            self._unmount()

    def cut(self) -> None:
        """Lose everything that is not on disk, and every write from now on."""
        handle = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def _unmount(self) -> None:
        """Unmount; what a killed client left running has some seconds to end."""
        for _ in range(50):
            if subprocess.run(["umount", self.point], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        _tool("umount", "--lazy", self.point)
        pytest.fail("something still uses the disk five seconds after its client was killed")


def _tool(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path):
    tools = all(shutil.which(name) for name in ("mkfs.ext4", "mount", "umount"))
    require("a power cut", "root and e2fsprogs", present=os.geteuid() == 0 and tools)
    made = Disk(tmp_path)
    try:
        with made.mounted():
            pass
    except subprocess.CalledProcessError:  # a container without loop devices
        require("a power cut", "a kernel that lets this container mount", present=False)
    return made


def test_power_cuts(disk, bulky, program, capsys):
    with disk.mounted() as point:
        root = point / "device"
        deploy_client.plain_deploy(bulky[0], program, root)
        seconds = deploy_client.duration(bulky[1], root)
    found = {"old": 0, "new": 0}
    stream = random.Random("power cut")  # noqa: S311 - seeded, so that a failure comes again
    for index in range(CUTS):
        old, new = bulky[(index + 1) % 2], bulky[index % 2]
        with disk.mounted(), _journal_kept_busy(disk), deploy_client.started(new, root) as client:
            deploy_client.begin(client)
            if index % 2:
                _until_switched(root)
            else:
                time.sleep(stream.uniform(0, 1.5 * seconds))
            disk.cut()
            client.kill()
            client.wait()
        with disk.mounted():
            release = bundles.whole_release(root)
            found[{old.digest: "old", new.digest: "new"}[release]] += 1
            deploy_client.plain_deploy(new, program, root)
            assert bundles.whole_release(root) == new.digest
    with capsys.disabled():
        print(f"\n{CUTS} power cuts: {found['old']} old, {found['new']} new")  # noqa: T201


@contextlib.contextmanager
def _journal_kept_busy(disk: Disk) -> Iterator[None]:
    """Let another program sync a file of its own all the time, so that renames reach the disk before data does."""
    ended = threading.Event()

    def sync() -> None:
        with contextlib.suppress(OSError), (disk.point / "other").open("wb", buffering=0) as stream:
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


def _until_switched(root: Path) -> None:
    """Wait for the most delicate instant: `current` has just got another target."""
    before = (root / "current").readlink()
    deadline = time.monotonic() + 10
    while (root / "current").readlink() == before and time.monotonic() < deadline:
        time.sleep(0.0005)


def test_first_deploy_ever(disk, tiny, program):
    """Nothing was there before: a cut leaves nothing, or the whole release."""
    stream = random.Random("first")  # noqa: S311
    for name in ("one", "two", "three"):
        root = disk.point / name
        with disk.mounted(), deploy_client.started(tiny, root) as client:
            deploy_client.begin(client)
            time.sleep(stream.uniform(0, 0.5))
            disk.cut()
        with disk.mounted():
            assert bundles.whole_release(root) in {None, tiny.digest}
            deploy_client.plain_deploy(tiny, program, root)
            assert bundles.whole_release(root) == tiny.digest


def test_finished_deploy_survives(disk, bulky, program):
    """What `deploy` has reported as done is on disk."""
    for bundle in bulky:
        with disk.mounted() as point:
            deploy_client.plain_deploy(bundle, program, point / "device")
            disk.cut()
        with disk.mounted() as point:
            assert bundles.whole_release(point / "device") == bundle.digest
