from __future__ import annotations

import dataclasses
import json

import pytest

from toolchain.errors import BusyError, InputError
from toolchain.pipeline.rollout import state
from toolchain.pipeline.rollout.state import Plan, Record

NEW, OLD = "b" * 64, "a" * 64
PLAN = Plan(NEW, "net", "x86_64", "f" * 64, ("1", "100%"))
GROUPS = {"a": 1, "b": 2}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rollout.json"


def kept(path, plan=PLAN, groups=GROUPS, *, fresh=False):
    return state.load_state(path, plan, groups, fresh=fresh)


def test_what_is_saved_is_read_again(path):
    first = kept(path)
    first.put("a", Record(1, "failed", OLD, OLD, "full", 4, 'no "room"\n', "ünïcode", "mend it", 2.5, seconds=1.5))
    first.save()
    assert dict(kept(path).devices) == dict(first.devices)
    assert len(path.read_text().splitlines()) == 3 + len(GROUPS) + 1  # a line for each device
    assert json.loads(path.read_text())["rollout_version"] == 1


def test_a_file_that_is_empty_is_a_new_one(path):
    path.touch()
    assert kept(path).devices == {"a": Record(1), "b": Record(2)}


@pytest.mark.parametrize(
    ("plan", "groups", "message", "details"),
    [
        (dataclasses.replace(PLAN, package=OLD, model="other"), GROUPS, "another package", f"now other sha256:{OLD}"),
        (dataclasses.replace(PLAN, fleet="e" * 64), GROUPS, "a changed fleet", "an address, a limit"),
        (PLAN, {"a": 1, "c": 2}, "other devices", "1 removed, such as b; 1 new, such as c"),
        (dataclasses.replace(PLAN, waves=("100%",)), GROUPS, "other waves", "1,100%, and now 100%"),
        (dataclasses.replace(PLAN, slot="detector"), GROUPS, "another slot", "no slot, and now slot detector"),
        (PLAN, {"a": 2, "b": 1}, "other groups", "other groups"),
    ],
)
def test_another_roll_out_is_refused_by_name_unless_it_is_to_begin_anew(path, plan, groups, message, details):
    kept(path).save()
    with pytest.raises(InputError, match=f"is the state of a different roll-out: {message}") as caught:
        kept(path, plan, groups)
    assert details in caught.value.details
    assert "--fresh" in caught.value.hint
    assert kept(path, plan, groups, fresh=True).devices == {name: Record(group) for name, group in groups.items()}


@pytest.mark.parametrize(
    ("old", "new", "details"),
    [
        ('"waiting"', '"wating"', "did you mean waiting"),
        ('"group": 1', '"grup": 1', "grup: unknown key (did you mean group?)"),
        (f'"{NEW}"', '"../../etc"', "plan.package"),
        ('"before": null', '"before": "x"', "before"),
        ('"rollout_version": 1', '"rollout_version": 2', "rollout_version"),
        ('"exit_code": 0', '"exit_code": "0"', "exit_code"),
    ],
)
def test_a_file_with_faults_is_refused(path, old, new, details):
    kept(path).save()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=r"has \d fault") as caught:
        kept(path)
    assert details in caught.value.details


def test_another_file_is_left_alone(path):
    for text in ("[]", "{}", "text", '{"devices": {}}'):
        path.write_text(text)
        with pytest.raises(InputError, match="something other than the state of a roll-out"), state.lock_state(path):
            pass
        assert path.read_text() == text


def test_two_cannot_run_at_once(path):
    with (
        state.lock_state(path),
        pytest.raises(BusyError, match="another roll-out is using") as caught,
        state.lock_state(path),
    ):
        pass
    assert "process" in caught.value.details
    with state.lock_state(path):
        pass


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot write"), state.lock_state(tmp_path / "none" / "rollout.json"):
        pass


def test_the_release_before_is_that_of_before_any_attempt():
    record = Record(1).as_running().with_release(OLD, NEW)
    assert (record.state, record.before, record.after) == ("running", OLD, OLD)
    # killed after the switch: the device runs the new one by now
    again = record.as_running()
    assert (again.before, again.after) == (OLD, None)
    assert again.with_release(NEW, NEW).before == OLD
    # it ran the new one before the first attempt
    assert Record(1).as_running().with_release(NEW, NEW).before == NEW
    # somebody else deployed another one meanwhile
    assert again.with_release("c" * 64, NEW).before == "c" * 64
    assert Record(1).as_running().with_release("", NEW).before == ""
