"""Rounds: several runs in one trip, and what disturbed each of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import deploys
from toolchain.device import rounds, runner, verification
from toolchain.device.rounds import State, Turn
from toolchain.device.runner import Plan, Run
from toolchain.errors import DeviceError
from toolchain.shell import LocalShell

PLAN = Plan(0.0, 1, 3, 10)
RUN = Run({}, (1, 1, 1), (1,), 1.0, 1, 9)


@pytest.fixture
def folders(tiny, program, tmp_path):
    (tmp_path / "inputs").mkdir()
    runner.tensors.save(tmp_path / "inputs" / runner.INPUTS, verification.samples_of(tiny).inputs)
    return {"runners": str(program.path.parent), "inputs": str(tmp_path / "inputs")}


def sysfs(folder: Path, **files: str) -> str:
    """Write a sysfs; `__` stands for /."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return str(folder)


def test_releases_run_in_their_order_in_one_trip(tiny, folders, tmp_path):
    with runner.scratch(LocalShell(), f"{tmp_path}/a root") as folder:
        turns = rounds.run([deploys.installed(folders, tmp_path, tiny.folder)] * 3, folder, PLAN)
    assert len(turns) == 3
    for turn in turns:
        assert 3 <= len(turn.run.samples_ns) <= 10
        assert turn.run.threads == 1
        assert turn.before.ticks <= turn.after.ticks
        assert 0 <= turn.steal <= 1
    assert list((tmp_path / "a root" / "run").iterdir()) == []


def test_what_the_device_says_of_itself_is_read(tiny, folders, tmp_path):
    cpu, thermal = "devices__system__cpu__cpu", "class__thermal__cooling_device"
    files = {
        f"{cpu}0__cpufreq__scaling_cur_freq": "1500000",
        f"{cpu}1__cpufreq__scaling_cur_freq": "600000",
        f"{cpu}0__thermal_throttle__core_throttle_count": "3",
        f"{cpu}0__thermal_throttle__package_throttle_count": "4",
        f"{thermal}0__type": "thermal-cpufreq-0",
        f"{thermal}0__cur_state": "2",
        f"{thermal}1__type": "pwm-fan",
        f"{thermal}1__cur_state": "4",
        f"{thermal}2__type": "Processor",
        f"{thermal}2__cur_state": "0",
        f"{thermal}3__type": "intel_powerclamp",
        f"{thermal}3__cur_state": "-1",
    }
    root = sysfs(tmp_path / "sys fs", **files)
    with runner.scratch(LocalShell(), str(tmp_path)) as folder:
        (turn,) = rounds.run([deploys.installed(folders, tmp_path, tiny.folder)], folder, PLAN, root)
    assert (turn.before.mhz, turn.before.throttles, turn.before.cooling) == (1050.0, 7, ("thermal-cpufreq-0",))
    assert turn.throttled == ("thermal-cpufreq-0",)


@pytest.mark.parametrize(
    ("before", "after", "signs"),
    [
        (State(), State(), ()),
        (State(throttles=7), State(throttles=7), ()),
        (State(throttles=7), State(throttles=9), ("2 time(s) by the CPUs' own count",)),
        (State(throttles=9), State(throttles=7), ()),
        (State(), State(throttles=7), ()),
        (State(throttles=7), State(), ()),
        (State(cooling=("Processor",)), State(), ("Processor",)),
        (State(flags=0x50000), State(flags=0x50000), ()),
        (State(flags=0x0), State(flags=0x1), ("under-voltage",)),
        (State(flags=0x4), State(flags=0x0), ("throttled",)),
        (State(flags=0x0), State(flags=0x80000), ("soft temperature limit",)),
    ],
)
def test_signs_of_throttling(before, after, signs):
    assert Turn(RUN, before, after).throttled == signs


def test_a_line_of_nothing_but_digits_is_read_at_once():
    before = time.process_time()
    assert rounds._state(f"ticks=cpu {'1' * 4000}x") == State()
    assert rounds._state("ticks=cpu  1 2 3 4 5 6 7 8 9 10").ticks == 36
    assert time.process_time() - before < 10, "an expression that tries every cut of 40 digits takes hours"


def test_steal_is_a_share():
    assert Turn(RUN, State(steal=10, ticks=1000), State(steal=20, ticks=1100)).steal == pytest.approx(0.1)
    assert Turn(RUN, State(steal=10, ticks=1000), State(steal=5, ticks=1100)).steal == 0
    assert Turn(RUN, State(), State()).steal == 0


def lying(tmp_path, *lines):
    options = "for word; do case $last in --report) report=$word ;; esac; last=$word; done"
    (tmp_path / "runner").write_text("\n".join(["#!/bin/sh", options, *lines, ""]))
    (tmp_path / "runner").chmod(0o755)
    return {"runners": str(tmp_path), "inputs": str(tmp_path)}


@pytest.mark.parametrize(
    "lines",
    ['echo "@0000000000000000 after" >"$report"', ': >"$report"', 'echo "{}" >"$report"', 'echo null >"$report"'],
)
def test_what_a_device_says_in_place_of_a_report(tmp_path, lines):
    with runner.scratch(LocalShell(), str(tmp_path)) as folder, pytest.raises(DeviceError, match="an invalid report"):
        rounds.run([deploys.installed(lying(tmp_path, lines), tmp_path)], folder, PLAN)


def test_a_runner_that_fails_or_leaves_nothing(tmp_path):
    for line, text in (("echo why >&2; exit 3", "why"), ("true", "report")):
        with runner.scratch(LocalShell(), str(tmp_path)) as folder, pytest.raises(DeviceError) as caught:
            rounds.run([deploys.installed(lying(tmp_path, line), tmp_path)], folder, PLAN)
        assert text in caught.value.details
        assert list((tmp_path / "run").iterdir()) == []
