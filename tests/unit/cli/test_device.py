"""What is done on one device, which is a folder of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import onnx
import pytest
from PIL import Image

from tests.support import bundles, nets
from tests.support.commands import done, parsed, toolchain
from toolchain.cli.common import CompileOptions, KernelOptions, ModelOptions
from toolchain.cli.compare import CompareOptions
from toolchain.cli.connection import DeviceOptions
from toolchain.cli.console import Console
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.errors import InputError
from toolchain.native import programs
from toolchain.native.programs import BOARD_SERVER
from toolchain.pipeline.source import BundleSource
from toolchain.shell import LocalShell


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


def test_a_deploy_builds_its_runner_and_nothing_else_beside_the_model(tiny, tmp_path, monkeypatch):
    order, honest_obtain, honest_build = [], BundleSource.obtain, programs.build

    @contextlib.contextmanager
    def building(name, *_):
        order.append(f"{name} begun")
        yield
        order.append("ended")

    def obtain(*words):
        order.append("model")
        return honest_obtain(*words)

    def build(name, *words):
        order.append(name)
        return honest_build(name, *words)

    monkeypatch.setattr(programs, "building", building)
    monkeypatch.setattr(programs, "build", build)
    monkeypatch.setattr(BundleSource, "obtain", obtain)
    done("deploy", tiny.folder, "--root", tmp_path / "root", "--budget", 0)
    assert order[-4:] == ["runner begun", "model", "runner", "ended"]
    assert BOARD_SERVER not in order


def test_the_table_says_what_matters(device):
    table = (device / "table.txt").read_text()
    for words in ("match onnxruntime", "median", "runs", "MB sent", "1 blob(s) new"):
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


@pytest.mark.parametrize(("until", "text"), [("9999-12-31", "until 9999-12-31"), ("2020-01-31", "which has passed")])
def test_status_and_inspect_show_how_long_a_release_is_supported(until, text, tiny, tmp_path):
    supported = bundles.variant(tiny, tmp_path / "supported", {}, supported_until=until)
    assert f"its publisher supports it until {until}" in done("inspect", "package", supported.folder).out
    words = ["--root", tmp_path / "root"]
    done("deploy", supported.folder, *words, "--budget", 0)
    assert parsed("status", *words)["supported_until"] == until
    assert any(line.startswith("supported ") and text in line for line in done("status", *words).out.splitlines())


def test_a_release_that_is_damaged_has_no_known_end_of_support(device, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(device / "root", root, symlinks=True)
    assert parsed("status", "--root", root)["supported_until"] == ""
    path = (root / "current" / "manifest.json").resolve()
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b'"dense"', b'"other"'))
    assert parsed("status", "--root", root)["supported_until"] is None
    assert "supported  unknown: " in done("status", "--root", root).out


def test_a_release_on_trial_shows_until_the_next_change_takes_it_back(device, tiny, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(device / "root", root, symlinks=True)
    listed = parsed("status", "--releases", "--root", root)
    assert [release["failed"] for release in listed] == [False, False]
    assert (parsed("status", "--root", root)["trial"], parsed("status", "--root", root)["application"]) == (None, None)
    (root / "trial").write_text("2 1 0\ntrue\n")
    (root / "trial.log").write_text(f"trial 2 1 0 {tiny.digest}\n")
    seen = parsed("status", "--root", root)
    assert (seen["trial"]["state"], seen["trial"]["new"], seen["current"]["number"]) == ("open", 2, 2)
    assert seen["trial"]["seconds"] > 0
    assert "on trial for" in done("status", "--root", root).out
    told = done("bench", "--root", root, "--budget", 0)
    assert (
        "generation 2 on local was on trial, and the command that tried it has ended: generation 1 is current again"
        in told.err
    )
    assert parsed("status", "--root", root)["trial"]["state"] == "interrupted"
    assert "was interrupted and taken back" in done("status", "--root", root).out
    bench_swept = parsed("status", "--releases", "--root", root)
    assert [release["number"] for release in bench_swept] == [1]


def test_bench_measures_the_current_release(device, tiny, tmp_path):
    done("bench", "--root", device / "root", "--budget", 0.05, "--json", tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["bundle_digest"] == f"sha256:{tiny.digest}"
    # Other inputs than the deploy's travel; the runner is there.
    assert report["transfer"]["blobs_sent"] == 1
    assert report["outputs"]["ok"] is None


def test_rollback_and_back(device, tiny):
    root = device / "root"
    numbers = [release["number"] for release in parsed("status", "--releases", "--root", root)]
    back = parsed("rollback", "--root", root)
    assert back["application"] is None
    assert (back["number"], back["current"]) == (numbers[-2], True)
    assert [release["current"] for release in parsed("status", "--releases", "--root", root)] == [True, False]
    assert "*" in done("status", "--releases", "--root", root).out
    done("deploy", tiny.folder, "--root", root, "--budget", 0)
    assert parsed("status", "--root", root)["current"]["digest"] == tiny.digest


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


def test_what_is_built_already_is_not_tuned(tmp_path):
    parsed("build", "mlp", "-o", tmp_path / "mlp")
    seen = toolchain("deploy", tmp_path / "mlp", "--trials", 5)
    assert seen.code == 2
    assert "already built" in seen.err


def test_trials_without_records_make_no_sense():
    seen = toolchain("build", "mlp", "--records", "x.jsonl", "--no-records")
    assert (seen.code, "--records and --no-records cannot be combined" in seen.err) == (2, True)
    seen = toolchain("deploy", "mlp", "--trials", 5, "--no-records")
    assert seen.code == 2
    assert "--no-records" in seen.err


def test_a_foreign_folder_is_refused_before_anything_is_built(tmp_path):
    webapp = tmp_path / "webapp"
    (webapp / ".git").mkdir(parents=True)
    (webapp / "manifest.json").write_text('{"name": "webapp"}')
    for words in (["build", "mlp"], ["deploy", "mlp"], ["deploy", "mlp", "--trials", 1]):
        seen = toolchain(*words, "-o", webapp)
        assert (seen.code, seen.out) == (2, ""), seen.err
        assert "something other than a bundle" in seen.err
        assert ".git" in seen.err
        assert "hint: choose a new name" in seen.err
        assert "importing" not in seen.err
    assert sorted(item.name for item in webapp.iterdir()) == [".git", "manifest.json"]


def test_a_bundle_is_not_kept_a_second_time(tiny, tmp_path):
    """And a package is: what it holds is unpacked there."""
    words = ["--root", tmp_path / "root", "-o", tmp_path / "kept"]
    seen = toolchain("deploy", tiny.folder, *words)
    assert (seen.code, "-o keeps a new bundle" in seen.err, "leave -o out" in seen.err) == (2, True, True), seen.err
    assert list(tmp_path.iterdir()) == []
    done("package", tiny.folder, "-o", tmp_path / "tiny.oci.tar")
    done("deploy", tmp_path / "tiny.oci.tar", *words, "--budget", 0)
    assert (tmp_path / "kept" / "manifest.json").read_bytes() == (tiny.folder / "manifest.json").read_bytes()


def test_the_command_that_tunes_for_a_device():
    device, kernels = DeviceOptions("rk3399", "me@there"), KernelOptions(float16=True)
    asked = CompareOptions(device=device, compiling=CompileOptions(kernels=kernels))
    assert asked.tuning_command("my net.onnx") == (
        "toolchain tune 'my net.onnx' --board rk3399 --host me@there --float16"
    )
    asked = CompareOptions(model=ModelOptions(("x:1,2",), ("wide one=3",), ("sr=1",)))
    assert asked.tuning_command("net.onnx") == "toolchain tune net.onnx --shape x:1,2 --dim 'wide one=3' --fix sr=1"


def test_what_is_compared_is_the_users_records_and_the_shipped_ones_and_nothing():
    for records, expected in ((None, (Path("shipped"), True)), (Path("shipped"), (None, False))):
        asked = CompareOptions(compiling=CompileOptions(records=records))
        untuned, tuned = asked.sources("mlp", asked.device.board(), Console())
        assert (untuned.request.records, untuned.request.tuned) == expected
        assert (tuned.request.records, tuned.request.tuned) == (records, True)
    asked = CompareOptions(compiling=CompileOptions(no_records=True))
    with pytest.raises(InputError, match="that --no-records leaves out"):
        asked.sources("mlp", asked.device.board(), Console())


# --- a hostile device ---

EVIL = "\x1b]0;pwned\x07"


@pytest.fixture
def hostile(tiny, tmp_path, monkeypatch):
    """A device whose kernel, store and releases are named to steer the terminal of who looks at it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "uname").write_text(f'#!/bin/sh\n[ "$1" = -m ] && exec /bin/uname -m\nprintf "%s\\n" "{EVIL}"\n')
    (tools / "uname").chmod(0o755)
    done("deploy", tiny.folder, "--root", tmp_path / "root", "--budget", 0)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    manifest = next((tmp_path / "root" / "releases").glob("*/manifest.json"))
    text = manifest.read_text().replace('"name": "dense"', f'"name": "{EVIL}"', 1)
    manifest.unlink()
    manifest.write_text(text)
    return tmp_path / "root"


@pytest.mark.parametrize("command", ["status", "rollback", "bench"])
def test_a_hostile_device_does_not_steer_the_terminal(hostile, command):
    seen = toolchain(command, "--root", hostile)
    assert seen.code in {0, 4, 5}
    assert EVIL[0] not in seen.out + seen.err
    assert EVIL[-1] not in seen.out + seen.err


def test_its_words_are_shown_and_json_has_them_as_they_are(hostile):
    assert r"\x1b]0;pwned\x07" in done("status", "--releases", "--root", hostile).out
    found = toolchain("status", "--releases", "--root", hostile, "--json").out
    assert EVIL[0] not in found
    assert EVIL in [one["name"] for one in json.loads(found)]


def test_who_holds_its_lock_does_not_either(hostile):
    with Store(LocalShell(), str(hostile)).lock(Owner(EVIL, EVIL, EVIL)):
        seen = toolchain("rollback", "--root", hostile)
    assert seen.code == 75
    assert EVIL[0] not in seen.out + seen.err
    assert r"in use by \x1b]0;pwned\x07" in seen.err
