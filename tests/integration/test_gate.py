"""The gate as CI calls it: real packages on this machine, over SSH, and what ends it early."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.support import bundles, gates, sshd
from tests.support.commands import Outcome, done, toolchain
from toolchain import board, bundle
from toolchain.backends import backend_of
from toolchain.bundle import Bundle
from toolchain.compile import compiler
from toolchain.compile.request import BuildRequest
from toolchain.models import importer, inputs, reference
from toolchain.models import source as model
from toolchain.models.request import Model

# Wide enough that no neighbour of a test's decides it: the verdicts are about factors, never about per cents.
WIDE = ("--least", 50, "--worst", 400, "--round-ms", 20)
WIDTH = 1 << 15


@dataclasses.dataclass(frozen=True)
class Pair:
    """A model; the same in other bytes; and one that computes the same, much slower."""

    base: Bundle
    same: Bundle
    slow: Bundle


def _slow(folder: Path) -> Bundle:
    """Compile `bundles.dense` behind a detour over many zeros: the same numbers, and thousands of times the work."""
    proto = bundles.dense(8, 4)
    there = np.zeros((8, WIDTH), np.float32)
    there[:, :8] = np.eye(8)
    proto.graph.node[0].input[0] = "back"
    proto.graph.initializer.extend(
        [numpy_helper.from_array(there, "there"), numpy_helper.from_array(there.T.copy(), "again")]
    )
    detour = [
        helper.make_node("MatMul", ["x", "there"], ["far"]),
        helper.make_node("MatMul", ["far", "again"], ["back"]),
    ]
    nodes = [*detour, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    path = folder / "dense.onnx"
    onnx.save(proto, path)
    source = model.load(str(path))
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 8)).astype(np.float32)}
    answers = bundle.Reference(reference.NAME, feeds, reference.run(source, feeds))
    kind = board.load("local").resolved()
    request = BuildRequest(
        Model(str(path), {}, inputs.Source()), kind, toolchain="host", without=backend_of(kind).template_names
    )
    return compiler.build(importer.import_model(source), request, folder / "bundle", reference=answers)


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    (folder / "slow").mkdir()
    return Pair(tiny, gates.alike(tiny, folder / "same"), _slow(folder / "slow"))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def gated(new: object, base: object, root: Path, *arguments: object) -> Outcome:
    return toolchain("gate", new, "--base", base, "--root", root, *WIDE, *arguments)


def left(root: Path) -> list[str]:
    return [path.name for kind in ("releases", "run", "generations") for path in (root / kind).iterdir()]


def test_two_builds_of_one_speed_pass_in_all_reports(pair, root, tmp_path):
    files = [tmp_path / f"gate.{kind}" for kind in ("json", "xml", "html")]
    reports = [argument for pair in zip(("--json", "--junit", "--html"), files, strict=True) for argument in pair]
    outcome = gated(pair.same.folder, pair.base.folder, root, *reports, "--package-size", 1, "--peak-memory", 50)
    assert outcome.code == 0, outcome.err
    assert "PASS" in outcome.out
    report = json.loads(files[0].read_text())
    assert (report["verdict"], report["model"], report["emulated"]) == ("pass", "dense", False)
    assert [quantity["name"] for quantity in report["quantities"]] == ["latency", "peak memory", "package size"]
    assert report["new"]["bundle_digest"] == f"sha256:{pair.same.digest}"
    assert len(report["rounds"]) >= 8
    assert all(len(entry["new"]["samples_ms"]) >= 3 for entry in report["rounds"])
    assert ET.parse(files[1]).getroot().get("failures") == "0"  # noqa: S314 - our own
    assert "<svg" in files[2].read_text()
    assert left(root) == []


def test_the_slowest_runs_are_gated_at_a_rate(pair, root, tmp_path):
    report = tmp_path / "gate.json"
    # A virtual machine may stand still for many seconds.
    options = ("--p999", "1000s", "--period", "1ms", "--for", "4700ms", "--json", report)
    outcome = gated(pair.same.folder, pair.base.folder, root, *options)
    assert outcome.code == 0, outcome.err
    quantity = json.loads(report.read_text())["p999"]
    assert (quantity["verdict"], quantity["late"], quantity["limit_ms"]) == ("pass", 0, 1_000_000)
    assert quantity["runs"] >= 4603
    assert "p99.9" in outcome.out


def test_a_slower_build_is_a_regression_that_all_reports_tell(pair, root, tmp_path):
    bundle.pack(pair.slow, tmp_path / "slow.tar")
    files = [tmp_path / f"gate.{kind}" for kind in ("json", "xml")]
    outcome = gated(tmp_path / "slow.tar", pair.base.folder, root, "--json", files[0], "--junit", files[1])
    assert outcome.code == 6, outcome.err
    assert "latency is a REGRESSION" in outcome.err
    report = json.loads(files[0].read_text())
    assert report["verdict"] == "regression"
    assert sum(entry["fresh"] for entry in report["rounds"]) == 16
    assert report["quantities"][0]["change"]["low"] > 0.5
    assert "matmul 1x32768 -> 1x8" in report["carrier"], report["carrier"]
    assert report["carrier"] in outcome.err
    failure = next(ET.parse(files[1]).getroot().iter("failure"))  # noqa: S314 - our own
    assert failure.get("type") == "regression"
    assert left(root) == []
    assert gated(pair.base.folder, pair.slow.folder, root).code == 0, "the other way round it is an improvement"


def test_a_release_on_the_device_is_a_base_and_stays(pair, root, tmp_path):
    done("deploy", pair.base.folder, "--root", root, "--budget", 0.05)
    (tmp_path / "baseline.txt").write_text(f"sha256:{pair.base.digest}\n")
    for base in ("current", 1, pair.base.digest[:12], tmp_path / "baseline.txt"):
        outcome = gated(pair.same.folder, base, root, "--rounds", 8)
        assert outcome.code == 0, outcome.err
        assert bundles.whole_release(root) == pair.base.digest
    assert sorted(left(root)) == sorted([pair.base.digest, "1"])


def test_other_outputs_end_it_before_anything_is_timed(pair, root, tmp_path):
    other = bundles.reweighted(pair.base, tmp_path / "other", seed=5)
    report, junit = tmp_path / "gate.json", tmp_path / "gate.xml"
    outcome = gated(other.folder, pair.base.folder, root, "--json", report, "--junit", junit)
    assert outcome.code == 5
    assert "compute different outputs" in outcome.err
    assert json.loads(report.read_text())["error"]["exit_code"] == 5
    assert next(ET.parse(junit).getroot().iter("failure")) is not None  # noqa: S314 - our own
    assert "measuring in turns" not in outcome.err
    assert left(root) == []


@pytest.mark.parametrize(
    ("new", "base", "options", "message"),
    [
        ("{base}", "{base}", (), "are the same release"),
        ("{base}", "nothing.tar", (), "there is no 'nothing.tar'"),
        ("{base}", "current", (), "no such release: current"),
        ("{base}", "{text}", (), "does not contain a package's digest"),
        ("{base}", "oci://", (), "is not a valid address of a package in a registry"),
        ("{base}", "{same}", ("--least", 500), "contradict each other"),
        ("{base}", "{same}", ("--rounds", 4), "4 rounds are too few"),
        ("{base}", "{same}", ("--board", "rpi4", "--host", "x@y"), "was built for board"),
        ("{base}", "{same}", ("--plain-http",), "only for packages in a registry"),
    ],
)
def test_what_is_known_before_the_work_is_refused(pair, root, tmp_path, new, base, options, message):
    (tmp_path / "text").write_text("main\n")
    names = {"base": pair.base.folder, "same": pair.same.folder, "text": tmp_path / "text"}
    outcome = gated(new.format(**names), base.format(**names), root, *options)
    assert outcome.code in {2, 5}, outcome.err
    assert message in outcome.err
    assert not (root / "releases").exists() or left(root) == []


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    sshd.require_sshd()
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def test_over_ssh_and_on_an_emulated_device_as_a_rehearsal(server, tiny_for_ssh, tmp_path):
    other = gates.alike(tiny_for_ssh, tmp_path / "other")
    keys = ("-i", server.key_file, "--known-hosts", server.known_hosts)
    where = ("--board", "x86_64", *keys, "--host", server.host)
    outcome = gated(other.folder, tiny_for_ssh.folder, tmp_path / "device", *where)
    assert outcome.code == 0, outcome.err
    lab = tmp_path / "devices.toml"
    lab.write_text(f'[a]\nboard = "x86_64"\nhost = "{server.host}"\nemulated = true\n')
    options = ("--board", "x86_64", *keys, "--devices", lab, "--rounds", 8)
    outcome = gated(other.folder, tiny_for_ssh.folder, tmp_path / "none", *options)
    assert outcome.code == 2
    assert "--allow-emulated" in outcome.err
    assert not (tmp_path / "none").exists()
    files = [tmp_path / f"gate.{kind}" for kind in ("json", "xml", "html")]
    reports = [argument for pair in zip(("--json", "--junit", "--html"), files, strict=True) for argument in pair]
    outcome = gated(other.folder, tiny_for_ssh.folder, tmp_path / "device", *options, "--allow-emulated", *reports)
    assert outcome.code in {0, 7}, outcome.err
    assert "emulated" in outcome.out
    for path in files:
        assert "emulated" in path.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_is_ended_the_device_is_as_it_was(pair, root, tmp_path, number):
    done("deploy", pair.base.folder, "--root", root, "--budget", 0.05)
    command = [sys.executable, "-c", "from toolchain.cli import main; main()", "gate", str(pair.same.folder)]
    command += ["--base", "current", "--root", str(root), "--round-ms", "5000", "--json", str(tmp_path / "gate.json")]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in child.stderr:
        if "measuring in turns" in line or "comparing" in line:
            break
    deadline = time.monotonic() + 60
    while not list((root / "run").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, number)
    child.communicate(timeout=60)
    assert child.returncode == (-9 if number == signal.SIGKILL else 130)
    assert bundles.whole_release(root) == pair.base.digest
    error = json.loads((tmp_path / "gate.json").read_text())["error"]
    assert ("interrupted" in error["message"]) == (number != signal.SIGKILL)
    outcome = gated(pair.same.folder, "current", root, "--wait", 40)
    assert outcome.code == 0, outcome.err
    assert sorted(left(root)) == sorted([pair.base.digest, "1"])
