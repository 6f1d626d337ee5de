"""Every named state of a device, interrupted: killed, without power once and at every boot, and with a full disk.

CI runs every 24th case, `make cuts` and `make nightly` all of them. docs/device.md has the table of the states.
TOOLCHAIN_CUTS_SEED decides where the power fails at each boot, and what another program has synced until then.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import bundles, cuts, device_states, disks, halts, updates
from tests.support.applications import Place
from tests.support.cuts import Row
from tests.support.device_states import SLOT, STATES, WORKS, Device, State
from tests.support.disks import Disk
from tests.support.halts import Halt, Halted
from tests.support.nightly import all_but_every
from tests.support.paths import ROOT
from tests.support.slots import folder_of
from toolchain.device.lock import Owner

BOOTS = int(os.environ.get("TOOLCHAIN_BOOTS", "2"))
"""How many boots of a device that loses its power at each of them are tried; at each of them it is cut twice."""
HALF = 0.5
_STEP = 24
_MIB = 48
_FEW_FILES = ("-N", "1024", "-m", "0")
_AT_BOOT = tuple(state.halt for state in STATES if state.work == "recovery")
_TRIALS = {"trial", "roll-back with a trial", "update with a trial"}
_LEFTOVERS = (".new-*", ".trash*", ".current-*", ".trial-new")
_OLD_FILES = ("slots", "floors", "libraries", "unchecked", "servers", "recover")  # which the first stores did not have


@dataclass
class Rig:
    """A device whose disk can be cut, as it was before each work, in an image for each."""

    disk: Disk
    device: Device
    digests: dict[str, str | None]
    images: dict[str, Path]
    folder: Path
    row: Row = field(default_factory=lambda: Row("", ""))  # of the case that runs
    stream: random.Random = field(default_factory=lambda: cuts.stream(""))

    @property
    def place(self) -> Place:
        return Place(self.device.place, self.device.root)

    def prepare(self, state: State, row: Row) -> None:
        """Have the device be as it is before the work."""
        self.row, self.stream = row, cuts.stream(f"{state.work}: {state.name}, {row.fault}")
        name = {"removal": "slot", "recovery": "trial", "migration": "migration"}.get(state.work, "device")
        shutil.copyfile(self.images[name], self.disk.image)

    @contextlib.contextmanager
    def at(self, state: State, halt: Halt | None = None) -> Iterator[Halted]:
        """Start the work of a state, which stands still there or elsewhere; end it, and the application, afterwards."""
        folder = self.folder / f"halt-{len(list(self.folder.glob('halt-*.log')))}"
        work = WORKS[state.work]
        name = f"{state.release} with" if state.work == "update with a trial" else state.release
        with halts.started(work, self.device, name, halt=halt or state.halt, folder=folder) as started:
            yield started

    def boot(self) -> None:
        """Start the application as its unit does."""
        script = self.device.root / "recover"
        if script.exists():
            subprocess.run(["sh", script], check=False, capture_output=True, timeout=60)
        subprocess.run(["sh", "-c", self.place.restart], check=False, capture_output=True, timeout=60)

    def before(self, state: State) -> str | None:
        return None if state.work == "slot" else self.digests["old"]

    def after(self, state: State) -> str | None:
        return self.digests[state.release]

    def may_run(self, state: State) -> set[str | None]:
        return {
            "old": {self.before(state)},
            "new": {self.after(state)},
            "either": {self.before(state), self.after(state)},
        }[state.runs]

    def check(self, state: State, allowed: set[str | None]) -> None:
        """Check the release of a device that has started, and that nothing else changed."""
        root = self.device.root
        folder = state.folder(root)
        runs = bundles.whole_release(folder)
        assert runs in allowed
        self.row.ran(new=runs != self.before(state))
        if state.slot:
            assert bundles.whole_release(root) == self.digests["old"]
        assert not (folder / "trial").exists()
        if release := bundles.whole_release(root):
            assert self.place.runs(release, 10)

    def finish(self, state: State) -> None:
        """Do the work again, or another one, and look for leftovers."""
        root = self.device.root
        if state.work == "removal" and folder_of(root, SLOT).exists():
            device_states.remove_slot(self.device, "")
            assert not folder_of(root, SLOT).exists()
        if state.work.startswith("update"):
            completed = updates.Device().apply(self.device.updates["new"], "--root", root)
            assert completed.returncode == 0, completed.stderr
        else:
            device_states.deploy(self.device, "new", slot=state.slot)
        assert bundles.whole_release(state.folder(root)) == self.digests["new"]
        assert [path for pattern in _LEFTOVERS for path in root.rglob(pattern)] == []
        assert list((root / "blobs" / "partial").iterdir()) == list((root / "run").iterdir()) == []

    def lose_power(self) -> None:
        self.row.cuts += 1
        self.disk.cut(committed=self.stream.random() < HALF)
        self.place.end()


@pytest.fixture(scope="module")
def rig(tiny, program, tmp_path_factory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("states")
    disk = disks.cuttable(folder, _MIB, _FEW_FILES)
    releases = {
        name: bundles.reweighted(tiny, folder / name, seed) for seed, name in enumerate(("older", "old", "new"))
    }
    releases["mute"] = bundles.variant(releases["new"], folder / "mute", {}, name="mute")
    root = disk.point / "device"
    application = Place(folder / "application", root).put()
    device = Device(root, application.folder, {name: release.folder for name, release in releases.items()}, {})
    for name, run in (("new", None), ("new with", device.application)):
        device.updates[name] = updates.written(releases["new"], program, folder / f"{name}.run", run=run).path
    digests = {**{name: release.digest for name, release in releases.items()}, "none": None}
    rig = Rig(disk, device, digests, {}, folder)
    _make_images(rig)
    yield rig
    rig.place.end()


def _make_images(rig: Rig) -> None:
    disk, device, root = rig.disk, rig.device, rig.device.root

    def keep(name: str) -> None:
        rig.images[name] = shutil.copyfile(disk.image, rig.folder / f"{name}.img")

    with disk.mounted():
        for name in ("older", "old"):
            device_states.deploy(device, name)
        connected = device.connected()
        with connected.store.lock(Owner("a test", "recovery")):
            connected.store.releases.put_recovery()
    keep("device")
    with disk.mounted():
        device_states.deploy(device, "old", slot=SLOT)
    keep("slot")
    shutil.copyfile(rig.images["device"], disk.image)
    on_trial = next(state for state in STATES if state.name == "on trial")
    with disk.mounted(), rig.at(on_trial) as work:
        assert work.reached()
        work.kill()
        subprocess.run(["sync", "-f", root], check=True)
        assert (root / "trial").exists()
    keep("trial")
    shutil.copyfile(rig.images["device"], disk.image)
    with disk.mounted():
        for name in _OLD_FILES:
            path = root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        (root / "lock").write_text("idle 1234 1700000000 me@host\tdeploy\t\t\n")
    keep("migration")


def killed(rig: Rig, state: State) -> None:
    """Everything that works on it is killed; the application is started again."""
    with rig.disk.mounted():
        with rig.at(state) as work:
            assert work.reached()
            work.kill()
        _start_and_finish(rig, state, rig.may_run(state))


def cut(rig: Rig, state: State) -> None:
    """The power fails once."""
    _cut_at(rig, state, state.halt)
    with rig.disk.mounted():
        _start_and_finish(rig, state, rig.may_run(state))


def cut_at_every_boot(rig: Rig, state: State) -> None:
    """The power fails at every boot: while the release is taken back, and while somebody does the work again."""
    _cut_at(rig, state, state.halt)
    recovery, allowed = next(state for state in STATES if state.work == "recovery"), rig.may_run(state)
    for _boot in range(BOOTS):
        _cut_at(rig, recovery, rig.stream.choice(_AT_BOOT), boot=True)
        with rig.disk.mounted():
            rig.boot()
            rig.check(state, allowed)
            rig.place.end()
        # Another attempt uses what is on the disk already, so it may not pass this step again, and comes to its end.
        if not _cut_at(rig, state, state.halt):
            allowed = allowed | {rig.after(state)}
    with rig.disk.mounted():
        _start_and_finish(rig, state, allowed)


def _cut_at(rig: Rig, state: State, halt: Halt, *, boot: bool = False) -> bool:
    """Cut the power at a step; return whether the work passed it, or ended before the cut."""
    with rig.disk.mounted(), rig.at(state, halt) as work:
        reached = work.reached()
        is_over = boot or state.work == "recovery"  # it takes a release back only once
        assert reached or is_over or bundles.whole_release(state.folder(rig.device.root)) == rig.after(state)
        rig.lose_power()
        work.kill()
        return reached


def full(rig: Rig, state: State, *, of_files: bool = False) -> None:
    """Something else fills the disk there; the device starts, and then there is space again."""
    with rig.disk.mounted():
        with rig.at(state) as work:
            assert work.reached()
            with rig.disk.full(of_files=of_files):
                code = work.go_on()
                allowed = rig.may_run(state) | ({rig.after(state)} if code == 0 else set())
                if state.work == "roll-out":  # which goes back, and fails
                    allowed |= {rig.before(state)}
                if state.work in _TRIALS:
                    assert rig.place.runs(bundles.whole_release(rig.device.root), 10)
                rig.place.end()
                rig.boot()
                rig.check(state, allowed)
        rig.place.end()
        _start_and_finish(rig, state, allowed)


def no_files(rig: Rig, state: State) -> None:
    """The same, and the file system has no room for another file, however small."""
    full(rig, state, of_files=True)


def _start_and_finish(rig: Rig, state: State, allowed: set[str | None]) -> None:
    rig.boot()
    rig.check(state, allowed)
    rig.finish(state)
    rig.place.end()


FAULTS: dict[str, Callable[[Rig, State], None]] = {
    "killed": killed,
    "power cut": cut,
    "power cut at every boot": cut_at_every_boot,
    "disk full": full,
    "no more files": no_files,
}
CASES = [(state, fault) for state in STATES for fault in FAULTS]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("state", "fault"),
    all_but_every(_STEP, CASES),
    ids=lambda value: value if isinstance(value, str) else f"{value.work}: {value.name}",
)
def test_a_device_that_is_interrupted_runs_a_whole_release(state, fault, rig):
    with cuts.case(state.work, fault) as row:
        rig.prepare(state, row)
        try:
            FAULTS[fault](rig, state)
        finally:
            rig.place.end()


def test_the_manual_lists_the_states():
    rows = _table("| work | state |")
    assert [(work, name, runs) for work, name, _, runs, _ in rows] == [
        (state.work, state.name, state.runs) for state in STATES
    ]
    text = " ".join((ROOT / "docs" / "device.md").read_text().split())
    assert f"every {_STEP}th of the {len(CASES)} cases" in text


def test_the_manual_lists_the_faults_that_each_state_is_tried_with():
    rows = _table("| fault | what happens |")
    assert [fault for fault, _ in rows] == list(FAULTS)
    assert set(CASES) == set(itertools.product(STATES, FAULTS))


def _table(head: str) -> list[list[str]]:
    text = (ROOT / "docs" / "device.md").read_text()
    lines = text[text.index(head) :].partition("\n\n")[0].splitlines()
    return [line.strip("| ").split(" | ") for line in lines[2:]]
