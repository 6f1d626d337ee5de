"""The course of a survey, with steps that do nothing; what the real ones find is in integration/test_survey.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolchain import board
from toolchain.errors import BuildError, DeviceError, InputError, ToolchainError, VerificationError
from toolchain.farm.boards import BoardRequest
from toolchain.pipeline import survey
from toolchain.pipeline.survey import Outcome, Survey, SurveyRequest

LOCAL = board.load("local").resolved()
REMOTE = board.load("rk3399").resolved()


def never(*_words):
    pytest.fail("nothing is to be tuned")


def fails(fault: Exception):
    def action():
        raise fault

    return action


@pytest.fixture
def surveyed(tmp_path, monkeypatch):
    """Return a function that runs a survey of the given actions; it says what was told."""

    def run(request: SurveyRequest, *actions):
        steps = [survey._Step(f"step {number}", "net", action) for number, action in enumerate(actions)]
        monkeypatch.setattr(survey, "_plan", lambda _job: steps)
        lines = []
        return survey.run(request, tmp_path / "a" / "folder", lines.append), lines

    return run


def test_a_step_that_fails_is_recorded_and_the_next_one_follows(surveyed, tmp_path):
    fault = VerificationError("wrong numbers", details="by far", hint="look")
    result, lines = surveyed(
        SurveyRequest(BoardRequest(LOCAL), never),
        lambda: {"median_ms": 1.23456, "runs": 7},
        fails(fault),
        fails(RuntimeError("TVM trips")),
        lambda: {"warnings": None},
    )
    assert [entry.fault is None for entry in result.outcomes] == [True, False, False, True]
    assert (result.fault.exit_code, result.fault.message, result.fault.hint) == (5, "wrong numbers", "look")
    assert result.outcomes[2].fault.exit_code == 70
    assert "RuntimeError: TVM trips" in result.outcomes[2].fault.message
    assert [line for line in lines if not line.startswith("---")] == [
        "ok",
        "FAILED: wrong numbers",
        "FAILED: internal error: RuntimeError: TVM trips",
        "ok",
    ]
    assert [line for line in lines if line.startswith("---")] == [f"--- step {number} net" for number in range(4)]
    document = json.loads((tmp_path / "a" / "folder" / "report.json").read_text())
    assert document == json.loads(json.dumps(result.document()))
    assert [entry["ok"] for entry in document["steps"]] == [True, False, False, True]
    assert document["steps"][1]["fault"] == {"code": 5, "message": "wrong numbers", "details": "by far"}
    assert (tmp_path / "a" / "folder" / "report.md").read_text() == result.table()


def test_the_report_grows_with_each_step(surveyed, tmp_path):
    sizes = []

    def look():
        sizes.append(len(json.loads((tmp_path / "a" / "folder" / "report.json").read_text())["steps"]))
        return {}

    surveyed(SurveyRequest(BoardRequest(LOCAL), never), look, look, fails(DeviceError("gone")), look)
    assert sizes == [0, 1, 3]


def test_an_interrupted_survey_leaves_what_it_found(surveyed, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        surveyed(SurveyRequest(BoardRequest(LOCAL), never), dict, fails(KeyboardInterrupt()), dict)
    assert len(json.loads((tmp_path / "a" / "folder" / "report.json").read_text())["steps"]) == 1


def test_nobody_is_named(surveyed, tmp_path):
    """Neither the address of the command line nor one in an error, nor the owner of a lock."""
    request = SurveyRequest(BoardRequest(REMOTE, host="pilot@garage-board:2222"), never)
    details = "ssh: connect to host garage-board port 2222; held by ann@desk-7; 10.1.2.3 answers for pilot"
    result, _ = surveyed(
        request, fails(DeviceError("pilot@garage-board:2222 is busy", details=details, hint="ask ann@desk-7"))
    )
    text = (tmp_path / "a" / "folder" / "report.md").read_text() + json.dumps(result.document())
    for name in ("pilot", "garage", "ann", "desk-7", "10.1.2.3"):
        assert name not in text
        assert name not in result.fault.hint
    assert "... is busy" in text


def test_nobody_is_sent_to_a_file_that_is_gone_after_the_survey(surveyed, monkeypatch):
    jobs = []
    real = survey._Job
    monkeypatch.setattr(survey, "_Job", lambda *arguments: jobs.append(real(*arguments)) or jobs[0])

    def action():
        path = jobs[0].folder("mlp", "records")
        raise BuildError(
            "none of 8 candidates gave a latency", hint=f"`toolchain records show {path}` lists the failures"
        )

    result, _ = surveyed(SurveyRequest(BoardRequest(LOCAL), never), action)
    assert str(jobs[0].work) not in result.fault.hint
    assert "records show" not in result.fault.hint
    assert "toolchain tune" in result.fault.hint


def test_a_network_in_a_file_is_called_by_its_name(surveyed):
    outcome = survey._run_step(
        survey._Job(SurveyRequest(BoardRequest(LOCAL), never), Path(), print),
        survey._Step("deploy", "/home/ann/secret project/net.onnx", dict),
    )
    assert outcome.network == "net.onnx"


def test_which_device_is_asked_first(tmp_path):
    with pytest.raises(InputError, match="which rk3399 device"):
        survey.run(SurveyRequest(BoardRequest(REMOTE), never), tmp_path / "out", print)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write"):
        survey.run(SurveyRequest(BoardRequest(LOCAL), never), tmp_path / "file" / "out", print)


def test_the_steps():
    def names(kind):
        job = survey._Job(
            SurveyRequest(BoardRequest(kind, host="" if kind is LOCAL else "x"), never, ("a", "b", "c")), Path(), print
        )
        return [(step.name, step.network) for step in survey._plan(job)]

    each = [("deploy", "a"), ("deploy", "b"), ("deploy", "c")]
    half = [("float16", "a"), ("float16", "b"), ("float16", "c")]
    rest = [("start", "c"), ("steadiness", "a"), ("tune", "a"), ("tune", "b")]
    assert names(LOCAL) == [("device", ""), ("hardware", ""), *each, *rest]
    assert names(REMOTE) == [("device", ""), ("hardware", ""), *each, *half, *rest]


def test_the_table():
    faults = ToolchainError("a | b", details="one\ntwo\n")
    figures = {"median_ms": 12.34567, "start_ms": 26954.2, "warnings": None, "notes": "x|y", "long": "word " * 40}
    outcomes = (Outcome("deploy", "mlp", 3.4, figures), Outcome("tune", "mlp", 0.0, {}, faults))
    text = Survey("rk3399", True, {"tvm": "1"}, outcomes).table()  # noqa: FBT003
    lines = text.splitlines()
    assert lines[0] == "## Survey of rk3399 (emulated: times do not apply to a real board)"
    assert "tvm 1. 2 steps, 1 failed." in lines
    row = next(line for line in lines if line.startswith("| deploy"))
    assert row.startswith("| deploy | mlp | ok | median_ms 12.35, start_ms 26954, warnings -, notes x/y, long word")
    assert row.count("|") == 6
    assert len(row) < 200
    assert "| tune | mlp | FAILED (70) |  | 0 |" in lines
    assert text.endswith("### tune mlp\n\n```\na | b\none\ntwo\n```\n")
    assert "emulated" not in Survey("rk3399", False, {}, ()).table()  # noqa: FBT003


@pytest.mark.parametrize("name", ["report.json", "report.md"])
def test_reports_of_others_are_left_alone(surveyed, tmp_path, name):
    folder = tmp_path / "a" / "folder"
    folder.mkdir(parents=True)
    (folder / name).write_text('{"mine": 1}')
    with pytest.raises(InputError, match="something other than a survey"):
        surveyed(SurveyRequest(BoardRequest(LOCAL), never), dict)
    assert (folder / name).read_text() == '{"mine": 1}'


def test_an_earlier_survey_gives_way(surveyed, tmp_path):
    for _ in range(2):
        result, _told = surveyed(SurveyRequest(BoardRequest(LOCAL), never), dict)
    assert (tmp_path / "a" / "folder" / "report.md").read_text() == result.table()
