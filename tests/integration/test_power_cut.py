"""Power cuts in the middle of a deploy: the file system loses what was not synced, and the next deploy just works."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support import bundles, cuts, deploy_client, disks
from tests.support.slots import SLOTS, folder_of, own

CUTS = int(os.environ.get("TOOLCHAIN_CUTS", "10"))
SLOT_CUTS = int(os.environ.get("TOOLCHAIN_SLOT_CUTS", "3"))
ANY_INSTANT = "power cut at any instant"


@pytest.fixture
def disk(tmp_path):
    return disks.cuttable(tmp_path)


def test_power_cuts(disk, bulky, program):
    with disk.mounted() as point:
        root = point / "device"
        deploy_client.plain_deploy(bulky[0], program, root)
        seconds = deploy_client.duration(bulky[1], root)
    stream = cuts.stream("power cut")
    for index in range(CUTS):
        old, new = bulky[(index + 1) % 2], bulky[index % 2]
        with cuts.case("deploy", ANY_INSTANT) as row:
            with disk.mounted(), disk.kept_busy(), deploy_client.started(new, root) as client:
                deploy_client.begin(client)
                if index % 2:
                    _until_switched(root)
                else:
                    time.sleep(stream.uniform(0, 1.5 * seconds))
                disk.cut()
                row.cuts += 1
                client.kill()
                client.wait()
            with disk.mounted():
                release = bundles.whole_release(root)
                assert release in {old.digest, new.digest}
                row.ran(new=release == new.digest)
                deploy_client.plain_deploy(new, program, root)
                assert bundles.whole_release(root) == new.digest


@pytest.mark.timeout(60 + 30 * SLOT_CUTS)
def test_power_cuts_during_deploys_to_one_of_three_slots(disk, bulky, program):
    """All three models have the same release at times, and so the same files on the disk."""
    root, current = disk.point / "device", dict.fromkeys(SLOTS, 0)
    with disk.mounted():
        for slot in SLOTS:
            deploy_client.plain_deploy(bulky[0], program, root, slot=slot)
        seconds = deploy_client.duration(bulky[0], root, slot=SLOTS[1])
    stream = cuts.stream("slots")
    for index in range(SLOT_CUTS):
        slot = SLOTS[(index + 1) % len(SLOTS)]
        folder, new, old = folder_of(root, slot), bulky[1 - current[slot]], bulky[current[slot]]
        others = [name for name in SLOTS if name != slot]
        with cuts.case("slot", ANY_INSTANT) as row:
            with disk.mounted(), disk.kept_busy(), deploy_client.started(new, root, slot=slot) as client:
                before = {name: own(root, name) for name in others}
                deploy_client.begin(client)
                if index % 2:
                    _until_switched(folder)
                else:
                    time.sleep(stream.uniform(0, 2.0 * seconds))
                disk.cut()
                row.cuts += 1
                client.kill()
                client.wait()
            with disk.mounted():
                assert {name: own(root, name) for name in others} == before
                for name in others:
                    assert bundles.whole_release(folder_of(root, name)) == bulky[current[name]].digest
                release = bundles.whole_release(folder)
                assert release in {old.digest, new.digest}
                row.ran(new=release == new.digest)
                deploy_client.plain_deploy(new, program, root, slot=slot)
                assert bundles.whole_release(folder) == new.digest
                assert {name: own(root, name) for name in others} == before
            current[slot] = 1 - current[slot]


def _until_switched(root: Path) -> None:
    """Wait for the most delicate instant: `current` has just got another target."""
    before = (root / "current").readlink()
    deadline = time.monotonic() + 10
    while (root / "current").readlink() == before and time.monotonic() < deadline:
        time.sleep(0.0005)


def test_first_deploy_ever(disk, tiny, program):
    """Nothing was there before: a cut leaves nothing, or the whole release."""
    stream = cuts.stream("first")
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
