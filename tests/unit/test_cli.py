"""The command line: every command's result, for people and as JSON."""

from __future__ import annotations

import io
import json
import sys
import xml.etree.ElementTree as ET

import numpy as np
import onnx
import pytest
from PIL import Image

from tests import bundles, nets
from tests.commands import toolchain
from toolchain import cli


def done(*words):
    seen = toolchain(*words)
    assert seen.code == 0, seen.err
    return seen


def parsed(*words):
    return json.loads(done(*words, "--json").out)


@pytest.fixture(scope="module")
def device(tmp_path_factory, tiny):
    """A device folder with two activations, and the report of the second deploy."""
    folder = tmp_path_factory.mktemp("device")
    other = bundles.reweighted(tiny, folder / "other", seed=5)
    done("deploy", other.folder, "--root", folder / "root", "--budget", 0)
    words = ["--json", folder / "report.json", "--junit", folder / "report.xml"]
    folder.joinpath("table.txt").write_text(
        done("deploy", tiny.folder, "--root", folder / "root", "--budget", 0.05, *words).out
    )
    return folder


def test_every_command_explains_itself():
    commands = ["boards", "boards check", "boards schema", "model", "model list", "model inspect", "build", "package"]
    commands += ["deploy", "bench", "status", "releases", "rollback", "doctor"]
    commands += ["farm", "farm up", "farm down", "farm status", "farm lock", "farm release"]
    for command in commands:
        assert done(*command.split(), "--help").out.startswith("Usage: "), command


def test_boards_are_listed():
    assert {"local", "x86_64"} <= {board["name"] for board in parsed("boards")}
    assert "any x86-64 Linux" in done("boards").out


def test_a_board_file_is_checked(tmp_path):
    good = tmp_path / "good.toml"
    good.write_text('description="d"\nconnection="ssh"\nmachine="m"\ntriple="t"\n[target]\nmcpu="c"\n')
    assert "valid" in done("boards", "check", good).out
    assert parsed("boards", "check", good) == []


def test_the_schema_is_json():
    assert json.loads(done("boards", "schema").out)["title"] == "Board file"


def test_models_are_listed():
    names = [model["name"] for model in parsed("model", "list")]
    assert {"resnet-50", "mobilenet", "mlp", "resnet3d-18", "inception_v3"} <= set(names)
    assert "mobilenet" in done("model", "list").out


def test_a_model_is_inspected():
    found = parsed("model", "inspect", "squeezenet_v1.1")
    assert found["inputs"] == [{"name": "data", "shape": [1, 3, 224, 224], "dtype": "float32"}]
    assert 1.2e6 < found["parameters"] < 1.3e6
    assert 0.6 < found["gflops"] < 0.8
    assert found["operators"]["Conv"] == 26
    assert found["unsupported"] == []
    assert "0.69" in done("model", "inspect", "squeezenet_v1.1").out


def test_a_model_with_an_open_dimension_is_built(tmp_path):
    path = nets.save(nets.relu(("batch", 3)), tmp_path)
    made = parsed("build", path, "--shape", "x:4,3", "-o", tmp_path / "out")
    assert made["manifest"]["inputs"][0]["shape"] == [4, 3]
    assert made["manifest"]["command"] == "toolchain build net.onnx --board local --shape x:4,3 --seed 0 --no-records"


def test_build_and_package_tell_the_same_digest(tmp_path):
    made = parsed("build", "mlp", "-o", tmp_path / "mlp")
    packed = parsed("package", tmp_path / "mlp", "-o", tmp_path / "mlp.oci.tar")
    assert packed["digest"] == made["digest"]
    assert packed["bytes"] == (tmp_path / "mlp.oci.tar").stat().st_size
    report = json.loads(
        done("deploy", tmp_path / "mlp.oci.tar", "--root", tmp_path / "root", "--budget", 0, "--json", "-").out
    )
    assert report["bundle_digest"] == made["digest"]
    assert report["outputs"]["ok"] is True


def test_the_report_keeps_its_contract(device, tiny):
    report = json.loads((device / "report.json").read_text())
    assert report["schema_version"] == 1
    assert (report["board"], report["host"]["name"], report["model"]) == ("local", "local", "dense")
    assert report["host"]["machine"] == tiny.manifest.machine
    assert report["bundle_digest"] == f"sha256:{tiny.digest}"
    assert report["emulated"] is False
    assert set(report["outputs"]) >= {"reference", "max_abs_diff", "max_rel_diff", "ok"}
    assert set(report["latency_ms"]) >= {"mean", "median", "min", "max", "std", "p90", "samples"}
    assert len(report["latency_ms"]["samples"]) >= 3
    assert set(report["transfer"]) >= {"bytes_sent", "blobs_sent", "blobs_skipped", "seconds"}
    # The other release and its runner were there: the same library, other weights.
    assert report["transfer"]["blobs_sent"] == 1
    assert set(report["stages_s"]) >= {"runner", "connect", "deploy", "smoke", "bench"}
    assert isinstance(report["warnings"], list)


def test_the_table_says_what_matters(device):
    table = (device / "table.txt").read_text()
    for words in ("match onnxruntime", "median", "runs", "KiB sent", "1 blob(s) new"):
        assert words in table


def test_junit_is_what_ci_reads(device):
    suite = ET.parse(device / "report.xml").getroot()  # noqa: S314 - our own file
    assert (suite.tag, suite.get("failures")) == ("testsuite", "0")
    assert [case.get("name") for case in suite.iter("testcase")] == ["outputs", "latency"]


def test_a_device_tells_its_status(device, tiny):
    seen = parsed("status", "--root", device / "root")
    assert seen["current"]["digest"] == tiny.digest
    assert seen["facts"]["machine"] == tiny.manifest.machine
    assert tiny.digest[:16] in done("status", "--root", device / "root").out


def test_bench_measures_the_current_release(device, tiny, tmp_path):
    done("bench", "--root", device / "root", "--budget", 0.05, "--json", tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["bundle_digest"] == f"sha256:{tiny.digest}"
    # Other inputs than the deploy's travel; the runner is there.
    assert report["transfer"]["blobs_sent"] == 1
    assert report["outputs"]["ok"] is None


def test_rollback_and_back(device, tiny):
    root = device / "root"
    numbers = [release["number"] for release in parsed("releases", "--root", root)]
    back = parsed("rollback", "--root", root)
    assert (back["number"], back["current"]) == (numbers[-2], True)
    assert [release["current"] for release in parsed("releases", "--root", root)] == [True, False]
    assert "*" in done("releases", "--root", root).out
    done("deploy", tiny.folder, "--root", root, "--budget", 0)
    assert parsed("status", "--root", root)["current"]["digest"] == tiny.digest


def test_given_inputs_are_what_the_device_computes_with(tmp_path):
    path = nets.save(nets.relu((2, 3)), tmp_path)
    np.savez(tmp_path / "in.npz", x=np.full((2, 3), -1, np.float32))
    done("build", path, "--input", tmp_path / "in.npz", "-o", tmp_path / "out")
    from toolchain import tensors

    both = tensors.load(tmp_path / "out" / "reference.safetensors")
    assert both["input.x"].tolist() == [[-1] * 3] * 2
    assert both["output.y"].tolist() == [[0] * 3] * 2


def test_an_image_gives_a_table_of_classes(tmp_path):
    pool = nets.model(
        [nets.node("GlobalMaxPool", ["x"], ["p"]), nets.node("Flatten", ["p"], ["y"])],
        [nets.value("x", (1, 3, 8, 8))],
        [nets.value("y", (1, 3))],
    )
    onnx.save(pool, tmp_path / "pool.onnx")
    Image.new("RGB", (20, 10), (10, 200, 30)).save(tmp_path / "green.png")
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n")
    words = ["--image", tmp_path / "green.png", "--labels", tmp_path / "labels.txt", "--root", tmp_path / "root"]
    seen = done("deploy", tmp_path / "pool.onnx", *words, "--budget", 0, "--json", "-")
    assert [row["label"] for row in json.loads(seen.out)["top"]] == ["green", "blue", "red"]


def test_doctor_names_what_is_there():
    checks = parsed("doctor")
    assert {"apache-tvm 0.27.0.post1", "apache-tvm-ffi 0.1.14.post1"} <= {check["what"] for check in checks}
    assert all(check["found"] for check in checks if check["board"] == "local")


def test_progress_goes_to_stderr_and_results_to_stdout(tmp_path):
    seen = done("build", "mlp", "-o", tmp_path / "mlp", "--json")
    assert "compiling" in seen.err
    json.loads(seen.out)


def test_what_is_built_already_is_not_tuned(tmp_path):
    parsed("build", "mlp", "-o", tmp_path / "mlp")
    seen = toolchain("deploy", tmp_path / "mlp", "--trials", 5)
    assert seen.code == 2
    assert "built already" in seen.err


def test_trials_without_records_make_no_sense():
    seen = toolchain("build", "mlp", "--records", "x.jsonl", "--no-records")
    assert (seen.code, "--no-records leaves out" in seen.err) == (2, True)
    seen = toolchain("deploy", "mlp", "--trials", 5, "--no-records")
    assert seen.code == 2
    assert "--no-records" in seen.err


class Terminal(io.StringIO):
    def isatty(self):
        return True


TABLE = "ID | Task\n" + "\n".join(f"{number:2} | {'x' * 90}" for number in range(30)) + "\nTrials: 1/2  " + "y " * 50


def test_a_table_stays_within_its_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "10")
    table = cli._Table()
    table.redraw(TABLE)
    first = sys.stderr.getvalue()
    assert first.count("\n") == 9
    assert max(map(len, first.splitlines())) < 60
    table.redraw(TABLE)
    assert sys.stderr.getvalue().removeprefix(first).startswith("\x1b[9F\x1b[J")
    table.say("a board is lost")
    before = sys.stderr.getvalue()
    table.redraw(TABLE)
    assert "\x1b[" not in sys.stderr.getvalue().removeprefix(before)


def test_where_there_is_no_terminal_a_table_is_one_line_now_and_then(capsys):
    table = cli._Table()
    table.redraw(TABLE)
    table.redraw(TABLE)
    assert capsys.readouterr().err == TABLE.splitlines()[-1] + "\n"
