"""The tuning commands, as far as they need no board; tests/integration/test_tune.py has some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import toolchain
from toolchain.cli import tuning
from toolchain.cli.common import ModelOptions, SearchOptions
from toolchain.cli.connection import BoardOptions, DeviceOptions
from toolchain.cli.device import DeployOptions
from toolchain.tuning.plan import Plan
from toolchain.tuning.trials import Options


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder, in which nothing may appear."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("DEVICES", "RECORDS", "BOARDS"):
        monkeypatch.delenv(f"TOOLCHAIN_{name}", raising=False)
    yield tmp_path
    assert list((tmp_path / "here").iterdir()) == []


def test_tasks_are_listed():
    result = toolchain("tasks", "mlp")
    lines = result.out.splitlines()
    assert lines[0].split() == ["ID", "TASK", "OPERATOR", "SHAPE", "WEIGHT", "GFLOPs"]
    assert [line.split()[2] for line in lines[1:6]] == ["reshape", "dense", "dense", "dense", "softmax"]
    assert "1x784, 128x784, 128 -> 1x128" in lines[2]
    assert lines[-1].startswith("5 tasks, ")


def test_tasks_as_json():
    result = toolchain("tasks", "mlp", "--board", "rpi4", "--json")
    tasks = json.loads(result.out)
    assert [task["id"] for task in tasks] == list(range(5))
    first = tasks[1]
    assert set(first) == {"id", "name", "operator", "shape", "weight", "gflop", "workload", "args"}
    assert (first["operator"], first["weight"], len(first["workload"])) == ("dense", 1, 16)
    assert first["args"][0] == {"dtype": "float32", "shape": [1, 784]}
    assert first["gflop"] == pytest.approx(2 * 784 * 128 / 1e9, rel=0.01)


def test_tasks_of_some_operators():
    tasks = json.loads(toolchain("tasks", "mlp", "--op", "dense", "--op", "4", "--json").out)
    assert [task["id"] for task in tasks] == [1, 2, 3, 4]
    assert [task["operator"] for task in tasks] == ["dense"] * 3 + ["softmax"]
    assert toolchain("tasks", "mlp", "--op", "softmax").out.splitlines()[-1].startswith("1 tasks, ")


QUICK = ("tune", "mlp", "--op", "dense", "--trials", 1)


@pytest.mark.parametrize(
    ("arguments", "cause", "hint"),
    [
        (("tasks", "mpl"), "mpl", "mlp"),
        (("tune", "mpl"), "mpl", "mlp"),
        (("tasks", "mlp", "--op", "densse"), "no task is named 'densse'", "dense"),
        (("tune", "mlp", "--op", "densse"), "no task is named 'densse'", "dense"),
        (("tune", "mlp", "--op", "99"), "no task is named '99'", "toolchain tasks"),
        (("tune", "mlp", "--tuner", "annealing"), "annealing", "evolutionary-xgb"),
        (("tune", "mlp", "--trials", "0"), "--trials", "x>=1"),
        (
            ("tune", "mlp", "--board", "rpi4", "--tracker", "nonsense"),
            "'nonsense' is not a valid tracker address",
            "127.0.0.1:9190",
        ),
        ((*QUICK, "--tracker", "127.0.0.1:9190"), "local is this machine", "--board"),
        ((*QUICK, "--board", "rpi4", "--key", "mine"), "--key requires --tracker", "--board"),
        ((*QUICK, "--board", "rpi44"), "rpi44", "rpi4"),
        (
            (*QUICK, "--board", "rpi4", "--host", "x", "--root", "a b"),
            "'a b' is not a valid folder on a device",
            "absolute",
        ),
        ((*QUICK, "--board", "vta-sim"), "vta-sim computes none of the 3 chosen tasks", "toolchain tasks mlp"),
        (("tune", "mlp", "--board", "vta-sim", "--float16"), "accelerator of vta-sim computes in int8", "--float16"),
        (("tune", "mlp", "--shape", "data"), "--shape data", "NAME:"),
        (("hardware", "--board", "rpi4"), "which rpi4 device", "--host"),
        (("deploy", "mlp", "--trials", "0"), "--trials", "x>=1"),
    ],
)
def test_wrong_inputs(arguments, cause, hint):
    result = toolchain(*arguments)
    assert (result.code, cause in result.err, hint in result.err) == (2, True, True), result.err
    assert result.out == ""
    assert "Traceback" not in result.err


@pytest.mark.parametrize("content", ["notes\n", '{"a": 1}\n'])
def test_a_file_that_is_no_file_of_records(folder, content):
    path = folder / "notes.txt"
    path.write_text(content)
    result = toolchain(*QUICK, "--toolchain", "host", "--records", path)
    assert (result.code, "notes.txt" in result.err, "hint: " in result.err) == (2, True, True), result.err
    assert path.read_text() == content, "it is somebody's"


def test_records_where_nothing_can_be_written(folder):
    (folder / "file").write_text("")
    result = toolchain(*QUICK, "--toolchain", "host", "--records", folder / "file" / "r.jsonl")
    assert (result.code, "file" in result.err) == (2, True), result.err


@pytest.mark.parametrize("path", ["none/page.html", "folder"])
def test_a_report_that_cannot_be_written_is_told_before_the_first_trial(folder, path):
    (folder / "folder").mkdir()
    result = toolchain(*QUICK, "--html", folder / path)
    assert (result.code, f"cannot write {folder / path}" in result.err) == (2, True), result.err
    assert "hint: " in result.err
    assert "importing" not in result.err


def test_a_page_of_others_is_left_alone(folder):
    (folder / "index.html").write_text("<!DOCTYPE html><title>mine</title>")
    result = toolchain(*QUICK, "--html", folder / "index.html")
    assert (result.code, "something other than a page" in result.err, "importing" in result.err) == (2, True, False)
    assert (folder / "index.html").read_text() == "<!DOCTYPE html><title>mine</title>"


def test_what_deploy_tunes_with():
    """The same as `tune` without an option."""
    kind = BoardOptions("rpi4").board()
    options = DeployOptions(device=DeviceOptions("rpi4", "pi@there")).tune_options(7)
    assert options.search.plan(kind, 0, None) == Plan(trials=7, options=Options(threads=kind.threads))
    assert tuning.TuneOptions(search=SearchOptions(trials=7), device=options.device) == options


def test_builders_are_what_the_options_say():
    from toolchain.cli.common import BuilderOptions
    from toolchain.tuning.build.cluster.scheduler import Access, Scheduler

    builders = BuilderOptions("tls://10.0.0.7", Path("ca"), Path("cert"), Path("key"))
    access = Access(Path("ca"), Path("cert"), Path("key"))
    assert tuning.TuneOptions(builders=builders).request("mlp", passing=True).builders == Scheduler(
        "tls", "10.0.0.7", 8786, access
    )
    assert tuning.TuneOptions().request("mlp", passing=True).builders is None


def test_a_request_is_what_the_options_say(folder):
    device = DeviceOptions("rpi4", "pi@there", root="~/here", identity=Path("key"))
    options = tuning.TuneOptions(device=device, threads=3, model=ModelOptions(("x:1,2",), seed=5), operators=("dense",))
    request = options.request("net.onnx", passing=True)
    assert (request.model.shapes, request.model.given.seed, request.plan.seed) == ({"x": (1, 2)}, 5, 5)
    assert (request.boards.host, request.boards.root, request.boards.purpose) == ("pi@there", "~/here", "tune net")
    assert (request.boards.ssh.identity, request.plan.options.threads) == (Path("key"), 3)
    assert (request.operators, request.passing, request.toolchain, request.without) == (("dense",), True, "", ())


@pytest.mark.parametrize("command", ["tasks", "tune", "hardware", "compare"])
def test_help_waits_for_nothing_heavy(command):
    code = (
        "import sys, toolchain.cli\n"
        "try: toolchain.cli.main()\n"
        "except SystemExit as end: print('exit', end.code, sorted({m.split('.')[0] for m in sys.modules}))\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code, command, "--help"], capture_output=True, text=True, check=True
    )
    assert f"Usage: toolchain {command}" in completed.stdout
    assert "exit 0" in completed.stdout
    assert not [name for name in ("numpy", "onnx", "tvm", "tvm_ffi", "paramiko") if f"'{name}'" in completed.stdout]


@pytest.mark.parametrize("command", ["build", "tasks"])
def test_half_precision_is_not_for_x86_cpus(command, folder):
    output = ("-o", folder / "bundle") if command == "build" else ()
    result = toolchain(command, "mlp", "--board", "x86_64", "--float16", *output)
    assert result.code == 2
    assert "board x86_64 does not compute in half precision" in result.err


@pytest.mark.parametrize("command", ["build", "tasks"])
@pytest.mark.parametrize("name", ["rpi4", "rk3399", "vta-sim"])
def test_bfloat16_is_for_x86_alone(command, name, folder):
    output = ("-o", folder / "bundle") if command == "build" else ()
    result = toolchain(command, "mlp", "--board", name, "--bfloat16", *output)
    assert result.code == 2
    assert f"board {name} does not compute in bfloat16" in result.err
    assert "leave --bfloat16 out" in result.err
    assert "importing" not in result.err, "it is told first"
    assert not (folder / "bundle").exists()


def test_a_template_that_a_board_does_not_have():
    result = toolchain("tasks", "mlp", "--board", "rk3399", "--without", "direct")
    assert result.code == 2
    assert "templates: winograd" in result.err


@pytest.mark.parametrize("command", ["build", "tasks"])
@pytest.mark.parametrize("name", ["vta-sim", "pynq-z1"])
def test_half_precision_is_not_for_int8_accelerators(command, name, folder):
    output = ("-o", folder / "bundle", "--toolchain", "host") if command == "build" else ()
    result = toolchain(command, "mlp", "--board", name, "--float16", *output)
    assert result.code == 2
    assert f"the accelerator of {name} computes in int8" in result.err
    assert "leave --float16 out" in result.err
    assert "importing" not in result.err, "it is told first"
