from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import toolchain
from toolchain.cli.common import SearchOptions
from toolchain.cli.tuning import TuneOptions
from toolchain.errors import DeviceError
from toolchain.pipeline import survey
from toolchain.pipeline.survey import Outcome, Survey


@pytest.fixture
def asked(monkeypatch):
    """Replace the survey by one of two steps; return what it was asked for."""
    calls = []
    outcomes = [Outcome("device", "", 0.1, {"cpus": 2}), Outcome("hardware", "", 0.2, {}, DeviceError("it is gone"))]

    def run(wanted, folder, _tell):
        calls.append((wanted, folder))
        return Survey(wanted.board.name, False, {}, tuple(outcomes[: len(wanted.networks)]))  # noqa: FBT003

    monkeypatch.setattr(survey, "run", run)
    monkeypatch.setattr("toolchain.pipeline.preflight.before_survey", lambda *_: None)  # which would ask the device
    return calls


def test_the_first_failures_code(asked):
    result = toolchain("survey", "--board", "rk3399", "--host", "me@10.0.0.7")
    assert result.code == 4
    assert "| hardware |  | FAILED (4)" in result.out
    assert "error: it is gone" in result.err
    wanted, folder = asked[0]
    assert (wanted.networks, wanted.budget_s, folder) == (survey.NETWORKS, 10.0, Path("survey-rk3399"))
    assert (wanted.boards.host, wanted.boards.purpose) == ("me@10.0.0.7", "tune survey")


def test_what_a_command_line_changes(asked, tmp_path):
    words = ["survey", "mlp", "--budget", 2, "-o", tmp_path / "out", "--toolchain", "host", "--json"]
    result = toolchain(*words)
    assert result.code == 0, result.err
    assert [one["step"] for one in json.loads(result.out)["steps"]] == ["device"]
    wanted, folder = asked[0]
    assert (wanted.networks, wanted.budget_s, wanted.toolchain, folder) == (("mlp",), 2.0, "host", tmp_path / "out")


def test_short_tunings_are_those_of_the_tune_command(asked, monkeypatch, tmp_path):
    tunings = []
    monkeypatch.setattr("toolchain.cli.tuning.run_tune", lambda *words, passing: tunings.append((*words, passing)))
    toolchain("survey", "mlp", "--trials", 5, "--toolchain", "host")
    asked[0][0].tune("mlp", tmp_path / "records")
    (_console, network, options, passing) = tunings[0]
    assert (network, passing) == ("mlp", True)
    assert options == TuneOptions(toolchain="host", search=SearchOptions(trials=5), records=tmp_path / "records")


def test_no_trials(asked):
    assert toolchain("survey", "--trials", 0).code == 2
    assert asked == []
