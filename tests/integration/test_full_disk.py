"""Devices whose disk is full or read-only: a clear error, the old release stays whole, and later deploys work."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import bundles, deploys, sshd
from tests.support.parts import require
from toolchain.device.store import Blobs, Releases, Store
from toolchain.errors import DeviceError, FullError
from toolchain.shell import SshOptions, open_shell

SIZE_MIB = 48


@pytest.fixture
def disk(tmp_path):
    """A small tmpfs."""
    require_mounts()
    point = tmp_path / "disk"
    point.mkdir()
    completed = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", point], capture_output=True, check=False
    )
    require_mounts(possible=completed.returncode == 0)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


def require_mounts(*, possible: bool = True) -> None:
    present = possible and os.geteuid() == 0 and shutil.which("mount") is not None
    require("a small file system", "root and a kernel that lets it mount", present=present)


@pytest.fixture
def connect(request, tmp_path):
    """Open a shell on the device: this host, but where a test asks for SSH."""
    if getattr(request, "param", "local") == "local":
        yield lambda: open_shell(None)
        return
    with sshd.running(tmp_path / "sshd", options=f"SetEnv HOME={tmp_path}") as server:
        options = SshOptions(known_hosts=(server.known_hosts,), identity=server.key_file, agent=False)
        yield lambda: open_shell(server.host, config=options)


@pytest.fixture
def ship(disk, connect, program):
    """Deploy a bundle to the disk; `meddle` is called with the shell before."""

    def ship(bundle, meddle=lambda _shell: None):
        with connect() as shell:
            meddle(shell)
            store = Store(shell, str(disk / "device"))
            return deploys.deploy(bundle, program, shell, store)

    return ship


both_ways = pytest.mark.parametrize("connect", ["local", "ssh"], indirect=True)


@contextlib.contextmanager
def filled(disk: Path, spare: int = 0):
    """Fill the disk but for some bytes."""
    path = disk / "filler"
    fill(path, spare)
    try:
        yield
    finally:
        path.unlink()


def fill(path: Path, spare: int = 0) -> None:
    with path.open("wb") as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(1 << 20))
            stream.flush()
    space = os.statvfs(path.parent)
    with path.open("ab", buffering=0) as stream, contextlib.suppress(OSError):
        while space.f_bavail:
            stream.write(bytes(space.f_frsize))
            space = os.statvfs(path.parent)
    if spare:
        os.truncate(path, path.stat().st_size - spare)


def test_full_from_the_start(disk, ship, bulky):
    with filled(disk):
        with pytest.raises(DeviceError) as caught:
            ship(bulky[0])
        assert caught.value.exit_code == 4
        assert "space" in f"{caught.value.message} {caught.value.details} {caught.value.hint}"
    ship(bulky[0])
    assert bundles.whole_release(disk / "device") == bulky[0].digest


@pytest.mark.parametrize("spare", [0, 4096, 3 << 20])
def test_full_before_the_second_release(disk, ship, bulky, spare):
    ship(bulky[0])
    with filled(disk, spare):
        with pytest.raises(FullError, match=r"MB free, but .* MB are needed") as caught:
            ship(bulky[1])
        assert caught.value.exit_code == 4
        assert "free some space" in caught.value.hint
        assert bundles.whole_release(disk / "device") == bulky[0].digest
    ship(bulky[1])
    assert bundles.whole_release(disk / "device") == bulky[1].digest


def test_full_disk_needs_nothing_to_deploy_the_same_again(disk, ship, bulky):
    """Only the outputs of the smoke run need a little room."""
    ship(bulky[0])
    with filled(disk, 64 << 10):
        assert not ship(bulky[0]).changed


@both_ways
def test_full_in_the_middle_of_an_upload(disk, ship, bulky):
    """Someone else fills the disk after the check: what arrived is continued later."""
    ship(bulky[0])

    def meddle(shell):
        push = shell.push

        def push_into_a_full_disk(source, target, *, offset=0, progress=None):
            if source.name == "params.safetensors":
                fill(disk / "filler", spare=1 << 20)
            push(source, target, offset=offset, progress=progress)

        shell.push = push_into_a_full_disk

    with pytest.raises(FullError) as caught:
        ship(bulky[1], meddle)
    assert caught.value.exit_code == 4
    assert "No space left on device" in caught.value.details
    assert bundles.whole_release(disk / "device") == bulky[0].digest
    with pytest.raises(DeviceError):
        ship(bulky[1])
    assert bundles.whole_release(disk / "device") == bulky[0].digest
    (disk / "filler").unlink()
    assert ship(bulky[1]).changed
    assert bundles.whole_release(disk / "device") == bulky[1].digest


@pytest.mark.parametrize(("owner", "step"), [(Blobs, "install"), (Releases, "activate"), (Releases, "prune")])
def test_full_after_the_upload(disk, ship, bulky, monkeypatch, owner, step):
    """Links need no data blocks on a tmpfs, so this may go well; it must not leave anything between old and new."""
    ship(bulky[0])
    original = getattr(owner, step)

    def on_a_full_disk(*args):
        if not (disk / "filler").exists():
            fill(disk / "filler")
        return original(*args)

    with monkeypatch.context() as patch, contextlib.suppress(DeviceError):
        patch.setattr(owner, step, on_a_full_disk)
        ship(bulky[1])
    assert bundles.whole_release(disk / "device") in {bundle.digest for bundle in bulky}
    (disk / "filler").unlink()
    ship(bulky[1])
    assert bundles.whole_release(disk / "device") == bulky[1].digest


@both_ways
def test_read_only(disk, ship, bulky):
    ship(bulky[0])
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(DeviceError) as caught:
        ship(bulky[1])
    assert caught.value.exit_code == 4
    assert "Read-only file system" in caught.value.details
    assert "writable" in caught.value.hint
    assert bundles.whole_release(disk / "device") == bulky[0].digest
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    ship(bulky[1])


def test_read_only_from_the_start(disk, ship, tiny):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(DeviceError) as caught:
        ship(tiny)
    assert "Read-only file system" in caught.value.details
    assert "writable" in caught.value.hint
