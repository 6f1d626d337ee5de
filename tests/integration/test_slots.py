"""Several models on one device over a real SSH server, each with its own application under a real systemd.

What happens to one changes no byte and no process of another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles, sshd, systemd, updates
from tests.support.applications import Place, shipped_unit
from tests.support.commands import toolchain
from tests.support.slots import folder_of, own

MODELS = ("detector", "classifier")
LAB = """
[desk]
board = "x86_64"
host = "board"
root = "{root}"
ssh_config = "{config}"
"""
RUN = """
[desk.slots.{slot}.run]
unit = "{slot}.service"
health = "{health}"
within = "10s"
"""


@dataclass(frozen=True)
class Desk:
    """A device with an application in each of two slots."""

    root: Path
    applications: dict[str, Place]
    words: tuple[object, ...]  # which name it

    def run(self, *arguments: object, code: int = 0) -> str:
        outcome = toolchain(*arguments, *self.words)
        assert outcome.code == code, outcome.err
        return outcome.err if code else outcome.out

    def deploy(self, bundle, slot: str, code: int = 0) -> str:
        return self.run("deploy", bundle.folder, "--slot", slot, "--budget", 0, code=code)

    def state(self, slot: str) -> tuple[tuple[int, str], dict[str, object]]:
        """The process of a slot's application and its release, and all bytes."""
        return self.applications[slot].running(), own(self.root, slot)


@pytest.fixture
def desk(tmp_path):
    root = tmp_path / "device"
    with systemd.managing(tmp_path / "systemd") as manager:
        applications = {slot: Place(tmp_path / slot, folder_of(root, slot)).put() for slot in MODELS}
        for slot, application in applications.items():
            manager.unit(f"{slot}.service", shipped_unit(application))
        manager.boot()
        with sshd.running(tmp_path / "sshd", options=f"SetEnv XDG_RUNTIME_DIR={manager.runtime}") as server:
            lab = tmp_path / "lab.toml"
            runs = [RUN.format(slot=slot, health=application.health) for slot, application in applications.items()]
            lab.write_text(LAB.format(root=root, config=server.config) + "".join(runs))
            yield Desk(root, applications, ("--board", "x86_64", "--host", "desk", "--devices", lab))


def test_models_beside_each_other(desk, tmp_path, tiny_for_ssh):
    """Deploy, a release that is taken back, a roll-back, a run and a removal in one slot leave the other as it is."""
    other = bundles.reweighted(tiny_for_ssh, tmp_path / "other", seed=3)
    bad = bundles.variant(tiny_for_ssh, tmp_path / "bad", {}, name="mute")
    first = toolchain("deploy", tiny_for_ssh.folder, "--slot", "detector", "--budget", 0, *desk.words)
    assert "slot detector is new on" in first.err
    desk.deploy(tiny_for_ssh, "classifier")
    desk.deploy(other, "classifier")
    before = desk.state("classifier")
    assert before[0][1] == other.digest

    desk.deploy(other, "detector")
    assert desk.applications["detector"].running()[1] == other.digest
    assert "generation 2 is current again" in desk.deploy(bad, "detector", code=5)
    assert desk.applications["detector"].running()[1] == other.digest
    assert desk.state("classifier") == before
    assert "slot detector of" in desk.run("rollback", "--slot", "detector")
    assert desk.applications["detector"].running()[1] == tiny_for_ssh.digest
    assert "no earlier release on slot detector" in desk.run("rollback", "--slot", "detector", code=4)
    assert desk.state("classifier") == before

    np.savez(tmp_path / "x.npz", x=np.zeros((1, 8), np.float32))
    ran = json.loads(
        desk.run("run", "--slot", "detector", "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz", "--json")
    )
    assert (ran["slot"], ran["bundle_digest"]) == ("detector", f"sha256:{tiny_for_ssh.digest}")
    status = json.loads(desk.run("status", "--slot", "detector", "--json"))
    assert (status["current"]["digest"], status["application"]["healthy"]) == (tiny_for_ssh.digest, True)
    (other_slot,) = status["other_slots"]
    assert (other_slot["slot"], other_slot["current"]["digest"]) == ("classifier", other.digest)
    listed = json.loads(desk.run("status", "--releases", "--json"))
    assert [(item["slot"], item["digest"]) for item in listed if item["current"]] == [
        ("classifier", other.digest), ("detector", tiny_for_ssh.digest),
    ]  # fmt: skip

    desk.run("remove", "--slot", "detector")
    assert desk.applications["detector"].running() == (0, "")
    assert desk.state("classifier") == before
    assert not (desk.root / "slots" / "detector").exists()
    assert bundles.whole_release(desk.root / "slots" / "classifier") == other.digest


@pytest.fixture(scope="module")
def exported(tiny, program, tmp_path_factory):
    """An update without a slot, and two for one slot."""
    folder = tmp_path_factory.mktemp("exported")
    other = bundles.reweighted(tiny, folder / "other", seed=3)
    releases = [(tiny, ""), (tiny, "detector"), (other, "detector")]
    return other.digest, [
        updates.written(release, program, folder / f"{number}.run", slot=slot).path
        for number, (release, slot) in enumerate(releases)
    ]


@pytest.mark.parametrize("shell", ["busybox", "mksh"])
def test_an_update_without_a_network_goes_to_its_slot(exported, tiny, tmp_path, shell):
    device, root = updates.device(shell, tmp_path), tmp_path / "device"
    other, (own_update, first, second) = exported
    for path in (own_update, first):
        completed = device.apply(path, "--root", root)
        assert completed.returncode == 0, completed.stderr
    before = own(root, "")
    completed = device.apply(second, "--root", root, "--json")
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["slot"] == "detector"
    assert bundles.whole_release(root / "slots" / "detector") == other
    completed = device.apply(second, "--root", root, "--check", "--json")
    assert json.loads(completed.stdout)["before"] == f"sha256:{other}"
    completed = device.apply(second, "--root", root, "--rollback")
    assert completed.returncode == 0, completed.stderr
    assert bundles.whole_release(root / "slots" / "detector") == tiny.digest
    assert own(root, "") == before


def test_an_update_does_not_roll_back_another_slot(tiny, program, tmp_path):
    path = updates.written(tiny, program, tmp_path / "x.run", slot="detector").path
    device = updates.device("dash", tmp_path)
    assert device.apply(path, "--root", tmp_path / "device").returncode == 0
    (tmp_path / "device" / "slots" / "detector").rename(tmp_path / "device" / "slots" / "moved")
    completed = device.apply(path, "--root", tmp_path / "device", "--rollback")
    assert "nothing is rolled back" in completed.stderr
    assert not (tmp_path / "device" / "slots" / "detector").exists()
