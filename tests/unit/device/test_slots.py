"""Slots of a store: models beside each other, of which none may change another."""

from __future__ import annotations

import os
import subprocess
from itertools import product
from pathlib import Path

import pytest

from tests.support.slots import SHARED, SLOTS, folder_of, own
from tests.support.stores import installed, locked, release
from toolchain.device import application
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.devices import Application
from toolchain.errors import DeviceError, InputError, UnhealthyError
from toolchain.shell import LocalShell

BEFORE_SLOTS = Path(__file__).parents[2] / "data" / "store-before-slots.sh"


def in_slot(root: Path, slot: str, messages: list[str] | None = None) -> Store:
    return Store(LocalShell(), str(root), (messages if messages is not None else []).append, slot=slot)


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    for slot in SLOTS:
        store = in_slot(folder / "device", slot)
        with locked(store):
            release(store, folder, "shared by all")
            release(store, folder, f"second of {slot}")
    return folder / "device"


@pytest.fixture
def by_slot(root, filled) -> dict[str, Store]:
    """A store with two releases in each of three places, of which the first ones are the same everywhere."""
    subprocess.run(["cp", "-a", filled, root], check=True)  # hard links included
    return {slot: in_slot(root, slot) for slot in SLOTS}


def test_each_slot_has_its_own_current_release(by_slot, root):
    for slot, store in by_slot.items():
        assert [item.name for item in store.releases.generations()] == ["shared by all", f"second of {slot}"]
        assert (folder_of(root, slot) / "current" / "data").read_bytes() == f"data of second of {slot}".encode()
    assert by_slot[""].slots() == ("classifier", "detector")
    counts = {slot: len(items) for slot, items in by_slot[""].releases.in_each_slot().items()}
    assert counts == dict.fromkeys(by_slot, 2)


def test_slots_share_blobs(by_slot, root):
    digest = by_slot[""].releases.generations()[0].digest
    files = {(root / folder / "releases" / digest / "data") for folder in ("", "slots/detector", "slots/classifier")}
    assert len({path.stat().st_ino for path in files}) == 1


@pytest.mark.parametrize(
    ("slot", "change"),
    [*product(["", "detector"], ["deploy", "roll back", "prune"]), ("detector", "remove")],
)
def test_what_happens_to_one_slot_changes_no_other(by_slot, root, tmp_path, slot, change):
    others = [name for name in by_slot if name != slot]
    before = {name: own(root, name) for name in others}
    store = by_slot[slot]
    with locked(store):
        if change == "deploy":
            release(store, tmp_path, "third")
        elif change == "roll back":
            assert store.releases.roll_back().name == "shared by all"
        if change == "remove":
            store.remove_slot()
        else:
            store.releases.prune(1)
    assert {name: own(root, name) for name in others} == before
    for name in others:
        assert by_slot[name].releases.current().name == f"second of {name}"


def test_removing_a_slot_frees_what_only_it_used(by_slot, root):
    with locked(by_slot["detector"]):
        by_slot["detector"].remove_slot("echo stopped >stopped")
    assert by_slot[""].slots() == ("classifier",)
    assert (root / "stopped").read_text() == "stopped\n"
    contents = {path.read_bytes() for path in (root / "blobs" / "sha256").iterdir()}
    assert b"data of second of detector" not in contents
    assert {b"data of second of classifier", b"data of shared by all"} <= contents


def test_a_toolchain_from_before_slots_harms_none(by_slot, root):
    """Its deploys remove blobs and releases that it finds no use of."""
    before = {slot: own(root, slot) for slot in ("detector", "classifier")}
    store = by_slot[""]
    with store.lock(Owner.here("an old deploy")):
        store.change_store(BEFORE_SLOTS.read_text())
    assert {slot: own(root, slot) for slot in before} == before
    blobs = {path.read_bytes() for path in (root / "blobs" / "sha256").iterdir()}
    assert {b"data of second of detector", b"data of shared by all"} <= blobs
    with locked(by_slot["detector"]):
        assert by_slot["detector"].releases.roll_back().name == "shared by all"


def test_without_hard_links_a_slot_has_copies(root, tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ln").write_text('#!/bin/sh\ncase $1 in -s*) exec /bin/ln "$@" ;; esac\nexit 1\n')
    (tools / "ln").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    store = in_slot(root, "detector")
    with locked(store):
        release(store, tmp_path, "copied")
        store.releases.prune(1)
    assert (root / "slots" / "detector" / "current" / "data").read_bytes() == b"data of copied"
    assert list((root / "blobs" / "sha256").iterdir()) == []


# --- the lock and trials ---


def test_there_is_one_lock(by_slot, root):
    with by_slot["detector"].lock(Owner.here("tests")), pytest.raises(DeviceError, match="is busy"):
        by_slot[""].check_free()
    assert (root / "slots" / "detector" / "lock").samefile(root / "lock")


def on_trial(root: Path, slot: str, restart: str) -> None:
    (root / "slots" / slot / "trial" if slot else root / "trial").write_text(f"2 1 1700000000\n{restart}\n")


def test_the_next_holder_of_the_lock_ends_the_trials_of_all_slots(by_slot, root):
    """A slot's own unit may find the lock taken, and start on the release that was on trial."""
    on_trial(root, "detector", "echo restarted >restarted")
    messages: list[str] = []
    with in_slot(root, "classifier", messages).lock(Owner.here("deploy")):
        pass
    assert [store.releases.current().number for store in by_slot.values()] == [2, 1, 2]
    assert (root / "slots" / "detector" / "restarted").exists()
    assert len(messages) == 1
    assert "slot detector, was on trial" in messages[0]


def test_a_trial_that_cannot_be_ended_keeps_no_other_slot_from_being_used(by_slot, root):
    on_trial(root, "detector", "true")
    (root / "slots/detector/.current-new").mkdir()  # where the link for the way back is to be
    messages: list[str] = []
    with in_slot(root, "classifier", messages).lock(Owner.here("deploy")):
        assert "slot detector, was on trial, and could not be taken back" in messages[0]
    with pytest.raises(DeviceError, match="could not be taken back"), by_slot["detector"].lock(Owner.here("deploy")):
        pass


def test_each_slot_recovers_itself_before_its_application_starts(by_slot, root):
    """As its unit does after a power cut."""
    with locked(by_slot["detector"]):
        by_slot["detector"].releases.put_recovery()
    on_trial(root, "detector", "false")
    completed = LocalShell().run(f"sh {root}/slots/detector/recover")
    assert "generation 1 is current again" in completed.stdout
    assert [store.releases.current().number for store in by_slot.values()] == [2, 1, 2]


def test_a_trial_in_one_slot(by_slot, root, tmp_path):
    """The application of the detector is not healthy on the new release; nobody else notices."""
    before = {slot: own(root, slot) for slot in ("", "classifier")}
    run = Application(restart="true", health="false", within="1s")
    store = by_slot["detector"]
    with locked(store), pytest.raises(UnhealthyError, match="did not become healthy"):
        application.activate(store, installed(store, tmp_path, "third"), run, lambda _line: None)
    assert store.releases.current().name == "second of detector"
    assert {slot: own(root, slot) for slot in before} == before
    assert {slot: trial.state for slot, trial in application.trials(store).items()} == {"detector": "failed"}


# --- names ---


def test_a_slot_that_does_not_exist(by_slot, root):
    with pytest.raises(InputError, match="has no slot 'detectr'") as caught:
        in_slot(root, "detectr").check_slot()
    assert caught.value.hint == "did you mean detector?"
    with pytest.raises(InputError, match="has no slot") as caught:
        in_slot(root / "other", "detector").check_slot()
    assert "has no slots" in caught.value.details
    by_slot["detector"].check_slot()
    by_slot[""].check_slot()


@pytest.mark.parametrize("name", ["a b", "A", "-a", "a\n", "$(touch pwned)", "x" * 33, "a;b", "ä"])
def test_a_folder_with_a_name_that_no_command_accepts_is_no_slot(by_slot, root, name):
    (root / "slots" / name).mkdir()
    assert by_slot[""].slots() == ("classifier", "detector")
    assert set(by_slot[""].releases.in_each_slot()) == set(by_slot)


def test_a_folder_that_is_no_slot_is_left_alone(root, tmp_path):
    precious = root / "slots" / "detector" / "blobs" / "mine"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    (root / "blobs" / "partial").mkdir(parents=True)
    store = in_slot(root, "detector")
    with store.lock(Owner.here("tests")), pytest.raises(DeviceError) as caught:
        store.blobs.sweep()
    assert "is not a slot: blobs is not a link" in caught.value.details
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("links", [[], ["blobs"], ["blobs", "lock"]])
def test_a_slot_that_was_being_made_is_made(root, tmp_path, links):
    (root / "slots" / "detector").mkdir(parents=True)
    (root / "blobs" / "partial").mkdir(parents=True)
    for name in links:
        (root / "slots" / "detector" / name).symlink_to(f"../../{name}")
    store = in_slot(root, "detector")
    with locked(store):
        release(store, tmp_path, "one")
    assert store.releases.current().name == "one"
    assert {path.name for path in (root / "slots" / "detector").iterdir() if path.is_symlink()} >= SHARED


def test_a_device_that_reports_slots_it_should_not(monkeypatch):
    """Whatever a device writes, names are checked, and lists are as a store has them."""

    class Hostile(LocalShell):
        def run(self, _script, **options):
            return super().run("printf '%s\\n' ' x' 'slot ../..' 'current generations/1'", **options)

    store = Store(Hostile(), "/r")
    assert store.slots() == ()
    assert store.releases.in_each_slot() == {}
