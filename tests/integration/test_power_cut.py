"""Power cuts in the middle of a deploy: the file system loses what was not synced, and the next deploy just works."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.support import bundles, deploy_client, disks

CUTS = int(os.environ.get("TOOLCHAIN_CUTS", "10"))


@pytest.fixture
def disk(tmp_path):
    return disks.cuttable(tmp_path)


def test_power_cuts(disk, bulky, program, capsys):
    with disk.mounted() as point:
        root = point / "device"
        deploy_client.plain_deploy(bulky[0], program, root)
        seconds = deploy_client.duration(bulky[1], root)
    found = {"old": 0, "new": 0}
    stream = random.Random("power cut")  # noqa: S311 - seeded, so that a failure comes again
    for index in range(CUTS):
        old, new = bulky[(index + 1) % 2], bulky[index % 2]
        with disk.mounted(), disk.kept_busy(), deploy_client.started(new, root) as client:
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
