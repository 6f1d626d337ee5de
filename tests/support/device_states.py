"""The named states of a device's store that docs/device.md lists, how a test gets there, and what does the work.

Each work is a function that another process calls; see `halts`. Releases are named by what they are in the tests:
`older` and `old` are on the device, `old` is current, and the work brings `new`, or `mute`, whose application is never
healthy.
"""

from __future__ import annotations

import queue
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support import deploys
from tests.support.applications import Place
from tests.support.halts import Halt
from tests.support.slots import folder_of
from toolchain import board, bundle, devices
from toolchain.device import deploy as product
from toolchain.device.connected import ConnectedDevice
from toolchain.device.deploy import Settings
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.native import programs
from toolchain.pipeline.rollout.threads import Visit
from toolchain.pipeline.rollout.work import DeviceWork
from toolchain.shell import LocalShell, SshOptions

KEEP = 2
SLOT = "detector"
WITHIN_S = 2


@dataclass(frozen=True)
class Device:
    """A store, the application on it, and the releases and updates for it; all of it can be sent to another process.

    Attributes:
        root: The store.
        place: Its application.
        releases: Folders of bundles by name.
        updates: Updates from a file by the names of the releases; their applications are that of `place`, if any.
    """

    root: Path
    place: Path
    releases: dict[str, Path]
    updates: dict[str, Path]

    @property
    def application(self) -> devices.Application:
        place = Place(self.place, self.root)
        return devices.Application(restart=place.restart, health=place.health, within=f"{WITHIN_S}s")

    def connected(self, *, application: bool = False, slot: str = "") -> ConnectedDevice:
        shell = LocalShell()
        run = self.application if application else None
        return deploys.connected(shell, Store(shell, str(self.root), slot=slot), keep=KEEP, application=run)


def deploy(device: Device, name: str, *, application: bool = False, slot: str = "") -> None:
    release = bundle.load(device.releases[name])
    program = programs.build(programs.RUNNER, release.manifest.triple, release.manifest.machine)
    run = device.application if application else None
    store = Store(LocalShell(), str(device.root), slot=slot)
    deploys.deploy(release, program, LocalShell(), store, keep=KEEP, application=run)


def deploy_with_application(device: Device, name: str) -> None:
    deploy(device, name, application=True)


def deploy_to_slot(device: Device, name: str) -> None:
    deploy(device, name, slot=SLOT)


def roll_back(device: Device, _name: str, *, application: bool = False) -> None:
    connected = device.connected(application=application)
    with connected.store.lock(Owner("a test", "rollback")):
        product.roll_back(connected, lambda _line: None)


def roll_back_with_application(device: Device, name: str) -> None:
    roll_back(device, name, application=True)


def remove_slot(device: Device, _name: str) -> None:
    connected = device.connected(slot=SLOT)
    with connected.store.lock(Owner("a test", "remove")):
        product.remove(connected, lambda _line: None)


def update(device: Device, name: str) -> None:
    options = ["--root", str(device.root), "--keep", str(KEEP)]
    raise SystemExit(subprocess.run(["sh", str(device.updates[name]), *options], check=False).returncode)


class _Saved(Visit):
    """A device of a roll-out whose state is saved at once."""

    def __init__(self, before: str) -> None:
        super().__init__("it", queue.SimpleQueue())
        self._given = before

    def report_release(self, digest: str) -> str:
        return self._given or digest


def roll_out(device: Device, name: str, before: str = "") -> None:
    """Do what a roll-out does on a device that turns out to be too slow.

    Args:
        device: The device.
        name: The release that is rolled out.
        before: Digest of the release from before the roll-out, if that is resumed.
    """
    release = bundle.load(device.releases[name])
    entry = devices.Device("local", "local", root=str(device.root))
    local = replace(board.load("local").resolved(), keep=KEEP)
    settings = Settings(budget_s=0.01, threads=1)
    work = DeviceWork(release, local, {"it": entry}, SshOptions(), settings, latency_ms=1e-9)
    work.deploy(_Saved(before))


def recover(device: Device, _name: str) -> None:
    """Do what the application's unit does before it starts the application."""
    script = device.root / "recover"
    if script.exists():
        raise SystemExit(subprocess.run(["sh", script], check=False).returncode)


WORKS = {
    "deploy": deploy,
    "trial": deploy_with_application,
    "roll-back": roll_back,
    "roll-back with a trial": roll_back_with_application,
    "roll-out": roll_out,
    "recovery": recover,
    "update": update,
    "update with a trial": update,
    "slot": deploy_to_slot,
    "removal": remove_slot,
    "migration": deploy,
}
_SWITCH = ("mv", "-T .current-new current")
_UNDO = ("mv", "-T .current-old current")
_AGAIN = ("timeout", "-s KILL * sh -c sh */restart *")


@dataclass(frozen=True)
class State:
    """One state.

    Attributes:
        work: What is going on, a key of `WORKS`.
        name: Its name in docs/device.md.
        halt: Where the work stands still in that state.
        runs: The release that the device runs if it is interrupted there, after the start of its application: `old`,
            `new`, or `either` (the switch is on the disk, or not).
        release: The release that the work brings.
    """

    work: str
    name: str
    halt: Halt
    runs: str = "old"
    release: str = "new"

    @property
    def slot(self) -> str:
        return SLOT if self.work in {"slot", "removal"} else ""

    def folder(self, root: Path) -> Path:
        return folder_of(root, self.slot)


STATES = (
    State("deploy", "uploading", Halt("cat", "* > */blobs/partial/*")),
    State("deploy", "uploaded", Halt("chmod", "444 *")),
    State("deploy", "publishing", Halt("mv", "* ../../sha256/*", after=True)),
    State("deploy", "assembling", Halt("mv", "releases/.new-* releases/*")),
    State("deploy", "installed", Halt("mv", "releases/.new-* releases/*", after=True)),
    State("deploy", "checked", Halt("ln", "-sfn ../releases/* generations/*")),
    State("deploy", "numbered", Halt("ln", "-sfn ../releases/* generations/*", after=True)),
    State("deploy", "switching", Halt(*_SWITCH)),
    State("deploy", "switched", Halt(*_SWITCH, after=True), "either"),
    State("deploy", "removing releases", Halt("mv", "releases/* .trash-release", after=True), "new"),
    State("deploy", "removing blobs", Halt("find", "blobs/sha256 *"), "new"),
    State("trial", "marking", Halt("mv", "-f .trial-new trial")),
    State("trial", "marked", Halt("mv", "-f .trial-new trial", after=True)),
    State("trial", "on trial", Halt(*_SWITCH, after=True)),
    State("trial", "restarting", Halt(*_AGAIN)),
    State("trial", "waiting", Halt("timeout", "-s KILL */health *")),
    State("trial", "healthy", Halt("rm", "-f trial *")),
    State("trial", "proved", Halt("rm", "-f trial *", after=True), "either"),
    State("trial", "unhealthy", Halt(*_UNDO), release="mute"),
    State("trial", "taken back", Halt(*_UNDO, after=True), release="mute"),
    State("trial", "restarting the old", Halt(*_AGAIN, count=2), release="mute"),
    State("trial", "ended", Halt("rm", "-f trial *", after=True), release="mute"),
    State("roll-back", "going back", Halt(*_SWITCH), release="older"),
    State("roll-back", "gone back", Halt(*_SWITCH, after=True), "either", "older"),
    State("roll-out", "measuring", Halt("cut", "-d * /proc/loadavg"), "new"),
    State("roll-out", "going back", Halt(*_SWITCH, count=2), "new"),
    State("roll-out", "gone back", Halt(*_SWITCH, after=True, count=2), "either"),
    State("roll-back with a trial", "back on trial", Halt(*_SWITCH, after=True), release="older"),
    State("recovery", "found", Halt("readlink", ".current-old")),
    State("recovery", "returning", Halt(*_UNDO)),
    State("recovery", "returned", Halt(*_UNDO, after=True)),
    State("recovery", "closing", Halt("rm", "-f trial *")),
    State("recovery", "closed", Halt("rm", "-f trial *", after=True)),
    State("update", "unpacking", Halt("head", "-c *", count=2)),
    State("update", "unpacked", Halt("chmod", "444 *")),
    State("update", "assembled", Halt("mv", "releases/.new-* releases/*", after=True)),
    State("update", "switching", Halt(*_SWITCH)),
    State("update", "switched", Halt(*_SWITCH, after=True), "either"),
    State("update", "removing blobs", Halt("find", "blobs/sha256 *"), "new"),
    State("update with a trial", "on trial", Halt(*_SWITCH, after=True)),
    State("slot", "making the slot", Halt("ln", "-s ../../servers *")),
    State("slot", "slot made", Halt("rm", "-rf releases/.new-* *")),
    State("slot", "switching", Halt(*_SWITCH)),
    State("slot", "switched", Halt(*_SWITCH, after=True), "either"),
    State("removal", "removing", Halt("mv", "slots/* .trash-slot"), release="none"),
    State("removal", "removed", Halt("mv", "slots/* .trash-slot", after=True), "either", "none"),
    State("migration", "adding folders", Halt("mkdir", "-p blobs/partial *")),
    State("migration", "folders added", Halt("mkdir", "-p blobs/partial *", after=True)),
    State("migration", "installed", Halt("mv", "releases/.new-* releases/*", after=True)),
    State("migration", "switched", Halt(*_SWITCH, after=True), "either"),
)
