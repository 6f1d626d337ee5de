"""Watching the calls of a run, and what a device reaches; also of devices that tell nonsense."""

from __future__ import annotations

import json

import pytest

from tests.support import deploys
from toolchain.device import profiling, runner, verification
from toolchain.device.probe.facts import DeviceFacts
from toolchain.errors import DeviceError, VerificationError
from toolchain.shell import LocalShell

_WHOLE = {
    "schema": 1,
    "waits": False,
    "processor": None,
    "calls": [{"name": "dense", "bytes": 64, "own_ns": [5, 6, 7]}],
    "plain_ns": [9, 9, 9],
    "watched_ns": [10, 10, 10],
    "other_runs": 0,
}
_PEAK = {"instructions": "NEON", "threads": 2, "gflops": 12.5, "gbytes_s": 3.25, "array_kib": 1024}
_FACTS = DeviceFacts("aarch64", "Linux", "2.36", "a CPU", (), 2, 1, 1, ())


@pytest.fixture
def folders(tiny, program, tmp_path):
    (tmp_path / "inputs").mkdir()
    runner.tensors.save(tmp_path / "inputs" / runner.INPUTS, verification.samples_of(tiny).inputs)
    return {"runners": str(program.path.parent), "inputs": str(tmp_path / "inputs")}


@pytest.fixture
def lying_runner(tmp_path):
    """Return folders with a runner that reports a given text."""

    def make(text, code=0):
        folder = tmp_path / "lying"
        folder.mkdir(exist_ok=True)
        (folder / "said").write_text(text)
        script = f"""#!/bin/sh
[ "$1" = --peak ] && {{ cat {folder}/said; exit {code}; }}
for word do [ "$last" = --profile ] && cp {folder}/said "$word"; last=$word; done
[ {code} = 0 ] || echo "its own words" >&2
exit {code}
"""
        (folder / "runner").write_text(script)
        (folder / "runner").chmod(0o755)
        return {"runners": str(folder), "inputs": "any"}

    return make


def pace_of_release(release, folders, root):
    return profiling.pace(deploys.installed(folders, root, release.folder))


def watch(folders, root, release="any", runs=3):
    return profiling.watch(deploys.installed(folders, root, release), runs, run_s=0.01)


def test_a_real_release_is_watched(tiny, folders, tmp_path):
    profile = watch(folders, tmp_path, tiny.folder, runs=20)
    kernels = [call for call in profile.calls if not call.name.startswith("vm.")]
    assert kernels
    assert (len(profile.plain_ns), len(profile.watched_ns), profile.other_runs, profile.waits) == (20, 20, 0, False)
    assert all(len(call.own_ns) == 20 for call in profile.calls)
    # What calls take lies within the run that makes them, each of them.
    for run, run_ns in enumerate(profile.watched_ns):
        assert 0 < sum(call.own_ns[run] for call in profile.calls) <= run_ns
    weights = 8 * 4 * 4
    assert max(call.bytes for call in kernels) >= weights
    assert list((tmp_path / "run").iterdir()) == []


def test_a_whole_report_is_read(lying_runner, tmp_path):
    profile = watch(lying_runner(json.dumps(_WHOLE)), tmp_path)
    assert profile.calls == (profiling.Call("dense", 64, (5, 6, 7)),)


@pytest.mark.parametrize(
    "change",
    [
        {"calls": [{"name": "dense", "bytes": 64, "own_ns": [5]}]},
        {"calls": [{"name": "dense", "bytes": -1, "own_ns": [5, 6, 7]}]},
        {"calls": [{"name": "dense", "bytes": 1, "own_ns": [5, True, 7]}]},
        {"calls": {"name": 1}},
        {"plain_ns": [1]},
        {"plain_ns": [1, 2, 1e30]},
        {"watched_ns": None},
        {"calls": []},
        {"other_runs": 1 << 80},
    ],
)
def test_what_is_no_profile_is_told(lying_runner, tmp_path, change):
    with pytest.raises(DeviceError, match="an invalid profile"):
        watch(lying_runner(json.dumps(_WHOLE | change)), tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"watched_ns": [', "NaN"])
def test_what_is_no_document_is_told(lying_runner, tmp_path, text):
    with pytest.raises(DeviceError, match="an invalid profile"):
        watch(lying_runner(text), tmp_path)


def test_runs_that_are_never_alike_have_no_profile(lying_runner, tmp_path):
    report = _WHOLE | {"watched_ns": [], "calls": [], "other_runs": 3}
    with pytest.raises(DeviceError, match="same calls"):
        watch(lying_runner(json.dumps(report)), tmp_path)


@pytest.fixture
def slow(tmp_path):
    """Return folders with a runner that reports a given time for a run."""

    def make(run_ns):
        report = json.dumps({"samples_ns": [run_ns]})
        script = f"""#!/bin/sh
for word do [ "$last" = --report ] && echo '{report}' > "$word"; last=$word; done
"""
        (tmp_path / "runner").write_text(script)
        (tmp_path / "runner").chmod(0o755)
        return {"runners": str(tmp_path), "inputs": "any"}

    return make


def pace(folders, root):
    return profiling.pace(deploys.installed(folders, root))


def test_watching_waits_as_long_as_a_slow_board_needs(tiny, folders, slow, tmp_path):
    assert 0 < pace_of_release(tiny, folders, tmp_path) < 60
    assert pace(slow(1000), tmp_path) == pytest.approx(1e-6)
    # 50 runs of both kinds and those before, at a minute each.
    assert profiling.longest_s(50, 60.0) > 2 * 52 * 60
    assert profiling.longest_s(5, 0.001) < 1000
    assert list((tmp_path / "run").iterdir()) == []


def test_a_device_is_not_waited_for_longer_than_its_run_took(slow, tmp_path):
    assert pace(slow((1 << 62) - 1), tmp_path) < 60


def test_the_limit_is_that_of_the_pace(lying_runner, tmp_path, monkeypatch):
    limits, run = [], LocalShell.run

    def recording_run(self, script, **options):
        limits.append(options.get("timeout"))
        return run(self, script, **options)

    monkeypatch.setattr(LocalShell, "run", recording_run)
    profiling.watch(deploys.installed(lying_runner(json.dumps(_WHOLE)), tmp_path), 3, run_s=70.0)
    assert max(limit for limit in limits if limit) == profiling.longest_s(3, 70.0) >= 2 * 5 * 70.0


def test_a_failing_runner_is_told_as_elsewhere(lying_runner, tmp_path):
    with pytest.raises(DeviceError, match="does not run") as caught:
        watch(lying_runner("", code=5), tmp_path)
    assert caught.value.details == "its own words"
    with pytest.raises(VerificationError, match="does not accept"):
        watch(lying_runner("", code=runner.UNTRUSTED), tmp_path)
    assert list((tmp_path / "run").iterdir()) == []


@pytest.fixture
def peak(program, tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))

    def measure(folders, *, kept=True):
        return profiling.peak(LocalShell(), folders["runners"], program, _FACTS, threads=1, kept=kept)

    return measure


def test_a_peak_is_measured_once(peak, lying_runner, tmp_path):
    first = peak(lying_runner(json.dumps(_PEAK)))
    assert (first.gflops, first.gbytes_s, first.threads) == (12.5, 3.25, 1 + 1)
    assert "NEON" in first.method
    assert peak(lying_runner("", code=1)) == first
    (cached,) = (tmp_path / "cache" / "peaks").iterdir()
    cached.write_text("{")
    with pytest.raises(DeviceError, match="cannot be measured"):
        peak(lying_runner("", code=1))


def test_a_peak_of_a_busy_device_is_not_kept(peak, lying_runner, tmp_path):
    peak(lying_runner(json.dumps(_PEAK)), kept=False)
    assert not (tmp_path / "cache" / "peaks").exists()


@pytest.mark.parametrize(
    "change", [{"gflops": 0}, {"gflops": 1e300}, {"gbytes_s": "x"}, {"threads": -1}, {"array_kib": None}]
)
def test_what_is_no_peak_is_told(peak, lying_runner, change):
    with pytest.raises(DeviceError, match="an invalid peak"):
        peak(lying_runner(json.dumps(_PEAK | change)))


def test_this_machine_reaches_something(peak, program):
    measured = peak({"runners": str(program.path.parent)})
    assert measured.gflops > 0.01
    assert measured.gbytes_s > 0.01
    assert measured.threads == 1
