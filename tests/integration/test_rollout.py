"""Roll-outs to real devices over SSH: they stop where they should, and go on, whatever was killed meanwhile.

TOOLCHAIN_ROLLOUT is the number of devices of the campaign, 0 by default, which leaves it out: a few of them do then.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter

import pytest

from tests.support import bundles, deploy_client, fleets
from tests.support.commands import toolchain
from tests.support.fleets import Faults, Fleet

COUNT = int(os.environ.get("TOOLCHAIN_ROLLOUT", "0"))
KINDS = {
    "unreachable": 4,
    "full": 4,
    "wrong machine": 5,
    "wrong output": 5,
    "unhealthy": 5,
    "host key": 5,
    "busy": 75,
}
NAMES = {kind: f"d0{place}-{kind.replace(' ', '-')}" for place, kind in enumerate(KINDS, 1)}


@pytest.fixture(scope="module")
def packages(tiny_for_ssh, tmp_path_factory):
    """The release that devices have, and the one that is rolled out."""
    folder = tmp_path_factory.mktemp("packages")
    return tiny_for_ssh, bundles.reweighted(tiny_for_ssh, folder / "new", seed=11)


@pytest.fixture
def fleet(tmp_path):
    """Three devices that are well."""
    with fleets.running(tmp_path / "fleet", 3) as (fleet, server):
        yield fleet, server


def rolled_out(fleet: Fleet, made, *words, code=0):
    """Run the command; return its report."""
    fixed = ["--fleet", fleet.path, "--state", fleet.folder / "rollout.json", "--budget", 0]
    seen = toolchain("rollout", made.folder, *fixed, *words, "--json", "-")
    assert seen.code == code, seen.err
    return json.loads(seen.out)


def by_name(report):
    return {one["name"]: one for one in report["devices"]}


def test_failures_by_kind_a_stop_and_the_rest(packages, tmp_path, program):
    """One device of each kind fails: each is named with its exit code, keeps its release, and is tried again alone."""
    old, new = packages
    with contextlib.ExitStack() as stack:
        fleet, server = stack.enter_context(fleets.running(tmp_path / "fleet", 1))
        faults = Faults(fleet, server, None, stack)
        for kind, name in NAMES.items():
            deploy_client.plain_deploy(old, program, fleet.root(name))
            faults.add(kind, name)
        fleet.add("d99", server)
        fleet.write()
        words = ("--waves", "1,8,100%", "--parallel", 4, "--wait", 0)
        report = rolled_out(fleet, new, *words, "--stop-after", 7, code=5)
        found = by_name(report)
        assert {kind: found[name]["exit_code"] for kind, name in NAMES.items()} == KINDS
        assert {kind: found[name]["kind"] for kind, name in NAMES.items()} == {kind: kind for kind in KINDS}
        assert all(found[name]["error"] and found[name]["hint"] for name in NAMES.values())
        assert [found[name]["state"] for name in ("d00", "d99")] == ["done", "waiting"]
        assert {bundles.whole_release(fleet.root(name)) for name in NAMES.values()} == {old.digest}
        faults.mend()
        report = rolled_out(fleet, new, *words)
    assert {one["state"] for one in report["devices"]} == {"done"}
    for name in fleet.entries:
        assert bundles.whole_release(fleet.root(name)) == new.digest
        assert fleet.generations(name) == [*([old.digest] if name in NAMES.values() else []), new.digest]


def test_a_group_is_taken_back_by_the_devices_own_way(fleet, packages, tmp_path):
    devices, _server = fleet
    old, new = packages
    devices.write()
    rolled_out(devices, old, "--waves", "100%")
    devices.entries["d02"] += 'run = { restart = "true", health = "false", within = "1s" }\n'
    devices.write()
    words = ("--waves", "1,100%", "--parallel", 1, "--roll-back")
    report = rolled_out(devices, new, *words, "--fresh", "--html", tmp_path / "page.html", code=5)
    assert [one["state"] for one in report["devices"]] == ["done", "returned", "failed"]
    assert [bundles.whole_release(devices.root(name)) for name in devices.entries] == [
        new.digest,
        old.digest,
        old.digest,
    ]
    assert "1 device(s) were taken back" in report["stopped"]
    assert "taken back" in (tmp_path / "page.html").read_text()


def test_a_device_that_is_too_slow_goes_back_at_once(fleet, packages):
    devices, _server = fleet
    old, new = packages
    devices.write()
    rolled_out(devices, old, "--waves", "100%")
    devices.types.append("latency_ms = 1e-6")
    devices.write()
    report = rolled_out(devices, new, "--waves", "1,100%", "--fresh", code=6)
    first = report["devices"][0]
    assert (first["state"], first["kind"], first["exit_code"]) == ("failed", "slow", 6)
    assert first["after"] == first["before"] == f"sha256:{old.digest}"
    assert "is current again" in first["error"]
    assert bundles.whole_release(devices.root("d00")) == old.digest


def test_a_changed_package_and_a_changed_fleet_are_refused_by_name(fleet, packages):
    devices, server = fleet
    old, new = packages
    devices.write()
    rolled_out(devices, old, "--waves", "100%")
    assert "another package" in rolled_out(devices, new, "--waves", "100%", code=2)["error"]["message"]
    devices.add("d03", server)
    devices.write()
    said = rolled_out(devices, old, "--waves", "100%", code=2)["error"]
    assert "other devices" in said["message"]
    assert "1 new, such as d03" in said["details"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_in_good_order(fleet, packages, number, tmp_path):
    devices, _server = fleet
    _old, new = packages
    devices.write()
    process = start(devices, new, "--waves", "100%", "--parallel", 2)
    until_at_work(devices, process)
    process.send_signal(number)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert [path.name for path in tmp_path.rglob("toolchain-*")] == []
    assert_finishes(devices, None, new)


def test_killed_at_any_point_it_goes_on(fleet, packages, program):
    devices, _server = fleet
    old, new = packages
    devices.write()
    for name in devices.entries:
        deploy_client.plain_deploy(old, program, devices.root(name))
    stream = random.Random(4)  # noqa: S311 - seeded, so that a failure comes again
    for _ in range(2):
        killed(devices, new, stream.uniform(0.2, 2.5), "--waves", "1,100%", "--parallel", 2)
        assert {bundles.whole_release(devices.root(name)) for name in devices.entries} <= {old.digest, new.digest}
    assert_finishes(devices, old, new, "--waves", "1,100%")


def start(fleet: Fleet, made, *words) -> subprocess.Popen[str]:
    fixed = (made.folder, "--fleet", fleet.path, "--state", fleet.folder / "rollout.json", "--budget", 0)
    return fleets.started(fleet.folder, *fixed, *words)


def until_at_work(fleet: Fleet, process: subprocess.Popen[str]) -> None:
    """Wait until some device is in flight."""
    path, deadline = fleet.folder / "rollout.json", time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and '"running"' in path.read_text():
            return
        time.sleep(0.01)


def killed(fleet: Fleet, made, after_s: float, *words) -> str:
    """Kill a roll-out some seconds after the first device is in flight; return what it said."""
    process = start(fleet, made, *words)
    until_at_work(fleet, process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    process.kill()
    return process.communicate()[1]


def assert_finishes(fleet: Fleet, old, new, *words) -> None:
    """The next run brings every device to the new release, and makes it current on each exactly once."""
    report = rolled_out(fleet, new, *(words or ("--waves", "100%")))
    assert Counter(one["state"] for one in report["devices"]) == {"done": len(fleet.entries)}
    for name in fleet.entries:
        assert bundles.whole_release(fleet.root(name)) == new.digest
        assert fleet.generations(name) == [*([old.digest] if old else []), new.digest]
