from __future__ import annotations

import dataclasses
import json
import threading
import time

import pytest

from tests.support.rollouts import NEW, OLD, PLAN, Devices, fleet, loop
from toolchain.errors import (
    BusyError,
    DeviceError,
    FullError,
    OutputError,
    RegressionError,
    UnreachableError,
)
from toolchain.pipeline.rollout import Rules, Share, Thresholds, state

PLACES = {name: entry.group for name, entry in fleet(1, 2, 4).items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rollout.json"


@pytest.fixture
def devices():
    return Devices(dict.fromkeys(PLACES, OLD))


@pytest.fixture
def run(path, devices):
    """Run a roll-out from what the file says."""

    def run(**how):
        thresholds = how.pop("thresholds", Thresholds())
        saved_state = state.load_state(path, PLAN, PLACES, fresh=False)
        why = loop(path, dict(saved_state.devices), devices, Rules(thresholds=thresholds, **how)).run()
        return why, state.load_state(path, PLAN, PLACES, fresh=False).devices

    return run


def states(records):
    return {name: entry.state for name, entry in records.items()}


def test_every_device_in_the_order_of_the_groups(run, devices):
    why, records = run(parallel=1)
    assert why == ""
    assert devices.deploys == list(PLACES)
    assert {(entry.state, entry.before, entry.after, entry.latency_ms) for entry in records.values()} == {
        ("done", OLD, NEW, 2.5)
    }


def test_it_stops_with_the_first_failure_and_goes_on_from_there(run, devices):
    devices.faults["b0"] = OutputError("it is wrong", details="by far", hint="mend it")
    why, records = run(parallel=1)
    assert why == "1 of the 2 device(s) of group 2 failed: --stop-after 1"
    assert states(records) == {"a0": "done", "b0": "failed", **dict.fromkeys(("b1", "c0", "c1", "c2", "c3"), "waiting")}
    failed = records["b0"]
    assert (failed.kind, failed.exit_code, failed.error, failed.details, failed.hint, failed.after) == (
        "wrong output",
        5,
        "it is wrong",
        "by far",
        "mend it",
        OLD,
    )
    del devices.faults["b0"]
    why, records = run(parallel=3)
    assert why == ""
    assert set(states(records).values()) == {"done"}
    assert (records["b0"].kind, records["b0"].exit_code, records["b0"].before) == ("", 0, OLD)
    assert sorted(devices.deploys) == sorted([*PLACES, "b0"])  # the failed one twice, the others once


def test_a_threshold_in_percent_counts_a_group(run, devices):
    devices.faults |= {"c0": FullError("full"), "c2": BusyError("busy")}
    why, records = run(parallel=1, thresholds=Thresholds(Share.read("75%")))
    assert why == ""
    assert states(records)["c3"] == "done"
    assert [records[name].kind for name in ("c0", "c2")] == ["full", "busy"]
    why, _ = run(parallel=1, thresholds=Thresholds(Share.read("50%")))
    assert why == "2 of the 4 device(s) of group 3 failed: --stop-after 50%"


def test_a_group_of_which_nothing_is_left_ends_it_whatever_the_threshold(run, devices):
    devices.faults["a0"] = FullError("full")
    why, records = run(thresholds=Thresholds(Share.read("5")))
    assert why == "1 of the 1 device(s) of group 1 failed: all of it"
    assert states(records)["b0"] == "waiting"


def test_a_success_threshold_holds_the_next_group_back(run, devices):
    devices.faults["b0"] = FullError("full")
    why, records = run(thresholds=Thresholds(Share.read("2"), success=75))
    assert why == "only 1 of 2 device(s) of group 2 succeeded: --success-threshold 75"
    assert states(records)["c0"] == "waiting"


def test_an_error_of_our_own_is_told_as_that_devices(run, devices):
    devices.faults["a0"] = ZeroDivisionError("\x1b[31m" + "x" * 5000)
    _, records = run()
    assert (records["a0"].kind, records["a0"].exit_code) == ("internal", 70)
    assert len(records["a0"].error) <= 2000
    assert "\x1b" not in records["a0"].error


def test_where_it_stops_the_group_is_taken_back(run, devices):
    devices.faults["c3"] = FullError("full")
    devices.late["c2"] = DeviceError("lost in the measurement")
    devices.lost.add("c2")
    why, records = run(parallel=1, thresholds=Thresholds(Share.read("2")), roll_back=True)
    assert why.endswith("; 3 device(s) were rolled back")
    assert states(records) == {
        **dict.fromkeys(("a0", "b0", "b1"), "done"),
        **dict.fromkeys(("c0", "c1", "c2"), "returned"),
        "c3": "failed",
    }
    assert [devices.runs[name] for name in PLACES] == [NEW] * 3 + [OLD] * 4
    assert records["c2"].kind == "device"  # why it failed is still told
    assert records["c0"].after == OLD
    devices.faults.clear()
    devices.late.clear()
    why, records = run()
    assert (why, set(states(records).values())) == ("", {"done"})


def test_a_device_that_ran_it_before_is_not_taken_back(run, devices):
    devices.runs["c0"] = NEW
    devices.faults["c3"] = FullError("full")
    _, records = run(parallel=1, roll_back=True)
    assert records["c0"].state == "done"
    assert devices.runs["c0"] == NEW


def test_a_device_without_a_release_before_keeps_the_new_one_and_says_so(run, devices):
    devices.runs["c0"] = ""
    devices.faults["c3"] = FullError("full")
    why, records = run(parallel=1, roll_back=True)
    assert why.endswith("; 2 device(s) were rolled back, 1 had no previous release and keep the new one")
    assert (records["c0"].state, records["c0"].after, records["c0"].before) == ("done", NEW, "")


def test_taking_back_is_finished_by_the_next_run_before_anything_else(run, devices):
    devices.faults["c3"] = FullError("full")
    off = {name: UnreachableError("off") for name in ("c0", "c1", "c2")}
    devices.before = lambda visit: devices.faults.update(off if visit.name == "c3" else {})
    why, records = run(parallel=1, roll_back=True)
    assert why.endswith("0 device(s) were rolled back, 3 could not be rolled back")
    assert states(records)["c0"] == "returning"
    assert records["c0"].kind == "unreachable"
    devices.faults.clear()
    devices.deploys.clear()
    why, records = run()
    assert why.startswith("an earlier run stopped while it rolled its group back")
    assert states(records)["c0"] == "returned"
    assert devices.deploys == []
    assert [devices.runs[name] for name in ("c0", "c1", "c2")] == [OLD] * 3


def test_what_a_device_ran_is_on_disk_before_anything_changes(run, devices, path):
    saved = {}
    deploy = devices.deploy

    class Watching(dict):
        def __setitem__(self, name, digest):
            saved[name] = json.loads(path.read_text())["devices"][name]
            super().__setitem__(name, digest)

    devices.runs = Watching(devices.runs)
    devices.deploy = deploy
    run()
    assert {(entry["state"], entry["before"]) for entry in saved.values()} == {("running", OLD)}
    assert saved.keys() == PLACES.keys()


@pytest.mark.parametrize("switched", [False, True])
def test_what_was_in_flight_is_asked(run, devices, path, switched):
    """As after SIGKILL: the file says `running`, and the device runs the old release, or the new one."""
    records = fleet(1, 2, 4)
    records["a0"] = records["a0"].as_running().with_release(OLD, NEW)
    state.StateFile(path, PLAN, records).save()
    devices.runs["a0"] = NEW if switched else OLD
    why, records = run()
    assert why == ""
    assert (records["a0"].state, records["a0"].before, devices.runs["a0"]) == ("done", OLD, NEW)
    assert devices.befores["a0"] == OLD  # what it goes back to if it turns out to be too slow


def test_who_was_in_flight_is_asked_before_others_begin(run, devices, path):
    records = fleet(1, 2, 4)
    records["a0"] = dataclasses.replace(records["a0"], state="done")
    records["b1"] = records["b1"].as_running().with_release(OLD, NEW)
    state.StateFile(path, PLAN, records).save()
    run(parallel=1)
    assert devices.deploys[:2] == ["b1", "b0"]


def test_an_unreachable_device_that_was_in_flight_is_taken_back_once_it_answers(run, devices, path):
    records = fleet(1, 2, 4)
    records["a0"] = records["a0"].as_running().with_release(OLD, NEW)
    state.StateFile(path, PLAN, records).save()
    devices.runs["a0"] = NEW  # as it was switched before the kill
    devices.faults["a0"] = UnreachableError("off")
    _, records = run(roll_back=True)
    assert records["a0"].state == "returning"
    devices.faults.clear()
    _, records = run(roll_back=True)
    assert (records["a0"].state, devices.runs["a0"]) == ("returned", OLD)


def test_an_unreachable_device_that_was_left_as_it_was_is_not_waited_for(run, devices):
    devices.faults["a0"] = FullError("full")
    run()
    devices.faults["a0"] = UnreachableError("off")
    _, records = run(roll_back=True)
    assert (records["a0"].state, records["a0"].after) == ("failed", OLD)


def test_ctrl_c_leaves_what_is_in_flight_in_the_file(path, devices):
    """Those at work are left, those that wait do not begin, and the file says which is which."""
    all_running = threading.Barrier(3)
    closed = []

    class Connection:
        def close(self):
            closed.append(self)

    def hang(visit):
        if visit.name == "a0":
            return
        with visit.closing(Connection()):
            all_running.wait(10)
            while not visit._has_ended:
                time.sleep(0.01)
            raise UnreachableError("its connection was closed")

    devices.before = hang
    running = loop(path, fleet(1, 2, 4), devices, Rules(parallel=2))

    def interrupt(seconds):
        if len(running._threads._visits) == 2:
            all_running.wait(10)
            raise KeyboardInterrupt
        return take(seconds)

    take, running._threads._take_events = running._threads._take_events, interrupt
    with pytest.raises(KeyboardInterrupt):
        running.run()
    in_flight = state.load_state(path, PLAN, PLACES, fresh=False).devices
    assert states(in_flight) == {
        "a0": "done",
        **dict.fromkeys(("b0", "b1"), "running"),
        **dict.fromkeys(("c0", "c1", "c2", "c3"), "waiting"),
    }
    assert len(closed) == 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout-")]


def test_a_device_that_takes_too_long_is_left_and_the_others_go_on(run, devices):
    def hang(visit):
        while visit.name == "b0" and not visit._has_ended:
            time.sleep(0.01)
        if visit.name == "b0":
            raise UnreachableError("its connection was closed")

    devices.before = hang
    why, records = run(limit_s=0.3, parallel=2, thresholds=Thresholds(Share.read("2")))
    assert why == ""
    assert (records["b0"].kind, records["b0"].exit_code) == ("timeout", 4)
    assert [entry.state for name, entry in records.items() if name != "b0"] == ["done"] * 6


def test_a_thread_that_never_ends_is_given_up(run, devices, monkeypatch):
    monkeypatch.setattr("toolchain.pipeline.rollout.threads._LEAVE_S", 0.1)
    ended = threading.Event()
    devices.before = lambda visit: ended.wait(20) if visit.name == "b0" else None
    try:
        _, records = run(limit_s=0.2, parallel=2, thresholds=Thresholds(Share.read("2")))
    finally:
        ended.set()
    assert records["b0"].kind == "timeout"
    assert records["c3"].state == "done"


def test_what_is_told(path, devices):
    reported = []
    devices.faults["b0"] = RegressionError("too slow")
    loop(path, fleet(1, 2, 4), devices, Rules(parallel=1), reported).run()
    lines = [line.rpartition(",")[0] if line.startswith("  ") else line for line in reported]
    assert lines == [
        "group 1 of 3: 1 of 1 device(s) to do",
        "  a0: done, 2.5 ms",
        "group 2 of 3: 2 of 2 device(s) to do",
        "  b0: FAILED, slow: too slow",
    ]


def test_a_state_that_cannot_be_written_ends_it_in_good_order(path, devices, monkeypatch):
    running = loop(path, fleet(1, 2, 4), devices, Rules())

    def full():
        raise UnreachableError("the disk is full")

    devices.before = lambda _visit: monkeypatch.setattr(running._state, "save", full)
    with pytest.raises(UnreachableError):
        running.run()
    assert devices.deploys == []
