"""Roll-outs to real devices over SSH: they stop where they should, and go on, whatever was killed meanwhile.

TOOLCHAIN_ROLLOUT is the number of devices of the campaign, 10 by default. It is killed once for every six of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter

import pytest

from tests.support import bundles, deploy_client, device_states, fleets, hostile_sshd
from tests.support.commands import toolchain
from tests.support.device_states import Device
from tests.support.fleets import Faults, Fleet
from tests.support.stores import soon
from toolchain.errors import RegressionError

COUNT = int(os.environ.get("TOOLCHAIN_ROLLOUT", "10"))
KINDS = {
    "unreachable": 4,
    "full": 4,
    "wrong machine": 5,
    "wrong output": 5,
    "unhealthy": 5,
    "host key": 5,
    "busy": 75,
}


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


def rolled_out(fleet: Fleet, release, *arguments, code=0):
    """Run the command, which ends with this code, or one of these; return its report."""
    fixed = ["--fleet", fleet.path, "--state", fleet.folder / "rollout.json", "--budget", 0]
    outcome = toolchain("rollout", release.folder, *fixed, *arguments, "--json", "-")
    assert outcome.code in ({code} if isinstance(code, int) else code), outcome.err
    return json.loads(outcome.out)


def test_a_group_is_taken_back_by_the_devices_own_way_also_after_a_kill(fleet, packages, tmp_path):
    devices, _server = fleet
    old, new = packages
    devices.write()
    rolled_out(devices, old, "--waves", "100%")
    devices.entries["d02"] += 'run = { restart = "true", health = "false", within = "1s" }\n'
    devices.write()
    options = ("--waves", "1,100%", "--parallel", 1, "--roll-back")
    with start(devices, new, *options, "--fresh") as process:
        until(process, "rolling 1 device(s) back")
        process.kill()
    assert bundles.whole_release(devices.root("d01")) in {old.digest, new.digest}
    report = rolled_out(devices, new, *options, "--wait", 10, "--html", tmp_path / "page.html", code=5)
    assert [device["state"] for device in report["devices"]] == ["done", "returned", "failed"]
    assert [bundles.whole_release(devices.root(name)) for name in devices.entries] == [
        new.digest,
        old.digest,
        old.digest,
    ]
    assert "an earlier run stopped" in report["stopped"]
    assert "1 device(s) were rolled back" in report["stopped"]
    assert "Rolled back" in (tmp_path / "page.html").read_text()


def test_a_slot_is_rolled_out_beside_what_devices_run(fleet, packages):
    devices, _server = fleet
    old, new = packages
    devices.write()
    rolled_out(devices, old, "--waves", "100%")
    report = rolled_out(devices, new, "--waves", "100%", "--slot", "detector", "--fresh")
    assert (report["slot"], [device["before"] for device in report["devices"]]) == ("detector", [""] * 3)
    for name in devices.entries:
        assert bundles.whole_release(devices.root(name)) == old.digest
        assert bundles.whole_release(devices.root(name) / "slots" / "detector") == new.digest
    command = ("--fleet", devices.path, "--state", devices.folder / "rollout.json", "--waves", "100%")
    assert "slot: slot detector, and now no slot" in toolchain("rollout", new.folder, *command).err
    command = ("affected", "pkg:pypi/apache-tvm", "--fleet", devices.path, "--releases", new.folder, "--json")
    answer = json.loads(toolchain(*command).out)
    assert [(device["state"], device["digest"]) for device in answer["devices"]] == [("affected", new.digest)] * 3


def test_devices_whose_releases_contain_a_component(fleet, packages, tmp_path):
    devices, _server = fleet
    old, new = packages
    devices.write()
    rolled_out(devices, old, "--waves", "100%")
    devices.entries["d01"] = f'board = "{fleets.BOARD}"\nhost = "127.0.0.1:1"\n'
    devices.write()
    command = ("affected", "pkg:pypi/apache-tvm", "--fleet", devices.path, "--releases")
    for release, state in ((old, "affected"), (new, "unknown")):
        outcome = toolchain(*command, release.folder, "--json")
        assert outcome.code == 0, outcome.err
        answer = json.loads(outcome.out)
        assert [entry["product"]["digest"] for entry in answer["releases"]] == [release.digest]
        assert [device["state"] for device in answer["devices"]] == [state, "unreachable", state]
    vex = tmp_path / "vex.json"
    table = toolchain(*command, old.folder, "--vex", vex).out
    assert json.loads(vex.read_text())["vulnerabilities"][0]["analysis"]["state"] == "in_triage"
    again = toolchain(*command, old.folder, "--vex", vex)
    assert (again.code, "is not replaced" in again.err) == (2, True)
    assert "d01" in table
    assert "1 of 1 releases contain it" in table


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


def test_a_device_that_is_too_slow_goes_back_also_after_an_interruption(tiny, tmp_path):
    """It was interrupted while it was measured, with the new release current."""
    new = bundles.reweighted(tiny, tmp_path / "new", seed=11)
    device = Device(tmp_path / "device", tmp_path, {"old": tiny.folder, "new": new.folder}, {})
    for name in ("old", "new"):
        device_states.deploy(device, name)
    with pytest.raises(RegressionError, match="is current again"):
        device_states.roll_out(device, "new", before=tiny.digest)
    assert bundles.whole_release(device.root) == tiny.digest


def chatter(channel) -> None:
    """Answer any command with words without an end, as no device does."""
    while channel.send(b"machine=x86_64\\nroot=/\\x1b]0;pwned\\x07" * 1000):
        pass


def test_what_one_device_answers_hurts_no_other(fleet, packages, tmp_path):
    devices, server = fleet
    _old, new = packages
    with hostile_sshd.running(tmp_path, chatter) as (address, _options):
        host, _, port = address.rpartition("@")[2].partition(":")
        config = tmp_path / "config"
        host_options = f"UserKnownHostsFile {tmp_path / 'known'}\n  GlobalKnownHostsFile none"
        config.write_text(f"Host board\n  HostName {host}\n  Port {port}\n  User me\n  {host_options}\n")
        devices.add("a-hostile-one", dataclasses.replace(server, config=config))
        devices.write()
        report = rolled_out(devices, new, "--waves", "100%", "--stop-after", 2, code=4)
    devices_by_name = {device["name"]: device for device in report["devices"]}
    assert devices_by_name.pop("a-hostile-one")["kind"] == "device"
    assert {device["state"] for device in devices_by_name.values()} == {"done"}
    assert "\x1b" not in (devices.folder / "rollout.json").read_text()


def test_a_changed_package_and_a_changed_fleet_are_refused_by_name(fleet, packages):
    devices, server = fleet
    old, new = packages
    devices.write()
    rolled_out(devices, old, "--waves", "100%")
    assert "another package" in rolled_out(devices, new, "--waves", "100%", code=2)["error"]["message"]
    devices.add("d03", server)
    devices.write()
    error = rolled_out(devices, old, "--waves", "100%", code=2)["error"]
    assert "other devices" in error["message"]
    assert "1 new, such as d03" in error["details"]


@pytest.fixture
def small(tmp_path):
    """A small file system; None where none can be mounted."""
    point = tmp_path / "small"
    point.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", point], capture_output=True, check=False
    )
    if mounted is False or mounted.returncode != 0:
        yield None
        return
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


def test_it_is_killed_stops_and_goes_on(packages, program, tmp_path, small, capsys):
    """Many devices, one of each kind of failure in the last group: after each run all of them are looked at."""
    old, new = packages
    with contextlib.ExitStack() as stack:
        fleet, server = stack.enter_context(fleets.running(tmp_path / "fleet", 0))
        faults, ill = Faults(fleet, server, small, stack), places(COUNT)
        for position in range(COUNT):
            if kind := ill.get(f"d{position:02}"):
                faults.add(kind, f"d{position:02}")
            else:
                fleet.add(f"d{position:02}", server)
            deploy_client.plain_deploy(old, program, fleet.root(f"d{position:02}"))
        faults.begin()
        fleet.write()
        campaign = Campaign(fleet, ill, old.digest, new)
        campaign.kill_and_go_on(COUNT // 6)
        campaign.stop_and_go_on()
        faults.mend()
        report = campaign.run("--stop-after", 1, code=0)
    assert Counter(device["state"] for device in report["devices"]) == {"done": COUNT}
    assert {device["before"] for device in report["devices"]} == {f"sha256:{old.digest}"}
    with capsys.disabled():
        print("\n" + "\n".join(campaign.told))  # noqa: T201 - the figures that are asked for


def places(count: int) -> dict[str, str]:
    """Spread a device of each kind of failure over the last group of a fleet."""
    first, kinds = max(1, count // 10), list(KINDS)
    apart = (count - first) // len(kinds)
    return {f"d{first + apart * number + apart - 1:02}": kind for number, kind in enumerate(kinds)}


def test_an_interrupt_ends_in_good_order(fleet, packages, tmp_path):
    devices, _server = fleet
    _old, new = packages
    devices.write()
    process = start(devices, new, "--waves", "100%", "--parallel", 2)
    until(process, "group ")
    assert soon(lambda: '"running"' in (devices.folder / "rollout.json").read_text(), 30)
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert [path.name for path in tmp_path.rglob("toolchain-*")] == []
    assert_finishes(devices, None, new)


def start(fleet: Fleet, release, *arguments) -> subprocess.Popen[str]:
    fixed = (release.folder, "--fleet", fleet.path, "--state", fleet.folder / "rollout.json", "--budget", 0)
    return fleets.started(fleet.folder, *fixed, *arguments)


def until(process: subprocess.Popen[str], text: str) -> None:
    """Wait until a roll-out says a line that begins so."""
    while (line := process.stderr.readline()) and not line.startswith(text):
        pass


def killed(fleet: Fleet, release, after_s: float, *arguments) -> None:
    """Kill a roll-out some seconds after it began with a group."""
    with start(fleet, release, *arguments) as process:
        until(process, "group ")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=after_s)
        process.kill()


def assert_finishes(fleet: Fleet, old, new, *arguments) -> None:
    """The next run brings every device to the new release, and makes it current on each exactly once."""
    report = rolled_out(fleet, new, *(arguments or ("--waves", "100%")))
    assert Counter(device["state"] for device in report["devices"]) == {"done": len(fleet.entries)}
    for name in fleet.entries:
        assert bundles.whole_release(fleet.root(name)) == new.digest
        assert fleet.generations(name) == [*([old.digest] if old else []), new.digest]


class Campaign:
    """A roll-out that is killed, stops and goes on; after each run every device is looked at."""

    def __init__(self, fleet: Fleet, ill: dict[str, str], old: str, new) -> None:
        self.fleet, self.ill, self.old, self.new = fleet, ill, old, new
        self.told: list[str] = []
        self.words = ("--waves", "1,10%,100%", "--parallel", 8, "--wait", 5)

    def run(self, *arguments, code):
        began, before = time.monotonic(), self.done()
        report = rolled_out(self.fleet, self.new, *self.words, *arguments, code=code)
        self.look(f"{' '.join(map(str, arguments))}: {time.monotonic() - began:.1f} s", before)
        return report

    def kill_and_go_on(self, times: int) -> None:
        """Kill it at random moments."""
        stream = random.Random(7)  # noqa: S311 - seeded, so that a failure comes again
        for _ in range(times):
            after, before = stream.uniform(0.3, COUNT / 5), self.done()
            killed(self.fleet, self.new, after, *self.words, "--stop-after", 8)
            self.look(f"SIGKILL {after:.1f} s after it began", before)

    def stop_and_go_on(self) -> None:
        """Let it stop with the first failure; then allow for all, and see that each is named with its exit code."""
        report = self.run("--stop-after", 1, code={4, 5, 75})
        assert 1 <= sum(device["state"] == "failed" for device in report["devices"]) <= len(KINDS)
        report = self.run("--stop-after", 8, code=5)
        failed = {device["name"]: device for device in report["devices"] if device["state"] == "failed"}
        assert {name: failure["kind"] for name, failure in failed.items()} == self.ill
        assert {failure["kind"]: failure["exit_code"] for failure in failed.values()} == KINDS
        assert all(failure["error"] and failure["hint"] for failure in failed.values())
        assert {failure["after"] for failure in failed.values()} <= {None, f"sha256:{self.old}"}
        assert sum(device["state"] == "done" for device in report["devices"]) == COUNT - len(KINDS)

    def done(self) -> dict[str, str]:
        """Return what the state says of each device that is done."""
        path = self.fleet.folder / "rollout.json"
        devices = json.loads(path.read_text())["devices"] if path.exists() else {}
        return {name: device for name, device in devices.items() if device["state"] == "done"}

    def look(self, moment: str, before: dict[str, str]) -> None:
        """See that no device is neither old nor new, that none was made current twice, and that done ones were left."""
        devices = json.loads((self.fleet.folder / "rollout.json").read_text())["devices"]
        assert {name: devices[name] for name in before} == before
        releases = {name: bundles.whole_release(self.fleet.root(name)) for name in self.fleet.entries}
        assert set(releases.values()) <= {self.old, self.new.digest}
        for name, digest in releases.items():
            generations = self.fleet.generations(
                name
            )  # one that was tried, or was killed before the switch, leaves its number
            assert generations in ([self.old], [self.old, self.new.digest])
            assert digest == generations[-1] or devices[name]["state"] != "done"
            assert digest == self.new.digest or devices[name]["state"] != "done"
        states = Counter(device["state"] for device in devices.values())
        new = sum(digest == self.new.digest for digest in releases.values())
        self.told.append(f"{moment}; {dict(states)}, {new} run the new release, {len(releases) - new} the old one")
