"""Surveys of what this machine has: an OpenCL device without a GPU, the same without its library, a device over SSH."""

from __future__ import annotations

import getpass
import json
import tempfile
from pathlib import Path

import pytest

from tests.support import opencl, sshd
from tests.support.commands import toolchain

QUICK = ("--trials", 8, "--budget", 0.5)


def steps(folder: Path) -> dict[str, dict]:
    return {step["step"]: step for step in json.loads((folder / "report.json").read_text())["steps"]}


def test_an_opencl_device(tmp_path):
    opencl.require_opencl()
    options = ["--board", "opencl-local", "--root", tmp_path / "root", "-o", tmp_path / "out"]
    outcome = toolchain("survey", "mlp", *options, *QUICK)
    assert outcome.code == 0, outcome.err
    figures = {name: step["figures"] for name, step in steps(tmp_path / "out").items()}
    assert list(figures) == ["device", "hardware", "deploy", "float16", "start", "steadiness", "tune"]
    assert figures["hardware"]["max_threads_per_block"] >= 256
    assert figures["hardware"]["driver"]
    assert figures["deploy"]["max_rel_diff"] <= 1e-3
    # The second one finds what the first one has compiled.
    assert figures["start"]["second_start_ms"] < figures["start"]["first_start_ms"] / 2
    assert 0 < figures["steadiness"]["lowest_median_ms"] <= figures["steadiness"]["highest_median_ms"]
    assert (figures["tune"]["trials"], figures["tune"]["valid_%"] >= 50) == (8, True)
    assert 1 <= figures["tune"]["tasks_measured"] <= figures["tune"]["tasks"]
    assert figures["tune"]["best_gflops"] > 0
    assert list((tmp_path / "root" / "run").iterdir()) == []
    assert "## Survey of opencl-local (emulated" in outcome.out
    assert "goes on from there" not in outcome.err, "the survey's records are gone"
    assert f"{tempfile.gettempdir()}/toolchain-" not in outcome.out + outcome.err


def test_an_opencl_device_without_its_library(tmp_path, monkeypatch):
    """The code is that of the first step that fails; all others are tried, and say why."""
    opencl.require_opencl()
    monkeypatch.setenv("EDGE_OPENCL_LIBRARY", "/nowhere/libOpenCL.so")
    options = ["--board", "opencl-local", "--root", tmp_path / "root", "-o", tmp_path / "out"]
    outcome = toolchain("survey", "mlp", *options, *QUICK)
    assert outcome.code == 4
    survey_steps = steps(tmp_path / "out")
    assert [step["ok"] for step in survey_steps.values()] == [True, False, False, True, False, False, False]
    assert "does not compute in half precision" in survey_steps["float16"]["figures"]["left out"]
    for name in ("hardware", "deploy", "start", "steadiness", "tune"):
        assert "/nowhere/libOpenCL.so" in survey_steps[name]["fault"]["details"]


@pytest.fixture
def server(tmp_path):
    sshd.require_sshd()
    with sshd.running(tmp_path / "sshd") as running:
        yield running


@pytest.mark.nightly
def test_a_device_over_ssh_is_not_named(server, tmp_path):
    options = ["--board", "x86_64", "--host", server.host, "-i", server.key_file, "--known-hosts", server.known_hosts]
    outcome = toolchain("survey", "mlp", *options, "--root", tmp_path / "root", "-o", tmp_path / "out", *QUICK)
    assert outcome.code == 0, outcome.err
    text = (tmp_path / "out" / "report.json").read_text() + (tmp_path / "out" / "report.md").read_text()
    for name in (server.host, f":{server.port}", "127.0.0.1", f"{getpass.getuser()}@", str(tmp_path)):
        assert name not in text
    (tmp_path / "root" / "lock").unlink()
    (tmp_path / "root" / "lock").mkdir()
    outcome = toolchain("survey", "mlp", *options, "--root", tmp_path / "root", "-o", tmp_path / "out", *QUICK)
    assert outcome.code == 4
    text = (tmp_path / "out" / "report.json").read_text() + (tmp_path / "out" / "report.md").read_text()
    assert "cannot be locked" in text
    for name in (server.host, f":{server.port}", "127.0.0.1", f"{getpass.getuser()}@"):
        assert name not in text
