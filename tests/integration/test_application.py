"""An application under a real systemd: it follows a deploy, and comes back on the old release whatever is killed.

TOOLCHAIN_TRIALS is the number of releases on which it is not well, 4 by default; 8 are each kind ended in each way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support import bundles, deploy_client, disks, sshd, stores, systemd, userlands
from tests.support.applications import Place, shipped_unit
from tests.support.commands import toolchain
from tests.support.paths import ROOT
from tests.support.stores import holder, locked, soon
from toolchain.device import application
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.devices import Application
from toolchain.errors import BusyError, DeviceError, VerificationError
from toolchain.shell import LocalShell, SshOptions, open_shell

TRIALS = int(os.environ.get("TOOLCHAIN_TRIALS", "4"))
WAYS = ("nobody", "client", "power", "trial")
KINDS = ("mute", "mortal")
LIMIT_S = 60.0
UNIT = "detector.service"

# A client that tries one release, as `deploy` does once it is installed.
CLIENT = """
import sys
from toolchain.device import application
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.devices import Application
from toolchain.shell import LocalShell
root, digest, unit, health, within = sys.argv[1:]
store = Store(LocalShell(), root)
with store.lock(Owner("a client", "deploy")):
    print("held", flush=True)
    application.activate(store, digest, Application(unit=unit, health=health, within=within), lambda line: None)
"""


@pytest.fixture
def manager(tmp_path, monkeypatch):
    with systemd.managing(tmp_path / "systemd") as running:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(running.runtime))
        yield running


@pytest.fixture
def place(manager, tmp_path):
    application_place = Place(tmp_path / "application", tmp_path / "device").put()
    manager.unit(UNIT, shipped_unit(application_place))
    manager.boot()
    return application_place


def tell(_line):
    """Nobody listens."""


def test_a_unit_follows_releases(place, manager, tmp_path):
    store = Store(LocalShell(), str(place.root))
    run = Application(unit=UNIT, health=place.health, within="20s")
    with locked(store):
        first = stores.installed(store, tmp_path, "first")
        assert application.activate(store, first, run, tell)[1].restarted
        assert application.state(store, run) == application.State(UNIT, healthy=True, unit="active (running)")
        for kind in ("mortal", "mute"):
            bad = stores.installed(store, tmp_path, kind)
            brief = Application(unit=UNIT, health=place.health, within="4s")
            with pytest.raises(
                VerificationError, match="generation 1 is current again, and the application is healthy"
            ):
                application.activate(store, bad, brief, tell)
            assert place.runs(first, 10)
        second = stores.installed(store, tmp_path, "second")
        application.activate(store, second, run, tell)
        assert place.running()[1] == second
        assert application.roll_back(store, run, tell)[0].digest == first
        assert place.running()[1] == first
    manager.ctl("stop", UNIT)
    assert application.state(store, run) == application.State(UNIT, healthy=False, unit="inactive (dead)")


def test_a_unit_without_a_health_command_must_stay_active(place, tmp_path):
    store = Store(LocalShell(), str(place.root))
    run = Application(unit=UNIT, within="3s")
    with locked(store):
        first = stores.installed(store, tmp_path, "first")
        _, started = application.activate(store, first, run, tell)
        assert started.seconds >= 2  # all the time that there is
        for kind in ("mortal", "brief"):
            with pytest.raises(VerificationError, match="and the application is healthy there") as caught:
                application.activate(store, stores.installed(store, tmp_path, kind), run, tell)
            assert UNIT in caught.value.details
            assert place.runs(first, 10)


def test_the_first_release_ever_leaves_nothing_running(place, manager, tmp_path):
    store = Store(LocalShell(), str(place.root))
    run = Application(unit=UNIT, health=place.health, within="2s")
    with locked(store), pytest.raises(VerificationError, match="the device has none now"):
        application.activate(store, stores.installed(store, tmp_path, "mute"), run, tell)
    assert store.releases.current() is None
    assert manager.ctl("is-active", UNIT).stdout == "inactive\n"


def test_the_commands_of_a_device_with_an_application(place, manager, tmp_path, tiny_for_ssh, program):
    """Over a real SSH server: deploy, status, a release on which it is not well, releases, rollback."""
    other = bundles.reweighted(tiny_for_ssh, tmp_path / "other", seed=3)
    bad = bundles.reweighted(tiny_for_ssh, tmp_path / "bad", seed=4)
    health = f"{place.health} && ! grep -q {bad.digest} {place.folder}/running"
    with sshd.running(tmp_path / "sshd", options=f"SetEnv XDG_RUNTIME_DIR={manager.runtime}") as server:
        lab = tmp_path / "lab.toml"
        lab.write_text(
            f'[desk]\nboard = "x86_64"\nhost = "board"\nroot = "{place.root}"\nssh_config = "{server.config}"\n'
            f'[desk.run]\nunit = "{UNIT}"\nhealth = "{health}"\nwithin = "5s"\n'
        )
        device = ["--board", "x86_64", "--host", "desk", "--devices", lab]
        deploy_client.plain_deploy(tiny_for_ssh, program, place.root)
        outcome = toolchain("deploy", other.folder, *device, "--budget", 0, "--json", "-")
        assert outcome.code == 0, outcome.err
        started = json.loads(outcome.out)["application"]
        assert (started["name"], started["restarted"]) == (UNIT, True)
        assert place.running()[1] == other.digest
        pid, _ = place.running()
        outcome = toolchain("deploy", bad.folder, *device, "--budget", 0)
        assert outcome.code == 5, outcome.err
        assert "generation 2 is current again" in outcome.err
        assert "Active: active (running)" in outcome.err
        assert bundles.whole_release(place.root) == other.digest == place.running()[1]
        assert place.running()[0] != pid
        status = json.loads(toolchain("status", *device, "--json").out)
        assert status["application"] == {"name": UNIT, "healthy": True, "unit": "active (running)"}
        assert (status["trial"]["state"], status["trial"]["digest"]) == ("failed", bad.digest)
        assert "was taken back" in toolchain("status", *device).out
        releases = json.loads(toolchain("status", "--releases", *device, "--json").out)
        assert [item["failed"] for item in releases] == [0, 0, 1]
        outcome = toolchain("rollback", *device)
        assert outcome.code == 0, outcome.err
        assert f"{UNIT} is healthy after" in outcome.out
        assert place.running()[1] == tiny_for_ssh.digest


@pytest.mark.parametrize("tools", [userlands.toybox, userlands.busybox], ids=["toybox", "busybox"])
def test_a_device_without_systemd(tools, tmp_path):
    """Android's tools and shell, or busybox: the application is restarted by a command."""
    place = Place(tmp_path / "application", tmp_path / "device").put()
    run = Application(restart=place.restart, health=place.health, within="30s")
    brief = dataclasses.replace(run, within="2s")
    path = tools(tmp_path / "bin")
    with sshd.running(tmp_path / "sshd", options=f"SetEnv PATH={path} HOME={tmp_path}") as server:
        options = SshOptions(config_file=server.config)
        with open_shell("board", config=options) as shell:
            store = Store(shell, str(place.root))
            application.check_tools(store)
            with locked(store):
                first = stores.installed(store, tmp_path, "first")
                application.activate(store, first, run, tell)
                with pytest.raises(VerificationError, match="generation 1 is current again, and the application is"):
                    application.activate(store, stores.installed(store, tmp_path, "mute"), brief, tell)
                assert place.runs(first, 10)
                second = stores.installed(store, tmp_path, "slow")
                application.activate(store, second, run, tell)
                application.roll_back(store, run, tell)
            assert place.runs(first, 10)
            assert stores.lock_free(place.root), "and what was started does not hold it"
        with open_shell("board", config=options) as shell:
            store = Store(shell, str(place.root))
            with store.lock(Owner.here("a test")) as lease:
                bad = stores.installed(store, tmp_path, "mute-too")
                lease.check()
                thread = threading.Thread(target=_lost, args=(store, bad, brief))
                thread.start()
                assert soon((place.root / "trial").exists, 20)
                shell.close()
                thread.join(30)
        assert stores.lock_free(place.root, 30)
        assert not (place.root / "trial").exists()
        assert (place.root / "current").resolve().name == first
        assert place.runs(first, 10)
    place.end()


def _lost(store: Store, digest: str, run: Application) -> None:
    with pytest.raises(DeviceError) as caught:
        application.activate(store, digest, run, tell)
    assert "continues without this command" in caught.value.hint


class Device:
    """A device whose disk and whose power can be cut, with an application that is well on `old`."""

    def __init__(self, manager, folder: Path) -> None:
        self.manager, self.folder = manager, folder
        self.disk = disks.cuttable(folder)
        self.place = Place(folder / "application", self.disk.point / "device").put()
        self.store = Store(LocalShell(), str(self.place.root))
        manager.unit(UNIT, shipped_unit(self.place))

    @contextlib.contextmanager
    def powered(self):
        """Have it run for a block; then its power fails."""
        with self.disk.mounted():
            self.manager.boot()
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    self.disk.cut()
                self.manager.lose_power()
                (self.place.folder / "running").unlink(missing_ok=True)

    def run(self, within: int) -> Application:
        return Application(unit=UNIT, health=self.place.health, within=f"{within}s")

    @contextlib.contextmanager
    def client(self, digest: str, within: int):
        """Another process that tries a release. It lives on the device, and ends when that loses its power."""
        command = [str(self.place.root), digest, UNIT, self.place.health, f"{within}s"]
        argv = self.manager.inside([sys.executable, "-c", CLIENT, *command])
        quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        with subprocess.Popen(argv, text=True, cwd=ROOT, **quiet) as client:
            try:
                assert client.stdout.readline() == "held\n"
                yield client
            finally:
                client.kill()


def test_what_is_not_well_goes_back_whatever_is_killed(manager, tmp_path, capsys):
    """The client is killed, or the trial on the device, or the power fails, between the switch and the answer."""
    device = Device(manager, tmp_path)
    stream, outcomes, slowest = random.Random("trials"), Counter(), 0.0  # noqa: S311 - a failure comes again
    with device.powered(), locked(device.store):
        old = stores.installed(device.store, tmp_path, "old")
        application.activate(device.store, old, device.run(20), tell)
    for index in range(TRIALS):
        fault_kind, kind = WAYS[index % len(WAYS)], KINDS[(index + index // len(WAYS)) % len(KINDS)]
        seconds, state = _one(device, old, f"{kind}-{index}", fault_kind, stream)
        outcomes[f"{fault_kind}: {state}"] += 1
        slowest = max(slowest, seconds)
    with capsys.disabled():
        counts = ", ".join(f"{count} x {name}" for name, count in sorted(outcomes.items()))
        print(f"\n{TRIALS} of {TRIALS} back, after {slowest:.1f} s at most; killed: {counts}")  # noqa: T201
    assert slowest < LIMIT_S


def _one(device: Device, old: str, name: str, fault_kind: str, stream: random.Random) -> tuple[float, str]:
    """Try a release on which the application is not well; return the seconds until the old one is back, and how."""
    place, store, within = device.place, device.store, 3
    with contextlib.ExitStack() as power:
        power.enter_context(device.powered())
        assert place.runs(old, 20), (device.manager.folder / "log").read_text()[-2000:]
        with locked(store):
            bad = stores.installed(store, device.folder, name)
        with device.client(bad, within) as client:
            assert soon((place.root / "trial").exists, 20)
            if fault_kind != "nobody":
                time.sleep(stream.uniform(0, within))
            start = time.monotonic()
            _break(fault_kind, device, client, power)
            client.wait(60)
        if fault_kind == "power":
            power.enter_context(device.powered())
        with contact(store, 3 * within + 20):
            assert place.runs(old, LIMIT_S)
            seconds = time.monotonic() - start
            trial, state = application.trial(store), application.state(store, device.run(5))
        assert store.releases.current().digest == old
        assert state.healthy
        assert not (place.root / "trial").exists()
        assert trial.digest == bad
        return seconds, trial.state


@contextlib.contextmanager
def contact(store: Store, seconds: float):
    """Take the lock as the next command does; the trial, or the device that takes it back, may have it for a while."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(store))
                break
            except BusyError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)
        yield


def _break(fault_kind: str, device: Device, client: subprocess.Popen[str], power: contextlib.ExitStack) -> None:
    if fault_kind == "client":
        client.kill()
    if fault_kind == "power":
        power.close()
    if fault_kind == "trial":  # what is out of memory, or cleans up sessions, ends the trial too
        job = holder(device.place.root)
        for pid in [job, *sshd.descendants(job)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        client.kill()


def test_after_a_power_cut_a_unit_starts_on_a_release_that_has_proved_itself(manager, tmp_path):
    """Nobody has to come by: what the unit runs before its application takes the release back."""
    device = Device(manager, tmp_path)
    with device.powered(), locked(device.store):
        old = stores.installed(device.store, tmp_path, "old")
        application.activate(device.store, old, device.run(20), tell)
    with device.powered():
        assert device.place.runs(old, 20)
        with locked(device.store):
            bad = stores.installed(device.store, tmp_path, "mute")
        with device.client(bad, 100):
            assert device.place.runs(bad, 20)
            device.disk.cut()
            device.manager.lose_power()
    with device.powered():
        assert device.place.runs(old, 20)
        assert device.store.releases.current().digest == old
        assert application.trial(device.store).state == "interrupted"
