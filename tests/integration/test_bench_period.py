"""`bench --period`: real runs at a rate on this machine, with a load that never outlives them.

No assertion is about how fast a run is: this machine may be busy.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import done
from toolchain.device import runner, verification

USAGE, RIGHTS = 2, 9
PATIENCE_S = 60.0
TOOLCHAIN = [sys.executable, "-c", "from toolchain import cli; cli.main()"]


@pytest.fixture(scope="module")
def root(tiny, program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("device") / "root"
    done("deploy", tiny.folder, "--root", folder, "--budget", 0)
    return folder


def processes(command_line: str) -> list[int]:
    """The processes of this machine whose command line has some words."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if command_line in line and state != "Z":
            pids.append(int(folder.name))
    return pids


def until(holds) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def bench(root: Path, *arguments: object) -> list[str]:
    argv = [*TOOLCHAIN, "bench", "--root", root, "--budget", "0", *arguments]
    return list(map(str, argv))


# --- the command ---


def test_a_rate_beside_a_load(root, tmp_path):
    options = ["--period", "10ms", "--for", "1s", "--deadline", "1s", "--load", "cpu", "--html", tmp_path / "page.html"]
    outcome = done("bench", "--root", root, "--budget", 0, *options, "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    periodic = report["periodic"]
    assert (periodic["period_ms"], periodic["stopped"], periodic["fifo"]) == (10.0, False, False)
    assert periodic["runs"] + periodic["not_started"] == 100
    assert periodic["load"] == {"kind": "cpu", "processes": len(os.sched_getaffinity(0))}
    assert sum(count for piece in periodic["slices"]["latency_ms"] for _low, _high, count in piece) == periodic["runs"]
    assert 0 < periodic["run_ms"]["max"] <= periodic["latency_ms"]["max"]
    assert periodic["ratio"] > 0
    slowest = [outlier["latency_ms"] for outlier in periodic["outliers"]]
    assert slowest == sorted(slowest, reverse=True)
    assert slowest[0] == periodic["latency_ms"]["max"]
    assert len(report["latency_ms"]["samples"]) >= 3  # back to back, in the same session
    assert "one each 10 ms beside" in (tmp_path / "page.html").read_text()
    assert "running every 10 ms for 1 s" in outcome.err
    assert processes(str(root)) == []


def test_a_model_that_does_not_keep_up_is_reported(root):
    report = json.loads(done("bench", "--root", root, "--budget", 0, "--period", "100us", "--for", "300ms",
                             "--load", "memory", "--json", "-").out)  # fmt: skip
    periodic = report["periodic"]
    assert periodic["runs"] + periodic["not_started"] == 3000
    assert (periodic["missed"] > 0) == any("missed the deadline" in text for text in report["warnings"])


@pytest.fixture
def running(root, tmp_path):
    """A command that runs a model at a rate for an hour, and its report's path."""
    report, log = tmp_path / "report.json", tmp_path / "log"
    argv = bench(root, "--period", "20ms", "--for", "1h", "--load", "cpu", "--json", report)
    with log.open("wb") as stream:
        command = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=stream, start_new_session=True)
    try:
        until(lambda: command.poll() is not None or "running every 20 ms" in log.read_text())
        assert command.poll() is None, log.read_text()
        assert len(processes(str(root))) > 1
        yield command, report, log
    finally:
        command.kill()
        command.wait()


def test_ctrl_c_gives_the_result_so_far(root, running):
    command, path, log = running
    command.send_signal(signal.SIGINT)
    assert command.wait(PATIENCE_S) == 0, log.read_text()
    report = json.loads(path.read_text())
    assert report["periodic"]["stopped"]
    assert report["periodic"]["elapsed_s"] < 3600
    assert any("ended early" in text for text in report["warnings"])
    assert processes(str(root)) == []


def test_nothing_stays_on_the_device_after_a_kill(root, running):
    """As when a connection drops: the device sees no more than the end of its input."""
    command, _report, _log = running
    command.kill()
    command.wait()
    until(lambda: processes(f"{root}/runners") == [])


# --- the runner ---


@pytest.fixture
def argv(tiny, program, tmp_path):
    verified = verification.samples_of(tiny).inputs
    runner.tensors.save(tmp_path / runner.INPUTS, verified)
    folders = {"runners": str(program.path.parent), "inputs": str(tmp_path)}
    plan = runner.Plan(budget_s=0.0, max_runs=3)
    return runner.command(folders, str(tiny.folder), str(tmp_path), plan, threads=1)


@pytest.mark.parametrize("load", ["cpu", "memory", "io"])
def test_a_load_ends_with_the_runner_however_it_ends(argv, tmp_path, load):
    with subprocess.Popen([*argv, "--period-us", "5000", "--attended", "--load", load],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        while not process.stdout.readline().startswith("periodic 1"):
            pass
        assert len(processes(str(tmp_path))) == 1 + (1 if load == "io" else len(os.sched_getaffinity(0)))
        process.kill()
    until(lambda: processes(str(tmp_path)) == [])
    assert not list(tmp_path.glob("load.*"))


def test_the_end_of_the_input_ends_the_runs(argv, tmp_path):
    with subprocess.Popen([*argv, "--period-us", "60000000", "--attended"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout.readline() == "periodic 0 0 0\n"
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
    assert json.loads((tmp_path / "report").read_text())["periodic"]["stopped"]


def without_rights() -> None:
    """Take from a process what a login without rights lacks."""
    libc = ctypes.CDLL(None)
    drop_from_bounding_set, ipc_lock, sys_nice = 24, 14, 23
    for capability in (ipc_lock, sys_nice):
        libc.prctl(drop_from_bounding_set, capability, 0, 0, 0)  # fails for a login that lacks them anyway
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))


@pytest.mark.parametrize(("flag", "message"), [("--fifo", "no real-time priority"), ("--mlock", "cannot be locked")])
def test_rights_that_are_missing_are_named(argv, flag, message):
    completed = subprocess.run([*argv, "--period-us", "1000", "--for-ms", "10", flag],
                          check=False, capture_output=True, text=True, preexec_fn=without_rights)  # fmt: skip
    assert completed.returncode == RIGHTS
    assert message in completed.stderr


def test_memory_is_locked(argv, tmp_path):
    completed = subprocess.run([*argv, "--period-us", "1000", "--for-ms", "10", "--mlock"],
                          check=False, capture_output=True, text=True)  # fmt: skip
    assert completed.returncode in {0, RIGHTS}, completed.stderr  # a login without rights has another limit
    if completed.returncode == 0:
        assert json.loads((tmp_path / "report").read_text())["periodic"]["runs"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--load", "cpu"], "need --period-us"),
        (["--period-us", "0"], "from 100 to"),
        (["--period-us", "1000", "--load", "gpu"], "cpu, memory or io"),
        (["--period-us", "1000", "--for-ms", "0"], "from 1 to"),
    ],
)
def test_wrong_options_of_the_runner(argv, options, message):
    completed = subprocess.run([*argv, *options], check=False, capture_output=True, text=True)
    assert (completed.returncode, message in completed.stderr) == (USAGE, True), completed.stderr


def test_conditions_are_read_beside_the_slowest_runs(argv, tmp_path):
    """From a tree of files that stands in for the kernel's."""
    cpu = tmp_path / "sys/devices/system/cpu/cpu0"
    fan = tmp_path / "sys/class/thermal/cooling_device0"
    for path, text in (
        (cpu / "cpufreq/scaling_cur_freq", "1500000"), (cpu / "cpufreq/scaling_governor", "schedutil"),
        (cpu / "thermal_throttle/core_throttle_count", "4"), (fan / "cur_state", "2"), (fan / "type", "Processor"),
    ):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    subprocess.run([*argv, "--period-us", "20000", "--for-ms", "300", "--sysfs", tmp_path / "sys"], check=True)
    periodic = json.loads((tmp_path / "report").read_text())["periodic"]
    expected = {"khz": [1500000], "governors": ["schedutil"], "throttles": 4, "cooling": ["2 Processor"]}
    assert periodic["before"] == periodic["after"] == expected
    assert all(outlier["conditions"] in (expected, None) for outlier in periodic["outliers"])
