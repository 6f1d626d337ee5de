"""Power cuts of virtual boards in the middle of deploys over SSH: many by a cheap way, and all by a thorough one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import boards, bundles, cuts, deploy_client, disks
from tests.support.boards import Farm
from tests.support.disks import Disk, RecordedDisk
from toolchain import board
from toolchain.native import programs

pytestmark = pytest.mark.xdist_group("docker")

CUTS = int(os.environ.get("TOOLCHAIN_CUTS", "2"))
EVERY = int(os.environ.get("TOOLCHAIN_EVERY_STATE", "10"))  # of so many states of the disk one is looked at
_ROOT = Path("/data/device")
_OWNER = 1000  # the login of virtual boards


@dataclass(frozen=True)
class Powered:
    """A virtual board whose /data is on a disk of its own, and which loses power with it.

    Attributes:
        container: Its container.
        login: Its name, and an ssh_config that knows it.
    """

    container: Any
    login: tuple[str, str]

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Run it while its disk is mounted."""
        self.container.start()
        try:
            boards.wait_for_banner(self.container)
            yield
        finally:
            self.container.kill()
            self.container.wait()


@pytest.fixture(scope="module")
def rpi4(tmp_path_factory) -> Iterator[Farm]:
    with boards.running(tmp_path_factory.mktemp("farm"), rpi4=1) as farm:
        yield farm


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two bundles for the board that differ in 1 MiB of weights."""
    folder = tmp_path_factory.mktemp("pair")
    first = bundles.build(folder, 256, 1024, board.load("rpi4"))
    return first, bundles.reweighted(first, folder / "other", seed=7)


@pytest.fixture(scope="module")
def program():
    return programs.build(programs.RUNNER, "aarch64-linux-gnu", "aarch64")


@pytest.fixture
def disk(tmp_path) -> Disk:
    disk_image = disks.cuttable(tmp_path)
    with disk_image.mounted() as point:
        os.chown(point, _OWNER, _OWNER)
    return disk_image


@pytest.fixture
def powered(rpi4, disk) -> Iterator[Powered]:
    with boards.with_data(rpi4, rpi4.name("rpi4"), disk.point) as (container, login):
        yield Powered(container, login)


@pytest.mark.nightly
def test_cuts(powered, disk, pair, program):
    """The cheap way: at a random instant of a deploy the disk loses what was not synced, and the board dies."""
    with disk.mounted(), powered.on():
        deploy_client.plain_deploy(pair[0], program, _ROOT, powered.login)
        seconds = deploy_client.duration(pair[1], _ROOT, powered.login)
    stream = cuts.stream("a board's power")
    for index in range(CUTS):
        old, new = pair[index % 2], pair[(index + 1) % 2]
        with cuts.case("deploy to a virtual board", "power cut at any instant") as row:
            with disk.mounted(), powered.on(), deploy_client.started(new, _ROOT, powered.login) as client:
                deploy_client.plain_deploy(old, program, _ROOT, powered.login)  # whatever the cut before left
                deploy_client.begin(client)
                with disk.kept_busy():
                    time.sleep(stream.uniform(0, 1.2 * seconds))
                    disk.cut()
                    row.cuts += 1
                client.kill()
                client.wait()
            with disk.mounted() as point:
                release = bundles.whole_release(point / _ROOT.name)
                assert release in {old.digest, new.digest}
                row.ran(new=release == new.digest)


@pytest.mark.nightly
def test_every_state(powered, disk, pair, program, tmp_path, capsys):
    """The thorough way: every state that a cut could have left of the disk holds the old release or the new one."""
    disks.require_recording()
    old, new = pair
    with disk.mounted(), powered.on():
        deploy_client.plain_deploy(old, program, _ROOT, powered.login)
    recorded = RecordedDisk(tmp_path, disk.image)
    with recorded.mounted() as point, _shown_at(point, disk.point), powered.on():
        deploy_client.plain_deploy(new, program, _ROOT, powered.login)
        finished = recorded.marked()
    counts = {old.digest: 0, new.digest: 0}
    for count, (writes, image) in enumerate(recorded.states(tmp_path, subsets=4)):
        if count % EVERY:
            continue
        shutil.copyfile(image, disk.image)
        with disk.mounted() as point:
            release = bundles.whole_release(point / _ROOT.name)
            assert release in counts
            assert release == new.digest or writes < finished
            counts[release] += 1
            if sum(counts.values()) % 20 == 1:
                with powered.on():
                    deploy_client.plain_deploy(new, program, _ROOT, powered.login)
                assert bundles.whole_release(point / _ROOT.name) == new.digest
    with capsys.disabled():
        print(f"\n{sum(counts.values())} states of the disk: {counts[old.digest]} old, {counts[new.digest]} new")  # noqa: T201
    assert min(counts.values()) > 0


@contextlib.contextmanager
def _shown_at(source: Path, point: Path) -> Iterator[None]:
    """Let a mounted folder appear at another place as well: a container's folders stay where they were."""
    subprocess.run(["mount", "--bind", source, point], check=True)
    try:
        yield
    finally:
        disks.unmount(point)
