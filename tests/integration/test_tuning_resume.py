"""A tuning run that is killed and started again ends as if nobody had touched it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from toolchain.records import RecordFile, Records


def start(records: Path, kind: str, ahead: int, trials: int = 96) -> subprocess.Popen[bytes]:
    folder = records.with_suffix(".libraries")
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.support.tuning_client", "mlp", records, folder, kind, trials, ahead, 0.02]
    return subprocess.Popen([*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def finished(process: subprocess.Popen[bytes]) -> bytes:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return out


def read(records: Path) -> Records:
    return RecordFile(records).read() if records.exists() else Records.collect()


def kill_after(process: subprocess.Popen[bytes], records: Path, count: int) -> None:
    """Kill a run as soon as so many trials are recorded."""
    while process.poll() is None and len(read(records).trials) < count:
        time.sleep(0.01)
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("kind", "ahead"),
    [
        pytest.param("evolutionary-xgb", 64, marks=pytest.mark.nightly),
        ("evolutionary-random", 0),
        pytest.param("grid", 16, marks=pytest.mark.nightly),
    ],
)
def test_a_run_that_is_killed_ends_with_the_same_best_records(tmp_path, kind, ahead):
    uninterrupted = finished(start(tmp_path / "whole.jsonl", kind, ahead))
    assert uninterrupted

    stream = random.Random(kind)  # noqa: S311 - a choice of moments
    records = tmp_path / "killed.jsonl"
    for _ in range(int(os.environ.get("TOOLCHAIN_KILLS", "3"))):
        before = len(read(records).trials)
        kill_after(start(records, kind, ahead), records, before + stream.randint(1, 20))
        assert len(read(records).trials) >= before
    assert finished(start(records, kind, ahead)) == uninterrupted

    tried = [(trial.workload, trial.candidate) for trial in read(records).trials if not trial.is_final]
    assert len(tried) == len(set(tried)), "no trial was measured twice"


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    records = tmp_path / "records.jsonl"
    process = start(records, "random", 1)
    while len(read(records).trials) < 20:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    trials = read(records).trials
    finished(start(records, "random", 1))
    assert read(records).trials[: len(trials)] == trials
    assert len([trial for trial in read(records).trials if not trial.is_final]) == 96


def test_more_trials_go_on_from_fewer(tmp_path):
    finished(start(tmp_path / "step.jsonl", "evolutionary-random", 1, trials=40))
    more = finished(start(tmp_path / "step.jsonl", "evolutionary-random", 1, trials=96))
    assert more == finished(start(tmp_path / "whole.jsonl", "evolutionary-random", 1, trials=96))
