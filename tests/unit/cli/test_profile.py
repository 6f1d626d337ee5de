"""`toolchain profile` on this machine, with real releases."""

from __future__ import annotations

import json

import pytest

from tests.support import bundles
from tests.support.commands import done, parsed, toolchain
from toolchain.pipeline.profile import Profile
from toolchain.report import Page


@pytest.fixture(scope="module")
def device(tmp_path_factory, tiny):
    folder = tmp_path_factory.mktemp("device")
    done("deploy", tiny.folder, "--root", folder / "root", "--budget", 0)
    return folder / "root"


def test_the_current_release(device, tmp_path):
    options = ["--root", device, "--runs", 30, "--threads", 1]
    result = done(
        "profile", *options, "--json", tmp_path / "p.json", "--html", tmp_path / "p.html", "--trace", tmp_path / "t"
    )
    report = json.loads((tmp_path / "p.json").read_text())
    assert "KERNEL" in result.out
    assert (report["schema_version"], report["runs"], report["other_runs"]) == (1, 30, 0)
    kernels = [row for row in report["rows"] if row["place"]]
    assert [row["place"] for row in kernels] == list(range(1, len(kernels) + 1))
    assert all(row["ms"] >= 0 and row["gflop"] and row["bound"] for row in kernels)
    # Medians of calls lie within a run, and a busy machine stretches runs, not the sum of medians.
    assert 0 < report["sum_ms"] <= 1.5 * report["watched_ms"]
    assert report["peak"]["gflops"] > 0
    assert "multiply-adds" in report["peak"]["method"]
    events = json.loads((tmp_path / "t").read_text())["traceEvents"]
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    assert {event["ph"] for event in events} == {"X"}
    page = (tmp_path / "p.html").read_text()
    assert all(row["kernel"] in page for row in kernels)
    assert not list((device / "run").iterdir())


def test_a_package_leaves_the_release_that_runs(device, tiny, tmp_path):
    other = bundles.reweighted(tiny, tmp_path / "other", seed=3)
    before = parsed("status", "--releases", "--root", device, "--json")
    report = json.loads(done("profile", other.folder, "--root", device, "--runs", 3, "--json", "-").out)
    assert report["bundle_digest"] == f"sha256:{other.digest}"
    assert parsed("status", "--releases", "--root", device, "--json") == before
    assert not (device / "releases" / other.digest).exists()


def test_two_releases_are_held_against_each_other(device, tiny, tmp_path):
    other = bundles.reweighted(tiny, tmp_path / "other", seed=3)
    arguments = ["profile", "current", "--against", other.folder, "--root", device, "--runs", 3, "--threads", 1]
    report = json.loads(done(*arguments, "--json", "-", "--html", tmp_path / "p.html").out)
    assert report["base_digest"] == f"sha256:{other.digest}"
    assert all(layer["new"] == layer["base"] for layer in report["layers"])
    assert report["rounds"] == 16
    assert "Each layer" in (tmp_path / "p.html").read_text()


def test_a_page_that_nobody_asked_for_is_not_made(device, monkeypatch):
    def fails(_found):
        raise AssertionError

    monkeypatch.setattr(Page, "html", fails)
    monkeypatch.setattr(Profile, "trace", fails)
    assert "KERNEL" in done("profile", "--root", device, "--runs", 3).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["9"], "no such release"),
        (["f" * 64], "no such release"),
        (["current", "--against", "current"], "current and current are the same release"),
        (["no/such/folder"], "no/such/folder"),
        (["--runs", "2"], "runs"),
        (["--against", "1", "--trace", "t"], "--trace"),
    ],
)
def test_what_cannot_be_is_told(device, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = toolchain("profile", *arguments, "--root", device)
    assert result.code == 2
    assert message in result.err
    assert not list((device / "run").iterdir())
