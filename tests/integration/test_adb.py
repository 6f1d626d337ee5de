"""Devices of adb: the real client and server, and a device of our own that has Android's shell and tools alone."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tests.support import adbd, bundles, gates, labs
from tests.support.commands import done, parsed, toolchain
from tests.support.labs import HERE, states, until
from tests.support.parts import require
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.pipeline import tune
from toolchain.shell import open_shell
from toolchain.tuning.measure import MeasurePool, Rules

QUICK = (
    "mlp",
    "--no-compare",
    "--without",
    "all",
    "--op",
    "matmul",
    "--number",
    1,
    "--repeat",
    1,
    "--min-repeat-ms",
    0,
)
WIDE = ("--least", 50, "--worst", 400, "--round-ms", 20)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory, native, tiny, bulky):  # these are built for a board type that is not in the folder
    """An adb server, a board type that is this machine over adb, and a cache with nobody else's farm."""
    folder, cache = tmp_path_factory.mktemp("lab"), labs.cache(tmp_path_factory.mktemp("cache"), native)
    labs.board_types(folder, "over adb", {"bench": labs.ours(native)})
    with adbd.server(folder / "adb") as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            **variables,
            "TOOLCHAIN_CACHE": str(cache),
            "TOOLCHAIN_BOARDS": str(folder / "boards"),
            "TOOLCHAIN_RECORDS": str(folder / "records"),
            "TOOLCHAIN_DEVICES": str(folder / "devices.toml"),
        }.items():
            patch.setenv(name, value)
        patch.delenv("ANDROID_SERIAL", raising=False)
        (folder / "devices.toml").touch()
        yield folder


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch):
    """No board rests: tests share this machine's CPUs with others, and its clock says nothing."""
    rules = Rules(slower=100.0, hot_c=1000.0)
    monkeypatch.setattr(tune, "MeasurePool", functools.partial(MeasurePool, rules=rules))


@pytest.fixture
def device(surroundings, tmp_path):
    with adbd.attached(tmp_path / "device") as device_server:
        yield device_server


@pytest.fixture
def options(device, tmp_path):
    """What every command for the device begins with."""
    return ("--board", "bench", "--host", device.host, "--root", tmp_path / "root")


@pytest.fixture(scope="module")
def pair(surroundings, tiny):
    """Two packages that differ in a name."""
    first = bundles.variant(tiny, surroundings / "first", {}, board="bench")
    return first, gates.alike(first, surroundings / "second")


def said(*arguments):
    return json.loads(done(*arguments, "--json", "-").out)


def test_a_release_is_deployed_measured_run_gated_and_taken_back(options, device, pair, tmp_path):
    first, second = pair
    report = said("deploy", first.folder, *options, "--budget", 0.1)
    assert (report["outputs"]["ok"], report["host"]["name"]) == (True, device.host)
    done("deploy", second.folder, *options, "--budget", 0)
    assert bundles.whole_release(tmp_path / "root") == second.digest
    assert said("gate", second.folder, "--base", first.folder, *options, *WIDE)["verdict"] == "pass"
    assert said("bench", *options, "--budget", 0.1)["bundle_digest"] == f"sha256:{second.digest}"
    np.savez(tmp_path / "inputs.npz", x=np.ones((3, 1, 8), np.float32))
    done("run", *options, "--input", tmp_path / "inputs.npz", "-o", tmp_path / "outputs.npz")
    assert np.load(tmp_path / "outputs.npz")["y"].shape == (3, 1, 4)
    assert said("profile", *options)["bundle_digest"] == f"sha256:{second.digest}"
    done("rollback", *options)
    assert bundles.whole_release(tmp_path / "root") == first.digest
    assert parsed("status", *options)["current"]["digest"] == first.digest


def test_a_device_is_tuned_without_a_port_and_without_a_secret_on_a_command_line(options, device):
    report = parsed("tune", *QUICK, *options, "--trials", 6, "--tuner", "evolutionary-random")
    assert report["trials"]["ok"] == 6
    services = [service for service in device.opened if "--connect" in service]
    assert services
    assert all(service.startswith("shell,v2,") for service in device.opened), "no port was forwarded"
    assert not [service for service in device.opened if re.search(r"\bkey [0-9a-f]{64}", service)]
    assert adbd.client("forward", "--list").strip() == ""


def test_a_farm_serves_it_and_finds_it_again(device, surroundings, tmp_path, monkeypatch):
    lab = tmp_path / "devices.toml"
    lab.write_text(f'[devices.phone]\nboard = "bench"\nhost = "{device.host}"\nroot = "{tmp_path}/root"\n')
    monkeypatch.setenv("TOOLCHAIN_DEVICES", str(lab))
    try:
        done("farm", "up")
        until(lambda: states() == {"phone": "free"})
        assert parsed("hardware", "--board", "bench")[0]["hardware"]["machine"] == HERE
        device.pull()
        until(lambda: states() == {"phone": "lost"})
        device.plug()
        until(lambda: states() == {"phone": "free"})
    finally:
        done("farm", "down")


def test_a_device_is_added_by_its_serial(device, surroundings, tmp_path):
    lab = tmp_path / "devices.toml"
    outcome = done("board", "add", "adb:", "--devices", lab, "--name", "phone", "--board", "bench", "--no-deploy")
    assert re.search(r"adb +adb 1?\d", outcome.out), outcome.out
    assert tomllib.loads(lab.read_text())["devices"]["phone"]["host"] == device.host
    again = parsed("board", "add", "adb:", "--devices", lab, "--no-deploy")
    assert (again["name"], again["written"]) == ("phone", False)


def test_a_phone_is_known_by_what_it_says(device, surroundings, tmp_path, monkeypatch):
    """Its store is where adb's login can write; here that is elsewhere, as there is no /data."""
    monkeypatch.delenv("TOOLCHAIN_BOARDS")
    for name, answer in {"getprop": "echo 34", "uname": "case $1 in -m) echo aarch64;; *) echo Linux;; esac"}.items():
        (device.tools / name).unlink(missing_ok=True)
        (device.tools / name).write_text(f"#!{device.tools}/sh\n{answer}\n")
        (device.tools / name).chmod(0o755)
    lab, root = tmp_path / "devices.toml", tmp_path / "root"
    report = parsed("board", "add", device.host, "--devices", lab, "--no-deploy", "--root", root, "--emulated")
    assert (report["device"]["libc"], report["device"]["libc_version"]) == ("bionic", "34")
    assert (report["board"]["triple"], report["entry"]["host"]) == ("aarch64-linux-android24", device.host)


def test_waiting_is_for_who_holds_the_lock(options, device, pair):
    done("deploy", pair[0].folder, *options, "--budget", 0)
    with open_shell(device.host) as shell, Store(shell, str(options[-1])).lock(Owner.here("hold it")):
        outcome = toolchain("bench", *options, "--budget", 0)
    assert outcome.code == 75
    assert "hold it" in outcome.err
    done("bench", *options, "--budget", 0)


# --- faults ----------------------------------------------------------------------------------------------------------


def refused(*arguments, code=4):
    outcome = toolchain(*arguments)
    assert outcome.code == code, outcome.err
    assert "Traceback" not in outcome.err
    return outcome.err


def test_a_cable_that_is_pulled_in_a_deploy_leaves_the_old_release(options, device, pair, bulky, tmp_path):
    done("deploy", pair[0].folder, *options, "--budget", 0)
    large = bundles.variant(bulky[0], tmp_path / "large", {}, board="bench")
    device.pull_after(2_000_000)
    err = refused("deploy", large.folder, *options, "--budget", 0)
    assert f"the connection to {device.host} was lost" in err
    assert "check the cable" in err
    assert bundles.whole_release(tmp_path / "root") == pair[0].digest
    device.plug()
    device.wait_until("device")
    report = said("deploy", large.folder, *options, "--budget", 0)
    assert bundles.whole_release(tmp_path / "root") == large.digest
    assert report["transfer"]["bytes_sent"] < 4_000_000, "what was there was sent again"


def on_device(root) -> list[int]:
    """Name the processes of ours on a device: programs of its store."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if str(root).encode() in labs.command(pid) and labs.runs(pid) and pid != os.getpid()]


@contextlib.contextmanager
def pulled_when(device, condition):
    """Pull the cable as soon as something is so, while a block runs."""

    def wait() -> None:
        until(lambda: condition() or over.is_set())
        device.pull()

    over = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def works_again(device, options, root) -> None:
    """Nothing of a command that lost its device is left there: no process, no lock, no folder of a run."""
    until(lambda: not on_device(root))
    device.plug()
    device.wait_until("device")
    said("bench", *options, "--budget", 0)
    assert list((root / "run").iterdir()) == []


def test_a_cable_that_is_pulled_in_a_measurement(options, device, pair, tmp_path):
    root = tmp_path / "root"
    done("deploy", pair[0].folder, *options, "--budget", 0)
    with pulled_when(device, lambda: on_device(root)):
        err = refused("bench", *options, "--budget", 60)
    assert f"the connection to {device.host} was lost" in err
    assert "check the cable" in err
    assert sum(line.startswith("error:") for line in err.splitlines()) == 1  # adb says it, too
    works_again(device, options, root)


@pytest.mark.nightly
def test_a_cable_that_is_pulled_in_a_tuning(options, device, pair, tmp_path, monkeypatch):
    root, records = tmp_path / "root", tmp_path / "records.jsonl"
    done("deploy", pair[0].folder, *options, "--budget", 0)
    rules = Rules(slower=100.0, hot_c=1000.0, patience_s=3.0, probe_s=(0.2, 0.5), open_s=5.0)
    monkeypatch.setattr(tune, "MeasurePool", functools.partial(MeasurePool, rules=rules))
    command = ("tune", *QUICK, *options, "--trials", 24, "--tuner", "evolutionary-random", "--records", records)
    with pulled_when(device, lambda: records.exists() and "samples_s" in records.read_text()):
        err = refused(*command)
    assert "adb" in err
    assert sum(line.startswith("error:") for line in err.splitlines()) == 1  # adb says it, too
    works_again(device, options, root)
    assert parsed(*command)["trials"]["ok"] >= 12


def test_a_full_device_keeps_its_release(options, device, pair, bulky, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", root], capture_output=True, check=False)
    require("a small file system", "root and a kernel that lets it mount", mounted.returncode == 0)
    try:
        large = bundles.variant(bulky[0], tmp_path / "large", {}, board="bench")
        err = refused("deploy", large.folder, *options, "--budget", 0)
        assert "space" in err
        assert not (root / "current").exists()
    finally:
        subprocess.run(["umount", "--lazy", root], check=True)


def test_a_device_that_has_not_accepted_our_key(device, options):
    device.faults.unaccepted = True
    device.pull()
    device.plug()
    device.wait_until("unauthorized")
    err = refused("status", *options)
    assert "has not accepted this computer's key" in err
    assert "accept the key on its screen" in err
    device.faults.unaccepted = False
    device.pull()
    device.plug()
    device.wait_until("device")
    done("status", *options)


def test_a_device_that_does_not_answer(device, options):
    device.faults.silent = True
    device.pull()
    device.plug()
    device.wait_until("offline")
    err = refused("status", *options)
    assert "is offline" in err
    assert f"adb disconnect {device.serial}" in err


def test_two_devices_and_no_serial(device, tmp_path):
    with adbd.attached(tmp_path / "other") as other:
        err = refused("status", "--board", "bench", "--host", "adb:")
        assert "2 devices are attached to adb, and adb: does not say which to use" in err
        assert f"{device.serial}: device" in err
        assert f"{other.serial}: device" in err


def test_no_such_device(device):
    err = refused("status", "--board", "bench", "--host", "adb:R58M123456")
    assert "adb has no device R58M123456" in err
    assert f"{device.serial}: device" in err
    err = refused("status", "--board", "bench", "--host", "adb:127.0.0.1:1")
    assert "adb connect 127.0.0.1:1" in err


def test_no_device_at_all(surroundings):
    assert "no device is attached to adb" in refused("status", "--board", "bench", "--host", "adb:")


def test_no_client(device, options, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_ADB", "no-such-adb")
    err = refused("status", *options)
    assert "no-such-adb is not installed here" in err
    assert "apt-get install adb" in err


def test_a_farm_keeps_to_the_server_of_who_started_it(device, surroundings, tmp_path, monkeypatch):
    lab = tmp_path / "devices.toml"
    lab.write_text(f'[devices.phone]\nboard = "bench"\nhost = "{device.host}"\nroot = "{tmp_path}/root"\n')
    monkeypatch.setenv("TOOLCHAIN_DEVICES", str(lab))
    (tmp_path / "adb").symlink_to(adbd.ADB)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("TOOLCHAIN_ADB", "./adb")  # the daemon is elsewhere
        done("farm", "up")
    try:
        until(lambda: states() == {"phone": "free"})
        monkeypatch.setenv("ADB_SERVER_SOCKET", "tcp:192.0.2.1:x")
        err = refused("farm", "up", code=2)
        assert "phone belongs to the adb server at tcp:192.0.2.1:x, but this farm uses the one at tcp:localhost:" in err
        assert "farm down" in err
        assert states() == {"phone": "free"}
        assert "server cannot be reached" in refused("hardware", "--board", "bench", "--host", device.host)
    finally:
        done("farm", "down")


def test_no_server(device, options, monkeypatch):
    monkeypatch.setenv("ADB_SERVER_SOCKET", "tcp:192.0.2.1:x")
    err = refused("status", *options)
    assert "the adb server cannot be reached or started" in err
    assert "adb start-server" in err


def test_what_is_no_serial_is_no_option(surroundings):
    assert "is not a valid adb address" in refused("status", "--board", "bench", "--host", "adb:-d", code=2)


@pytest.mark.parametrize("options", [("-i", "key"), ("--known-hosts", "hosts"), ("--ssh-config", "config")])
@pytest.mark.parametrize("command", [("status",), ("tune", *QUICK)])
def test_options_of_ssh_are_refused(device, options, command, tmp_path):
    (tmp_path / options[1]).touch()
    given_options = (options[0], tmp_path / options[1])
    err = refused(*command, "--board", "bench", "--host", device.host, *given_options, code=2)
    assert "do not apply" in err
