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
def app(tmp_path, root):
    process = Place(tmp_path / "application", root).put()
    yield process
    process.end()


@pytest.fixture
def run(app):
    return Application(restart=app.restart, health=app.health, within="2s")


def tell(_line):
    """Nobody listens."""


def tried(store, tmp_path, name, run):
    digest = stores.installed(store, tmp_path, name)
    return digest, application.activate(store, digest, run, tell)


def test_an_application_follows_a_release(store, tmp_path, run, app):
    messages = []
    with locked(store):
        first, (changed, started) = tried(store, tmp_path, "first", run)
        assert (changed, started.restarted, started.name) == (True, True, app.restart)
        assert 0 < started.seconds < 10
        pid, digest = app.running()
        assert digest == first
        second = stores.installed(store, tmp_path, "second")
        assert application.activate(store, second, run, messages.append)[0]
    assert app.running()[1] == second
    assert app.running()[0] != pid
    assert messages == [f"restarting {app.restart}, and waiting up to 2 s until it is healthy"]
    trial = application.trial(store)
    assert (trial.state, trial.digest, trial.new, trial.old, trial.seconds) == ("healthy", second, 2, 1, None)
    assert application.state(store, run) == application.State(app.restart, healthy=True, unit="")
    assert not (app.root / "trial").exists()


def test_the_same_release_again_leaves_a_well_application_alone_and_starts_one_that_ended(store, tmp_path, run, app):
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        pid, _ = app.running()
        changed, started = application.activate(store, first, run, tell)
        assert (changed, started.restarted, app.running()[0]) == (False, False, pid)
        app.end()
        assert soon(lambda: app.running() == (0, ""))
        changed, started = application.activate(store, first, run, tell)
        assert (changed, started.restarted, app.running()[1]) == (False, True, first)


def test_a_release_on_which_it_is_not_well_is_taken_back(store, tmp_path, run, app):
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        with pytest.raises(VerificationError) as caught:
            tried(store, tmp_path, "mute", run)
        assert store.releases.current().digest == first
    assert app.running()[1] == first
    assert caught.value.message.endswith("generation 1 is current again, and the application is healthy there")
    assert "the model is not loaded" in caught.value.details
    assert run.health in caught.value.hint
    assert application.trial(store).state == "failed"
    assert not (app.root / "trial").exists()
    with locked(store):
        tried(store, tmp_path, "third", run)
    assert store.releases.current().number == 2


def test_the_first_release_ever_is_taken_back_too(store, tmp_path, run, app):
    with locked(store):
        with pytest.raises(VerificationError, match="no previous release, so the device has none now"):
            tried(store, tmp_path, "mute", run)
        assert store.releases.current() is None
    assert soon(lambda: app.running() == (0, ""))


def test_a_restart_that_fails_is_told_with_its_words(store, tmp_path, run, app):
    broken = Application(restart="echo no such file >&2; false", health="true")
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        with pytest.raises(VerificationError, match="NOT HEALTHY there either") as caught:
            tried(store, tmp_path, "second", broken)
        assert "no such file" in caught.value.details
        assert store.releases.current().digest == first


def test_a_command_that_hangs_is_ended(store, tmp_path, run, app):
    hanging = Application(restart=app.restart, health="sleep 1000", within="1s")
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        with pytest.raises(VerificationError):
            tried(store, tmp_path, "second", hanging)
        assert store.releases.current().digest == first


def test_words_of_an_application_cannot_steer_the_result(store, tmp_path, run, app):
    evil = Application(
        restart=app.restart,
        health=r"printf '\033[2Jhealthy\nhealthy\nend\nback 7 well\013back 7 well\302\205healthy\n'; false",
        within="1s",
    )
    with locked(store), pytest.raises(VerificationError) as caught:
        tried(store, tmp_path, "first", evil)
    assert "there was no previous release" in caught.value.message
    assert store.releases.current() is None


def test_a_health_command_that_writes_without_an_end_does_not_fill_the_disk(store, tmp_path, run, app):
    """The command is ended before that, and the error has the end of its output."""
    endless = Application(restart=app.restart, health="yes a-b-c", within="2s")
    with locked(store):
        largest = 0

        def look():
            nonlocal largest
            while not ended.wait(0.05):
                with contextlib.suppress(OSError):
                    largest = max(largest, (app.root / "run" / "words").stat().st_size)

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


def test_roll_back_restarts_the_application_too(store, tmp_path, run, app):
    with locked(store):
        with pytest.raises(DeviceError, match="no earlier release"):
            application.roll_back(store, run, tell)
        first, _ = tried(store, tmp_path, "first", run)
        tried(store, tmp_path, "second", run)
        application.roll_back(store, run, tell)
        assert (store.releases.current().digest, app.running()[1]) == (first, first)


def test_roll_back_to_one_on_which_it_is_not_well_changes_nothing(store, tmp_path, run, app):
    with locked(store):
        stores.release(store, tmp_path, "mute")
        second, _ = tried(store, tmp_path, "second", run)
        with pytest.raises(VerificationError, match="generation 2 is current again"):
            application.roll_back(store, run, tell)
        assert (store.releases.current().digest, app.running()[1]) == (second, second)


CLIENT = """from toolchain.device import application
from toolchain.devices import Application
run = Application(restart={restart!r}, health={health!r}, within={within!r})
application.activate(store, {digest!r}, run, lambda line: None)
"""


def client(app, digest, within="2s"):
    """Another process that tries a release."""
    code = CLIENT.format(restart=app.restart, health=app.health, within=within, digest=digest)
    return stores.client(app.root, f"exec({code!r})")


def test_a_dead_client_changes_nothing(store, tmp_path, run, app):
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        mute = stores.installed(store, tmp_path, "mute")
        good = stores.installed(store, tmp_path, "slow")
    for digest, within, outcome in ((mute, "2s", first), (good, "30s", good)):
        with client(app, digest, within) as other:
            assert soon((app.root / "trial").exists, 20)
            other.kill()
            other.wait()
            with pytest.raises(BusyError, match="the other one"), store.lock(Owner("tester", "tests")):
                pass
            with pytest.raises(BusyError, match="the other one"):
                store.check_free()
        assert soon(lambda: not (app.root / "trial").exists(), 30)
        assert soon(lambda expected=outcome: store.releases.current().digest == expected == app.running()[1], 30)
        assert application.trial(store).state in {"healthy", "failed"}
        assert stores.lock_free(app.root)
    with locked(store):
        assert not store.lease.on_trial


def killed_in_trial(store, tmp_path, app, run):
    """Leave a release on trial, as a power cut would: whoever tried it is gone, and the application with it."""
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        mute = stores.installed(store, tmp_path, "mute")
    with client(app, mute, "60s") as other:
        assert soon((app.root / "trial").exists, 20)
        assert app.runs(mute, 20)
        other.kill()
        job = holder(app.root)
        os.kill(job, signal.SIGKILL)
        other.wait()
    app.end()
    assert stores.lock_free(app.root)
    assert application.trial(store).state == "open"
    assert application.trial(store).seconds >= 0
    return first, mute


def test_a_trial_that_is_killed_is_taken_back_by_its_client(store, tmp_path, run, app):
    with locked(store):
        first, _ = tried(store, tmp_path, "first", run)
        mute = stores.installed(store, tmp_path, "mute")

        def kill():
            assert app.runs(mute, 20)
            os.kill(holder(app.root), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        slow = Application(restart=run.restart, health=run.health, within="60s")
        with pytest.raises(DeviceError, match="ended early"):
            application.activate(store, mute, slow, tell)
        killer.join()
        assert store.releases.current().digest == first
        assert app.runs(first, 10)


@pytest.mark.parametrize(
    ("scope", "uid", "template"),
    [
        ("user", 1000, "systemctl --user {} app@1.service"),
        ("system", 1000, "sudo -n systemctl {} app@1.service"),
        ("system", 0, "systemctl {} app@1.service"),
    ],
)
def test_how_a_unit_is_restarted_and_stopped(scope, uid, template, tmp_path):
    for name, text in {"id": f"echo {uid}", "sudo": 'echo "sudo $*"', "systemctl": 'echo "systemctl $*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    commands = application._commands(Application(unit="app@1.service", scope=scope))
    for command, verbs in zip(commands, (("reset-failed", "restart"), ("stop",)), strict=True):
        completed = subprocess.run(
            ["/bin/sh", "-c", command], check=True, env={"PATH": str(tmp_path)}, capture_output=True, text=True
        )
        assert completed.stdout.splitlines() == [template.format(verb) for verb in verbs]


def test_the_next_command_takes_back_what_nobody_finishes(store, tmp_path, run, app):
    first, _ = killed_in_trial(store, tmp_path, app, run)
    messages = []
    store = Store(LocalShell(), str(app.root), messages.append)
    with locked(store):
        assert store.releases.current().digest == first
    assert app.runs(first, 10)
    assert messages == [
        "generation 2 on local was on trial, and the command that tried it has ended: generation 1 is current again"
    ]
    assert application.trial(store).state == "interrupted"
    with locked(store):
        tried(store, tmp_path, "second", run)
    assert messages[1:] == []


def test_at_its_next_start_the_application_takes_it_back_itself(store, tmp_path, run, app):
    first, mute = killed_in_trial(store, tmp_path, app, run)
    recover = ["/bin/sh", str(app.root / "recover")]
    assert (app.root / "recover").read_text() == scripts.AT_START
    with (app.root / "lock").open("ab") as lock_file:  # somebody is at work: it is theirs
        subprocess.run(["flock", str(lock_file.fileno())], pass_fds=[lock_file.fileno()], check=True)
        subprocess.run(recover, check=True)
        assert store.releases.current().digest == mute
    completed = subprocess.run(recover, check=True, text=True, capture_output=True)
    assert completed.stdout == "generation 2 was on trial; generation 1 is current again\n"
    assert store.releases.current().digest == first
    assert application.trial(store).state == "interrupted"
    assert subprocess.run(recover, check=True, capture_output=True).stdout == b""
    store.check_free()


def test_a_recovery_that_cannot_restart_says_so(store, tmp_path, run, app):
    killed_in_trial(store, tmp_path, app, run)
    marker = app.root / "trial"
    marker.write_text(marker.read_text().splitlines()[0] + "\necho no such unit; false\n")
    messages = []
    with locked(Store(LocalShell(), str(app.root), messages.append)):
        pass
    assert messages[1] == "the application there could not be restarted: no such unit"


@pytest.mark.parametrize("text", ["", "2 1 0\n", "2 1"])
def test_what_is_left_of_a_trial_is_no_trial(store, text):
    messages = []
    store = Store(LocalShell(), store.root, messages.append)
    with locked(store):
        pass
    marker = Path(store.root, "trial")
    marker.write_text(text)
    with locked(store):
        assert not marker.exists()
    assert messages == []


def test_the_script_for_the_start_is_mended(store, tmp_path, run, app):
    with locked(store):
        tried(store, tmp_path, "first", run)
        (app.root / "recover").write_text("something else")
        tried(store, tmp_path, "second", run)
    assert (app.root / "recover").read_text() == scripts.AT_START


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
    completed = subprocess.run(
        ["sh", tmp_path / "recover"], env=environment, check=False, capture_output=True, timeout=60
    )
    assert (completed.returncode, (tmp_path / "current").resolve().name) == (0, "old"), completed.stderr
    assert not (tmp_path / "trial").exists()
