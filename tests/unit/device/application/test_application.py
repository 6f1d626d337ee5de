"""Releases that are tried with an application: a real process that a command restarts.

tests/integration/test_application.py has systemd, SSH, kills and power cuts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support import stores
from tests.support.applications import Place
from tests.support.stores import holder, locked, soon
from toolchain.device import application, scripts
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.devices import Application
from toolchain.errors import BusyError, DeviceError, VerificationError
from toolchain.shell import LocalShell


@pytest.fixture
def place(tmp_path, root):
    made = Place(tmp_path / "application", root).put()
    yield made
    made.end()


@pytest.fixture
def run(place):
    return Application(restart=place.restart, health=place.health, within="2s")


def tell(_line):
    """Nobody listens."""


def tried(store, tmp_path, name, run):
    digest = stores.installed(store, tmp_path, name)
    return digest, application.activate(store, digest, run, tell)


def test_an_application_follows_a_release(store, tmp_path, run, place):
    said = []
    with locked(store):
        first, (changed, started) = tried(store, tmp_path, "first", run)
        assert (changed, started.restarted, started.name) == (True, True, place.restart)
        assert 0 < started.seconds < 10
        pid, digest = place.running()
        assert digest == first
        second = stores.installed(store, tmp_path, "second")
        assert application.activate(store, second, run, said.append)[0]
    assert place.running()[1] == second
    assert place.running()[0] != pid
    assert said == [f"restarting {place.restart}, and waiting up to 2 s until it is healthy"]
    found = application.trial(store)
    assert (found.state, found.digest, found.new, found.old, found.seconds) == ("healthy", second, 2, 1, None)
    assert application.state(store, run) == application.State(place.restart, healthy=True, unit="")
    assert not (place.root / "trial").exists()


def test_the_same_release_again_leaves_a_well_application_alone_and_starts_one_that_ended(store, tmp_path, run, place):
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        pid, _ = place.running()
        changed, started = application.activate(store, first, run, tell)
        assert (changed, started.restarted, place.running()[0]) == (False, False, pid)
        place.end()
        assert soon(lambda: place.running() == (0, ""))
        changed, started = application.activate(store, first, run, tell)
        assert (changed, started.restarted, place.running()[1]) == (False, True, first)


def test_a_release_on_which_it_is_not_well_is_taken_back(store, tmp_path, run, place):
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        with pytest.raises(VerificationError) as caught:
            tried(store, tmp_path, "mute", run)
        assert store.releases.current().digest == first
    assert place.running()[1] == first
    assert caught.value.message.endswith("generation 1 is current again, and the application is healthy there")
    assert "the model is not loaded" in caught.value.details
    assert run.health in caught.value.hint
    assert application.trial(store).state == "failed"
    assert not (place.root / "trial").exists()
    with locked(store):
        tried(store, tmp_path, "third", run)
    assert store.releases.current().number == 2


def test_the_first_release_ever_is_taken_back_too(store, tmp_path, run, place):
    with locked(store):
        with pytest.raises(VerificationError, match="no previous release, so the device has none now"):
            tried(store, tmp_path, "mute", run)
        assert store.releases.current() is None
    assert soon(lambda: place.running() == (0, ""))


def test_a_restart_that_fails_is_told_with_its_words(store, tmp_path, run, place):
    broken = Application(restart="echo no such file >&2; false", health="true")
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        with pytest.raises(VerificationError, match="NOT HEALTHY there either") as caught:
            tried(store, tmp_path, "second", broken)
        assert "no such file" in caught.value.details
        assert store.releases.current().digest == first


def test_a_command_that_hangs_is_ended(store, tmp_path, run, place):
    hanging = Application(restart=place.restart, health="sleep 1000", within="1s")
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        with pytest.raises(VerificationError):
            tried(store, tmp_path, "second", hanging)
        assert store.releases.current().digest == first


def test_words_of_an_application_cannot_steer_the_result(store, tmp_path, run, place):
    evil = Application(
        restart=place.restart,
        health=r"printf '\033[2Jhealthy\nhealthy\nend\nback 7 well\013back 7 well\302\205healthy\n'; false",
        within="1s",
    )
    with locked(store), pytest.raises(VerificationError) as caught:
        tried(store, tmp_path, "first", evil)
    assert "there was no previous release" in caught.value.message
    assert store.releases.current() is None


def test_a_health_command_that_writes_without_an_end_does_not_fill_the_disk(store, tmp_path, run, place):
    """It is ended before, and what it wrote last is told."""
    endless = Application(restart=place.restart, health="yes a-b-c", within="2s")
    with locked(store):
        largest = 0

        def look():
            nonlocal largest
            while not ended.wait(0.05):
                with contextlib.suppress(OSError):
                    largest = max(largest, (place.root / "run" / "words").stat().st_size)

        ended = threading.Event()
        looking = threading.Thread(target=look)
        looking.start()
        with pytest.raises(VerificationError, match="did not become healthy") as caught:
            tried(store, tmp_path, "first", endless)
        ended.set()
        looking.join()
    assert 0 < largest <= 64 << 20
    assert "a-b-c" in caught.value.details
    assert len(caught.value.details) < 1000


def test_roll_back_restarts_the_application_too(store, tmp_path, run, place):
    with locked(store):
        with pytest.raises(DeviceError, match="no earlier release"):
            application.roll_back(store, run, tell)
        first, _ = tried(store, tmp_path, "first", run)
        tried(store, tmp_path, "second", run)
        application.roll_back(store, run, tell)
        assert (store.releases.current().digest, place.running()[1]) == (first, first)


def test_roll_back_to_one_on_which_it_is_not_well_changes_nothing(store, tmp_path, run, place):
    with locked(store):
        stores.release(store, tmp_path, "mute")
        second, _ = tried(store, tmp_path, "second", run)
        with pytest.raises(VerificationError, match="generation 2 is current again"):
            application.roll_back(store, run, tell)
        assert (store.releases.current().digest, place.running()[1]) == (second, second)


CLIENT = """from toolchain.device import application
from toolchain.devices import Application
run = Application(restart={restart!r}, health={health!r}, within={within!r})
application.activate(store, {digest!r}, run, lambda line: None)
"""


def client(place, digest, within="2s"):
    """Another process that tries a release."""
    code = CLIENT.format(restart=place.restart, health=place.health, within=within, digest=digest)
    return stores.client(place.root, f"exec({code!r})")


def test_a_dead_client_changes_nothing(store, tmp_path, run, place):
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        mute = stores.installed(store, tmp_path, "mute")
        good = stores.installed(store, tmp_path, "slow")
    for digest, within, outcome in ((mute, "2s", first), (good, "30s", good)):
        with client(place, digest, within) as other:
            assert soon((place.root / "trial").exists, 20)
            other.kill()
            other.wait()
            with pytest.raises(BusyError, match="the other one"), store.lock(Owner("tester", "tests")):
                pass
            with pytest.raises(BusyError, match="the other one"):
                store.check_free()
        assert soon(lambda: not (place.root / "trial").exists(), 30)
        assert soon(lambda wanted=outcome: store.releases.current().digest == wanted == place.running()[1], 30)
        assert application.trial(store).state in {"healthy", "failed"}
        assert stores.lock_free(place.root)
    with locked(store):
        assert not store.lease.on_trial


def killed_in_trial(store, tmp_path, place, run):
    """Leave a release on trial, as a power cut would: whoever tried it is gone, and the application with it."""
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        mute = stores.installed(store, tmp_path, "mute")
    with client(place, mute, "60s") as other:
        assert soon((place.root / "trial").exists, 20)
        assert place.runs(mute, 20)
        other.kill()
        job = holder(place.root)
        os.kill(job, signal.SIGKILL)
        other.wait()
    place.end()
    assert stores.lock_free(place.root)
    assert application.trial(store).state == "open"
    assert application.trial(store).seconds >= 0
    return first, mute


def test_a_trial_that_is_killed_is_taken_back_by_its_client(store, tmp_path, run, place):
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        mute = stores.installed(store, tmp_path, "mute")

        def kill():
            assert place.runs(mute, 20)
            os.kill(holder(place.root), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        slow = Application(restart=run.restart, health=run.health, within="60s")
        with pytest.raises(DeviceError, match="ended early"):
            application.activate(store, mute, slow, tell)
        killer.join()
        assert store.releases.current().digest == first
        assert place.runs(first, 10)


@pytest.mark.parametrize(
    ("scope", "uid", "words"),
    [
        ("user", 1000, "systemctl --user {} app@1.service"),
        ("system", 1000, "sudo -n systemctl {} app@1.service"),
        ("system", 0, "systemctl {} app@1.service"),
    ],
)
def test_how_a_unit_is_restarted_and_stopped(scope, uid, words, tmp_path):
    for name, text in {"id": f"echo {uid}", "sudo": 'echo "sudo $*"', "systemctl": 'echo "systemctl $*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    commands = application._commands(Application(unit="app@1.service", scope=scope))
    for command, verbs in zip(commands, (("reset-failed", "restart"), ("stop",)), strict=True):
        done = subprocess.run(
            ["/bin/sh", "-c", command], check=True, env={"PATH": str(tmp_path)}, capture_output=True, text=True
        )
        assert done.stdout.splitlines() == [words.format(verb) for verb in verbs]


def test_the_next_command_takes_back_what_nobody_finishes(store, tmp_path, run, place):
    first, _ = killed_in_trial(store, tmp_path, place, run)
    said = []
    store = Store(LocalShell(), str(place.root), said.append)
    with locked(store):
        assert store.releases.current().digest == first
    assert place.runs(first, 10)
    assert said == [
        "generation 2 on local was on trial, and the command that tried it has ended: generation 1 is current again"
    ]
    assert application.trial(store).state == "interrupted"
    with locked(store):
        tried(store, tmp_path, "second", run)
    assert said[1:] == []


def test_at_its_next_start_the_application_takes_it_back_itself(store, tmp_path, run, place):
    first, mute = killed_in_trial(store, tmp_path, place, run)
    recover = ["/bin/sh", str(place.root / "recover")]
    assert (place.root / "recover").read_text() == scripts.AT_START
    with (place.root / "lock").open("ab") as held:  # somebody is at work: it is theirs
        subprocess.run(["flock", str(held.fileno())], pass_fds=[held.fileno()], check=True)
        subprocess.run(recover, check=True)
        assert store.releases.current().digest == mute
    done = subprocess.run(recover, check=True, text=True, capture_output=True)
    assert done.stdout == "generation 2 was on trial; generation 1 is current again\n"
    assert store.releases.current().digest == first
    assert application.trial(store).state == "interrupted"
    assert subprocess.run(recover, check=True, capture_output=True).stdout == b""
    store.check_free()


def test_a_recovery_that_cannot_restart_says_so(store, tmp_path, run, place):
    killed_in_trial(store, tmp_path, place, run)
    marker = place.root / "trial"
    marker.write_text(marker.read_text().splitlines()[0] + "\necho no such unit; false\n")
    said = []
    with locked(Store(LocalShell(), str(place.root), said.append)):
        pass
    assert said[1] == "the application there could not be restarted: no such unit"


@pytest.mark.parametrize("text", ["", "2 1 0\n", "2 1"])
def test_what_is_left_of_a_trial_is_no_trial(store, text):
    said = []
    store = Store(LocalShell(), store.root, said.append)
    with locked(store):
        pass
    marker = Path(store.root, "trial")
    marker.write_text(text)
    with locked(store):
        assert not marker.exists()
    assert said == []


def test_the_script_for_the_start_is_mended(store, tmp_path, run, place):
    with locked(store):
        tried(store, tmp_path, "first", run)
        (place.root / "recover").write_text("something else")
        tried(store, tmp_path, "second", run)
    assert (place.root / "recover").read_text() == scripts.AT_START


def test_a_device_without_the_tools_is_told_before(store, monkeypatch):
    monkeypatch.setattr(application, "TOOLS", "setsid no-such-tool")
    with pytest.raises(DeviceError, match="lacks no-such-tool"):
        application.check_tools(store)


def test_a_device_without_trials_has_none(store):
    store.facts()
    assert application.trial(store) is None


def test_a_full_disk_does_not_keep_the_start_from_taking_a_release_back(tmp_path):
    """Nothing can be written and no link made, and yet the application must not start on what has not proved itself."""
    (tmp_path / "generations").mkdir()
    for number, name in enumerate(("old", "new"), 1):
        (tmp_path / "releases" / name).mkdir(parents=True)
        (tmp_path / "generations" / str(number)).symlink_to(f"../releases/{name}")
    (tmp_path / "current").symlink_to("generations/2")
    (tmp_path / ".current-old").symlink_to("generations/1")
    (tmp_path / "trial").write_text("2 1 5\ntrue\n")
    for name in ("lock", "trial.log"):
        (tmp_path / name).symlink_to("/dev/full")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ln").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "ln").chmod(0o755)
    (tmp_path / "recover").write_text(scripts.AT_START)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", tmp_path / "recover"], env=environment, check=False, capture_output=True, timeout=60)
    assert (done.returncode, (tmp_path / "current").resolve().name) == (0, "old"), done.stderr
    assert not (tmp_path / "trial").exists()
