"""The tuning commands as people call them: on this machine, over SSH, on the farm, and behind somebody's tracker."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_measure import python_process, tracker
from tests.support import labs, nets, sshd
from tests.support.commands import Outcome, toolchain
from tests.support.labs import HERE, Lab, board_servers, daemon, listeners, states, until
from toolchain.pipeline import tune
from toolchain.records import traces
from toolchain.tuning.measure import MeasurePool, Rules

TRIALS = 24
UNPRUNED = {"pruned": {}, "pruned_by": ""}
OPTIONS = ("--number", 1, "--repeat", 1, "--min-repeat-ms", 0)
QUICK = ("mlp", "--without", "all", "--op", "matmul", *OPTIONS, "--tuner", "evolutionary-random", "--no-compare")
TASKS = 3  # what `--op matmul` finds in mlp


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch):
    """No board rests: tests share this machine's CPUs with others, and its clock says nothing."""
    rules = Rules(slower=100.0, hot_c=1000.0, unsteady=1e9, waited=1e9)
    monkeypatch.setattr(tune, "MeasurePool", functools.partial(MeasurePool, rules=rules))


def done(*arguments: object) -> Outcome:
    outcome = toolchain(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def tuned(*arguments: object) -> dict:
    return json.loads(done("tune", *QUICK, *arguments, "--json").out)


def names(report: dict) -> dict[str, int]:
    return {board["name"]: board["trials"] for board in report["boards"]}


# --- this machine ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A tuned model: where everything is, and the report."""

    folder: Path
    report: dict

    @property
    def records(self) -> Path:
        return self.folder / "R.jsonl"

    @property
    def words(self) -> tuple[object, ...]:
        return ("--trials", TRIALS, "--records", self.records, "--root", self.folder / "root")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    with contextlib.chdir(folder):
        report = tuned("--trials", TRIALS, "--records", "R.jsonl", "--html", "page.html", "--root", folder / "root")
        started = {path.name for path in folder.iterdir()}
        assert started == {"R.jsonl", ".R.jsonl.lock", "page.html", "root"}, "and nothing else"
    return Tuned(folder, report)


def counted(report) -> dict:
    """Return what a report says of its trials; on a machine that others use, a sample may be doubted: it counts."""
    counts = {**report["trials"], "failed": dict(report["trials"]["failed"])}
    counts["ok"] += counts["failed"].pop("suspicious", 0)
    return counts


def test_a_report_tells_all(here):
    report = here.report
    assert counted(report) == {
        "total": TRIALS,
        "planned": TRIALS,
        "ended": "",
        "resumed": 0,
        "ok": TRIALS,
        "failed": {},
        **UNPRUNED,
    }
    assert (report["model"], report["board"], report["emulated"]) == ("mlp", "local", False)
    assert [task["operator"] for task in report["tasks"]] == ["matmul"] * TASKS
    assert sum(task["trials"] for task in report["tasks"]) == TRIALS
    assert names(report) == {"local": TRIALS}
    assert set(report["shares_s"]) == {"search", "build", "run", "finals"}
    assert {task["verdict"] for task in report["tasks"]} <= {"faster", "untuned"}
    assert all(task["best_s"] <= task["untuned_s"] for task in report["tasks"])
    assert all(value > 0 for value in report["shares_s"].values())
    assert sum(report["shares_s"].values()) <= report["seconds"]
    estimates = [point["estimated_s"] for point in report["points"]]
    assert estimates == sorted(estimates, reverse=True)
    assert report["estimated_s"] == pytest.approx(sum(task["best_s"] * task["weight"] for task in report["tasks"]))
    assert "<svg" in (here.folder / "page.html").read_text()


def test_a_report_shows_how_near_each_kernel_is_to_the_peak(here):
    peak = here.report["peak"]
    assert here.report["no_peak"] == ""
    assert min(peak["gflops"], peak["gbytes_s"]) > 0.01
    for task in here.report["tasks"]:
        assert task["limit_s"] == pytest.approx(task["of_limit"] * task["best_s"])
        assert task["of_limit"] > 0
        assert task["bound"] in {"compute", "memory", "neither"}
    assert "Of limit" in (here.folder / "page.html").read_text()


def test_the_same_command_measures_nothing_again(here):
    before = here.records.read_bytes()
    outcome = done("tune", *QUICK, *here.words, "--json")
    report = json.loads(outcome.out)
    assert counted(report) == {
        "total": TRIALS,
        "planned": TRIALS,
        "ended": "",
        "resumed": TRIALS,
        "ok": TRIALS,
        "failed": {},
        **UNPRUNED,
    }
    assert names(report) == {"local": 0}
    assert here.records.read_bytes() == before
    assert report["estimated_s"] == here.report["estimated_s"]
    outcome = done("tune", *QUICK, *here.words)
    assert f"{TRIALS} of them from an earlier part of the run" in outcome.out
    assert f"{TRIALS} trials of this run are in {here.records}\n" in outcome.err, "and there is nothing to go on with"


@pytest.mark.nightly  # test_tuning_resume.py does the same with boards that are a formula
def test_more_trials_go_on_from_there(here, tmp_path):
    records = tmp_path / "R.jsonl"
    records.write_bytes(here.records.read_bytes())
    report = tuned("--trials", TRIALS + 4, "--records", records, "--root", tmp_path / "root")
    assert (report["trials"]["total"], report["trials"]["resumed"]) == (TRIALS + 4, TRIALS)
    assert names(report) == {"local": 4}
    assert records.read_bytes().startswith(here.records.read_bytes())


def test_build_applies_the_winners_alone(here, tmp_path):
    won = sum(task["verdict"] == "faster" for task in here.report["tasks"])
    outcome = done("build", "mlp", "--without", "all", "--records", here.records, "-o", tmp_path / "bundle", "--json")
    tuned_records = json.loads(outcome.out)["manifest"]["records"]
    assert tuned_records["tuned"] == won
    assert f"{won} of 5" in outcome.err


def let_another_win(records: Path, which=lambda line: line["index"]) -> None:
    """Let a trial of each kernel win its final, its last one by default: on a busy machine none may be faster."""
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    trials = [line for line in lines if line["kind"] == "trial" and line["samples_s"]]
    finals = {line["workload"]: line["among"] for line in trials if "among" in line}
    tuned = [line for line in trials if line["trace"] != json.dumps(traces.DEFAULT) and "among" not in line]
    others = {line["workload"]: line for line in sorted(tuned, key=which)}
    won = (
        {**line, "verdict": "faster", "base_s": line["samples_s"], "among": finals[name]}
        for name, line in others.items()
    )
    with records.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in won)


def test_compare_tells_the_ratio(here, tmp_path):
    records = Path(shutil.copy(here.records, tmp_path))
    let_another_win(records)
    options = ("--records", records, "--budget", 1, "--json", "--root", here.folder / "root")
    outcome = done("compare", "mlp", "--without", "all", *options)
    report = json.loads(outcome.out)
    low, high = report["ratio"]["ci99"]
    assert 0 < low <= report["ratio"]["value"] <= high
    assert report["verdict"] == ("faster" if low > 1 else "slower" if high < 1 else "")
    assert report["difference"]["ok"] is True
    assert (report["tuned"], report["tasks"], report["emulated"]) == (TASKS, 5, False)
    assert len(report["first"]["samples"]) >= 12
    assert report["shipped"] == 0


def test_what_is_tuned_for_some_threads_is_for_them_alone(here, tmp_path):
    records = Path(shutil.copy(here.records, tmp_path))
    let_another_win(records)
    built = ("build", "mlp", "--without", "all", "--records", records, "-o", tmp_path / "bundle")
    if os.cpu_count() != 1:
        outcome = toolchain(*built, "--threads", 1)
        assert (outcome.code, "has no records for local" in outcome.err) == (2, True)
        assert "for 1 thread(s)" in outcome.err
    outcome = done(*built, "--threads", len(os.sched_getaffinity(0)), "--json")
    assert json.loads(outcome.out)["manifest"]["records"]["tuned"] == TASKS


def test_a_run_ends_with_the_whole_model(here, tmp_path):
    """It is compared with what a deploy makes of it without these records; where nothing won, that is said."""
    records = Path(shutil.copy(here.records, tmp_path))
    options = ("--trials", TRIALS, "--records", records, "--root", here.folder / "root", "--json")
    let_another_win(records)
    command = [argument for argument in QUICK if argument != "--no-compare"]
    end_to_end = json.loads(done("tune", *command, *options).out)["end_to_end"]
    assert end_to_end["comparison"]["tuned"] == TASKS
    assert end_to_end["comparison"]["ratio"]["ci99"]
    sure = "is NOT measurably faster" if not end_to_end["comparison"]["verdict"] else "times as fast as untuned"
    assert sure in end_to_end["outcome"]


def test_winners_that_make_the_whole_model_slower_are_taken_back(here, tmp_path):
    records = Path(shutil.copy(here.records, tmp_path))
    options = ("--trials", TRIALS, "--records", records, "--root", here.folder / "root")
    let_another_win(records, which=lambda line: min(line["samples_s"]))
    command = [argument for argument in QUICK if argument != "--no-compare"]
    outcome = done("tune", *command, *options)
    assert re.search(rf"tuned is SLOWER: .*; so all {TASKS} winners are taken back", outcome.out)
    verdicts = [json.loads(line).get("verdict") for line in records.read_text().splitlines()]
    assert verdicts[-TASKS:] == ["untuned"] * TASKS
    outcome = toolchain("compare", "mlp", "--without", "all", "--records", records, "--root", here.folder / "root")
    assert (outcome.code, "nothing to compare" in outcome.err) == (2, True), outcome.err


def bundles_in(root: Path) -> list[Path]:
    return list(root.glob("releases/*"))


def test_a_model_that_was_never_tuned_has_nothing_to_compare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLCHAIN_RECORDS", str(tmp_path / "none"))
    outcome = toolchain("compare", "mobilenet", "--root", tmp_path / "root")
    assert outcome.code == 2, outcome.err
    assert "nothing to compare" in outcome.err
    assert "hint: toolchain tune mobilenet\n" in outcome.err
    assert "importing" not in outcome.err
    assert (outcome.out, bundles_in(tmp_path / "root")) == ("", [])


def test_records_that_change_nothing_leave_nothing_to_compare(here, tmp_path):
    """Those of another model: they are for this board, and apply to none of the kernels."""
    source = nets.save(nets.relu((1, 4096)), tmp_path)
    outcome = toolchain("compare", source, "--records", here.records, "--root", tmp_path / "root")
    assert outcome.code == 2, outcome.err
    assert "nothing to compare" in outcome.err
    assert f"hint: toolchain tune {source}" in outcome.err
    assert "measuring" not in outcome.err
    assert bundles_in(tmp_path / "root") == []


def test_shipped_records_are_compared_with_none_where_they_are_named(tmp_path):
    outcome = toolchain(
        "compare", "mlp", "--records", "shipped", "--budget", 0.1, "--root", tmp_path / "root", "--json"
    )
    if outcome.code:  # no records are shipped for processors without AVX-512
        assert (outcome.code, "no tuning record applies to it" in outcome.err) == (2, True)
        return
    report = json.loads(outcome.out)
    assert (report["tuned"], report["shipped"] > 0) == (0, True)


def test_records_cannot_be_compared_without_any():
    outcome = toolchain("compare", "mlp", "--no-records")
    assert (outcome.code, "--no-records" in outcome.err) == (2, True)


def test_deploy_tunes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLCHAIN_RECORDS", str(tmp_path / "kept"))
    outcome = done("deploy", "mlp", "--trials", 8, "--budget", 0.1, "--root", tmp_path / "root", "--json", "-")
    assert json.loads(outcome.out)["outputs"]["ok"] is True
    lines = [json.loads(line) for line in (tmp_path / "kept" / "local.jsonl").read_text().splitlines()]
    assert len([line for line in lines if line["kind"] == "trial" and "among" not in line]) == 8
    assert re.search(r"records for [0-5] of 5 kernels", outcome.err), outcome.err


# --- a lab -----------------------------------------------------------------------------------------------------------


OURS = f'machine = "{HERE}"\ntriple = "{HERE}-linux-gnu"'
KINDS = {
    "bench": OURS,
    "needy": f'{OURS}\ncpu_features = ["warp_drive"]',
    "strange": 'machine = "aarch64"\ntriple = "aarch64-linux-gnu"',
}
"""Board types: this machine, one that it is almost, and one that it is not."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory, native) -> Iterator[Lab]:
    """Two devices on this host, each with an SSH server of its own, and a cache with nobody else's farm."""
    folder, cache = tmp_path_factory.mktemp("lab"), labs.cache(tmp_path_factory.mktemp("cache"), native)
    labs.board_types(folder, "over SSH", KINDS)
    with contextlib.ExitStack() as stack:
        servers = tuple(stack.enter_context(sshd.running(folder / name)) for name in ("a", "b"))
        (folder / "devices.toml").write_text(
            "".join(
                f'[devices.{name}]\nboard = "bench"\nhost = "board"\nssh_config = "{name}/ssh_config"\n'
                f'root = "{folder}/{name}/store"\nemulated = true\n'  # nobody trusts the clock of a busy machine
                for name in ("a", "b")
            )
        )
        started = Lab(folder, cache, servers)
        yield started
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOOLCHAIN_CACHE", str(cache))
            done("farm", "down")
        until(lambda: not board_servers(started))


@pytest.fixture
def surroundings(lab, monkeypatch, tmp_path) -> Lab:
    """The lab, whether or not its farm is up."""
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(lab.cache))
    monkeypatch.setenv("TOOLCHAIN_BOARDS", str(lab.folder / "boards"))
    monkeypatch.setenv("TOOLCHAIN_DEVICES", str(lab.folder / "devices.toml"))
    monkeypatch.setenv("TOOLCHAIN_RECORDS", str(tmp_path / "records"))
    return lab


@pytest.fixture
def bench(surroundings) -> Lab:
    """The lab without its farm."""
    done("farm", "down")
    until(lambda: not board_servers(surroundings))
    return surroundings


@pytest.fixture
def farm(surroundings) -> dict:
    """The lab's farm, with both devices free; it stays up for the next test."""
    report = json.loads(done("farm", "up", "--json").out)
    until(lambda: states() == {"a": "free", "b": "free"})
    return report


def own() -> set[int]:
    return set(sshd.descendants(os.getpid()))


def test_a_device_is_served_for_the_run_alone(bench, tmp_path, monkeypatch):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = own()
    report = tuned("--board", "bench", "--host", "b", "--trials", 12)
    assert names(report) == {"b": 12}
    assert (report["trials"]["ok"], report["emulated"]) == (12, True)
    assert (tmp_path / "records" / "bench.jsonl").exists()
    until(lambda: not own() - before)
    until(lambda: not board_servers(bench))
    assert list(scratch.iterdir()) == []


def test_a_device_over_ssh_is_tuned_deployed_to_and_compared(bench, tmp_path):
    """An emulator's records are for emulators, and such is what its deploy and its comparison build with."""
    device_options = ("--board", "bench", "--host", "a", "--toolchain", "host")
    outcome = done("deploy", "mlp", *device_options, "--trials", 8, "--budget", 0.1, "--json", "-")
    report = json.loads(outcome.out)
    assert (report["outputs"]["ok"], report["emulated"]) == (True, True)
    assert re.search(r"records for [0-5] of 5 kernels", outcome.err), outcome.err
    let_another_win(tmp_path / "records" / "bench.jsonl")
    comparison = json.loads(done("compare", "mlp", *device_options, "--budget", 0.2, "--json").out)
    assert (comparison["emulated"], comparison["difference"]["ok"], comparison["tuned"] > 0) == (True, True, True)
    current = json.loads(done("status", *device_options[:4], "--json").out)["current"]
    assert f"sha256:{current['digest']}" == report["bundle_digest"], "a comparison leaves the release as it was"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_its_records_and_nothing_else(bench, tmp_path, number):
    records = tmp_path / "records" / "bench.jsonl"
    before = own()
    with running("tune", *QUICK, "--board", "bench", "--host", "a", "--trials", 500) as process:
        until(lambda: (records.exists() and records.read_text().count('"samples_s"') > 4) or process.poll() is not None)
        process.send_signal(number)
        _out, err = process.communicate(timeout=60)
    trials_left = records.read_text().count('"samples_s"')
    if number == signal.SIGINT:
        assert process.returncode == 130, err
        # A trial is counted when it is in the file, and the signal may come in between.
        messages = [
            f"{count} trials of this run are in {records}; the same command goes on"
            for count in (trials_left, trials_left - 1)
        ]
        assert any(message in err for message in messages), err
    until(lambda: not own() - before)
    until(lambda: not board_servers(bench))
    report = tuned("--board", "bench", "--host", "a", "--trials", trials_left)
    assert report["trials"]["resumed"] == report["trials"]["total"] == trials_left


def test_which_device_is_asked(bench):
    outcome = toolchain("tune", *QUICK, "--board", "bench")
    assert (outcome.code, "which bench device? There are 2: a, b" in outcome.err) == (2, True), outcome.err


# What a shell starts in the background ignores SIGINT, and so would the tests' children there.
CLIENT = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from toolchain import cli; sys.argv[0] = 'toolchain'; cli.main()"
)


@contextlib.contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", CLIENT, *map(str, words)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_all_the_farms_boards_measure_and_nothing_listens_on_a_port(lab, farm, tmp_path):
    command = ("tune", *QUICK, "--board", "bench", "--trials", 30, "--json")
    with running(*command) as process:
        until(lambda: set(states().values()) == {"leased"} or process.poll() is not None)
        until(lambda: (tmp_path / "records" / "bench.jsonl").exists() or process.poll() is not None)
        table = done("farm", "status").out
        pids = {daemon(), *sshd.descendants(daemon()), *board_servers(lab)}
        pids |= {pid for server in lab.servers for pid in sshd.descendants(server.process.pid)}
        open_ports = listeners(pids)
        alive = process.poll() is None
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert alive, "it was watched while it ran"
    assert f"pid {process.pid}: tune mlp" in table
    assert open_ports == set()
    report = json.loads(out)
    assert report["trials"]["ok"] == 30
    assert set(names(report)) == {"a", "b"}
    assert min(names(report).values()) > 0
    assert {"a: 2 CPUs", "b: 2 CPUs"} <= {line.partition(",")[0] for line in err.splitlines()} or os.cpu_count() != 2
    until(lambda: states() == {"a": "free", "b": "free"})
    assert "fused_matmul" in done("farm", "status").out, "the last trial of each stays to be seen"


def test_a_locked_board_is_left_out(farm):
    done("farm", "lock", "b", "--for", "10m")
    assert names(tuned("--board", "bench", "--trials", 8)) == {"a": 8}
    done("farm", "lock", "a", "--for", "10m")
    outcome = toolchain("tune", *QUICK, "--board", "bench")
    assert outcome.code == 75, outcome.err
    assert f"pid {os.getpid()}" in outcome.err, "who holds them"
    assert "hint: toolchain farm status" in outcome.err
    for name in ("a", "b"):
        done("farm", "release", name)
    assert names(tuned("--board", "bench", "--trials", 8, "--host", "b", "--seed", 1)) == {"b": 8}


@contextlib.contextmanager
def stock_server(port: int, key: str) -> Iterator[int]:
    own_port = sshd.free_port()
    command = ["tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", str(own_port), "--port-end", str(own_port + 1)]
    with python_process(*command, "--tracker", f"127.0.0.1:{port}", "--key", key):
        yield own_port


def test_hardware_of_all_the_farms_boards(farm):
    lines = done("hardware", "--board", "bench").out.splitlines()
    assert [line[:2] for line in lines if not line.startswith("warning: ")] == ["a:", "b:"]


@pytest.mark.nightly
def test_a_tracker_of_ones_own(surroundings):
    with tracker() as port, stock_server(port, "mine"):
        device_options = ("--board", "bench", "--tracker", f"127.0.0.1:{port}")
        until(lambda: registered(port, "mine"))
        outcome = toolchain("tune", *QUICK, *device_options)
        assert (outcome.code, "has no board bench" in outcome.err, "--key" in outcome.err) == (4, True, True), (
            outcome.err
        )
        outcome = done("tune", *QUICK, *device_options, "--key", "mine", "--trials", 8, "--json")
    assert names(json.loads(outcome.out)) == {"mine-1": 8}
    assert "warning: mine-1" in outcome.err


def registered(port: int, key: str) -> bool:
    from toolchain import rpc
    from toolchain.errors import DeviceError

    with contextlib.suppress(DeviceError):  # it has only just been started
        return key in {server.key for server in rpc.registered(("127.0.0.1", port))}
    return False


def test_a_tracker_that_is_not_there(surroundings):
    outcome = toolchain("tune", *QUICK, "--board", "bench", "--tracker", f"127.0.0.1:{sshd.free_port()}")
    assert (outcome.code, "does not answer" in outcome.err, "hint: " in outcome.err) == (4, True, True), outcome.err


# --- hardware --------------------------------------------------------------------------------------------------------


def test_hardware_of_this_machine(native, tmp_path):
    device_options = ("--root", tmp_path / "root")
    [row] = json.loads(done("hardware", *device_options, "--json").out)
    assert row["board"] == "local"
    assert row["hardware"]["machine"] == HERE
    assert row["hardware"]["cpus"] == len(os.sched_getaffinity(0))
    assert row["hardware"]["memory_kib"] > 1 << 18
    assert done("hardware", *device_options).out.startswith(f"local: {row['hardware']['cpus']} CPUs")


def test_hardware_over_ssh(bench):
    [row] = json.loads(done("hardware", "--host", "a", "--board", "bench", "--json").out)
    assert (row["board"], row["hardware"]["machine"]) == ("a", HERE)
    cpus = row["hardware"]["cpus"]
    note = f"a has {cpus} CPUs, but kernels are scheduled for the 1 of its board file"
    assert row["notes"] == ([note] if cpus > 1 else [])
    until(lambda: not board_servers(bench))


@pytest.mark.parametrize(
    ("kind", "message"), [("needy", "CPU has no warp_drive"), ("strange", f"{HERE}")], ids=["needy", "strange"]
)
def test_a_board_that_is_not_what_its_file_says(bench, tmp_path, kind, message):
    lab = tmp_path / "devices.toml"
    text = (bench.folder / "devices.toml").read_text()
    for old, new in (('"bench"', f'"{kind}"'), ('config = "', f'config = "{bench.folder}/'), ("emulated = true\n", "")):
        text = text.replace(old, new)
    lab.write_text(text)
    outcome = toolchain("hardware", "--board", kind, "--devices", lab, "--host", "a")
    assert (outcome.code, message in outcome.err, "hint: " in outcome.err) == (5, True, True), outcome.err
