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
def calls(monkeypatch):
    """Replace the survey by one of two steps; return what it was asked for."""
    calls = []
    outcomes = [Outcome("device", "", 0.1, {"cpus": 2}), Outcome("hardware", "", 0.2, {}, DeviceError("it is gone"))]

    def run(request, folder, _tell):
        calls.append((request, folder))
        return Survey(request.board.name, False, {}, tuple(outcomes[: len(request.networks)]))  # noqa: FBT003

    monkeypatch.setattr(survey, "run", run)
    monkeypatch.setattr("toolchain.pipeline.preflight.before_survey", lambda *_: None)  # which would ask the device
    return calls


def test_the_first_failures_code(calls):
    result = toolchain("survey", "--board", "rk3399", "--host", "me@10.0.0.7")
    assert result.code == 4
    assert "| hardware |  | FAILED (4)" in result.out
    assert "error: it is gone" in result.err
    request, folder = calls[0]
    assert (request.networks, request.budget_s, folder) == (survey.NETWORKS, 10.0, Path("survey-rk3399"))
    assert (request.boards.host, request.boards.purpose) == ("me@10.0.0.7", "tune survey")


def test_what_a_command_line_changes(calls, tmp_path):
    arguments = ["survey", "mlp", "--budget", 2, "-o", tmp_path / "out", "--toolchain", "host", "--json"]
    result = toolchain(*arguments)
    assert result.code == 0, result.err
    assert [step["step"] for step in json.loads(result.out)["steps"]] == ["device"]
    request, folder = calls[0]
    assert (request.networks, request.budget_s, request.toolchain, folder) == (("mlp",), 2.0, "host", tmp_path / "out")


def test_short_tunings_are_those_of_the_tune_command(calls, monkeypatch, tmp_path):
    tunings = []
    monkeypatch.setattr(
        "toolchain.cli.tuning.run_tune", lambda *arguments, passing: tunings.append((*arguments, passing))
    )
    toolchain("survey", "mlp", "--trials", 5, "--toolchain", "host")
    calls[0][0].tune("mlp", tmp_path / "records")
    (_console, network, options, passing) = tunings[0]
    assert (network, passing) == ("mlp", True)
    assert options == TuneOptions(toolchain="host", search=SearchOptions(trials=5), records=tmp_path / "records")


def test_no_trials(calls):
    assert toolchain("survey", "--trials", 0).code == 2
    assert calls == []
