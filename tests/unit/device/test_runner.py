"""Calling the runner; what it does itself is in integration/test_runner.py."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from toolchain.device import runner, verification
from toolchain.device.runner import Plan
from toolchain.errors import DeviceError
from toolchain.shell import LocalShell
from toolchain.tensors import TensorSpec


@pytest.fixture
def root_and_folders(tiny, program, tmp_path):
    """The folders of a call, without a store; the root has a name that a shell would take apart."""
    root = tmp_path / "the root's"
    (root / "inputs").mkdir(parents=True)
    runner.tensors.save(root / "inputs" / runner.INPUTS, verification.samples_of(tiny).inputs)
    return root, {"runners": str(program.path.parent), "inputs": str(root / "inputs")}


def call(root, folders, **options):
    return runner.call(LocalShell(), str(root), folders, outputs=(TensorSpec("y", (1, 16), "float32"),), **options)


def test_a_run_is_waited_for_as_long_as_its_network_may_take():
    small, large = (runner.longest_s(runner.SMOKE, size) for size in (100 << 10, 1 << 30))
    assert 60 < small < 150 < large == runner.longest_s(runner.SMOKE) <= 600
    assert runner.longest_s(runner.Plan(), 100 << 10) < 300
    assert runner.longest_s(runner.Plan(samples=50), 100 << 10) > 5 * 100


def test_kernels_that_a_driver_compiles_have_more_time_for_the_first_run(tiny):
    manifest = dataclasses.replace(tiny.manifest, target={**tiny.manifest.target, "kind": "opencl"})
    assert runner.weight(tiny.manifest) == sum(record.size for record in tiny.manifest.files.values())
    assert runner.longest_s(runner.SMOKE, runner.weight(manifest)) > runner.longest_s(runner.SMOKE, 1)


def test_a_runner_that_hangs_is_ended(tiny, root_and_folders, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_START_S", 0.2)
    root, folders = root_and_folders
    hung = tmp_path / "hung" / runner.RUNNER
    hung.parent.mkdir()
    hung.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    hung.chmod(0o755)
    folders = {**folders, "runners": str(hung.parent)}
    with pytest.raises(DeviceError, match=r"did not finish within 0\.2 s"):
        call(root, folders, release=str(tiny.folder), threads=1, plan=runner.SMOKE, size=0)


def test_smoke_call(tiny, root_and_folders):
    root, folders = root_and_folders
    run = call(root, folders, release=str(tiny.folder), threads=1, plan=runner.SMOKE)
    assert np.allclose(run.outputs["y"], verification.samples_of(tiny).expected["y"], rtol=1e-5)
    assert (run.samples_ns, len(run.warmup_ns), run.threads) == ((), 1, 1)
    assert run.load_ms > 0
    assert run.peak_rss_kib > 1000
    assert run.involuntary_switches == 0, "nothing was timed"
    assert list((root / "run").iterdir()) == []


def test_timed_call(tiny, root_and_folders):
    root, folders = root_and_folders
    plan = Plan(budget_s=0.0, warmup_runs=3, min_runs=7)
    run = call(root, folders, release=str(tiny.folder), threads=0, plan=plan)
    assert (len(run.samples_ns), len(run.warmup_ns)) == (7, 4)
    assert run.threads == len(os.sched_getaffinity(0))
    assert min(run.samples_ns) > 0


def test_budget_ends_a_call(tiny, root_and_folders):
    root, folders = root_and_folders
    plan = Plan(budget_s=0.2, max_runs=10_000_000)
    run = call(root, folders, release=str(tiny.folder), threads=1, plan=plan)
    assert 3 < len(run.samples_ns) < plan.max_runs
    assert sum(run.samples_ns) < 1e9


def test_failing_call_leaves_nothing(root_and_folders, tmp_path):
    root, folders = root_and_folders
    with pytest.raises(DeviceError, match="does not run on local") as caught:
        call(root, folders, release=str(tmp_path / "no"), threads=1, plan=runner.SMOKE)
    assert "there is no release" in caught.value.details
    assert list((root / "run").iterdir()) == []


def test_variables_are_set(root_and_folders, tmp_path):
    root, folders = root_and_folders
    (tmp_path / "runner").write_text('#!/bin/sh\necho "it is $ANY" >&2\nexit 3\n')
    (tmp_path / "runner").chmod(0o755)
    options = {"release": "any", "threads": 1, "plan": runner.SMOKE, "environment": {"ANY": "two words"}}
    with pytest.raises(DeviceError) as caught:
        call(root, {**folders, "runners": str(tmp_path)}, **options)
    assert caught.value.details == "it is two words"


def test_crash_is_told(root_and_folders, tmp_path):
    root, _ = root_and_folders
    crashing = tmp_path / "runner"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    folders = {"runners": str(tmp_path), "inputs": str(tmp_path)}
    with pytest.raises(DeviceError) as caught:
        call(root, folders, release="x", threads=1, plan=runner.SMOKE)
    assert "Segmentation fault" in caught.value.details


WELL = '{"samples_ns": [], "warmup_ns": [], "each_ns": [5], "load_ms": 1, "threads": 1, "peak_rss_kib": 9, '
WELL += '"involuntary_switches": 0, "processor": null, "copies": null}'


def lying(tmp_path, *lines):
    """Make what stands in for a runner on a device, and says what it likes; return the folders of a call."""
    options = "for word; do case $last in --report) report=$word ;; --outputs) outputs=$word ;; esac; last=$word; done"
    (tmp_path / "runner").write_text("\n".join(["#!/bin/sh", options, *lines, ""]))
    (tmp_path / "runner").chmod(0o755)
    return {"runners": str(tmp_path), "inputs": str(tmp_path)}


@pytest.mark.parametrize(
    "report",
    [
        *("", "no JSON", "[]", "null", "{}", "[" * 5000, "\\033[31m", WELL.replace("[5]", "[]")),
        *(WELL.replace("5", '"5"'), WELL.replace("5", "-5"), WELL.replace("5", "1e400"), WELL.replace("1,", "null,")),
        *(WELL.replace('"copies": null', f'"copies": {copies}') for copies in ("1", "{}", "[]", '{"to_device": "1"}')),
        WELL.replace('"copies": null', '"copies": {"to_device": -1, "from_device": 1, "resident": 1}'),
        *(WELL.replace("9", "9" * 30), WELL.replace("9", "9" * 5000), WELL.replace("[5]", "7")),
    ],
)
def test_a_report_that_is_none(root_and_folders, tmp_path, report):
    root, folders = root_and_folders
    (tmp_path / "said").write_text(report)
    copy = f'cp {tmp_path}/said "$report"; cp "{folders["inputs"]}/{runner.INPUTS}" "$outputs"'
    with pytest.raises(DeviceError, match="an invalid report") as caught:
        call(root, lying(tmp_path, copy), release="x", threads=1, plan=runner.SMOKE)
    assert len(caught.value.details) < 1000
    assert list((root / "run").iterdir()) == []


@pytest.mark.parametrize(("samples", "min_runs", "max_runs"), [("", 3, 100), ("7, 7", 3, 100), ("7", 3, 2)])
def test_a_report_with_too_few_runs(root_and_folders, tmp_path, samples, min_runs, max_runs):
    root, folders = root_and_folders
    (tmp_path / "said").write_text(WELL.replace('"samples_ns": []', f'"samples_ns": [{samples}]'))
    copy = f'cp {tmp_path}/said "$report"; cp "{folders["inputs"]}/{runner.INPUTS}" "$outputs"'
    with pytest.raises(DeviceError, match="an invalid report") as caught:
        call(root, lying(tmp_path, copy), release="x", threads=1, plan=Plan(min_runs=min_runs, max_runs=max_runs))
    assert f"than {min(min_runs, max_runs)}" in caught.value.details


@pytest.mark.parametrize("which", ["report", "outputs"])
def test_an_answer_without_an_end(root_and_folders, tmp_path, which):
    root, _ = root_and_folders
    folders = lying(tmp_path, 'echo "{}" >"$report"; echo >"$outputs"', f'ln -sf /dev/zero "${which}"')
    with pytest.raises(DeviceError, match="wrote more than"):
        call(root, folders, release="x", threads=1, plan=runner.SMOKE)
    assert list((root / "run").iterdir()) == []
