"""Reports tell of the run that was asked for last, whatever became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from html import escape

import click
import pytest

from tests.support.commands import done, parsed, toolchain
from toolchain import files
from toolchain.cli import cli, reports
from toolchain.errors import BuildError, DeviceError, InputError, VerificationError
from toolchain.report import Headline, Page

GREEN = '<testsuite name="toolchain deploy" tests="2" failures="0" errors="0"/>'
PAGE = Page("mlp", "deploy", Headline("all is well", "good"), []).html()
REPORT = '{"schema_version": 1, "bundle_digest": "sha256:0", "outputs": {"ok": true}}'


@pytest.fixture
def green(tmp_path):
    """The files of an earlier run that went well, and the options that name them."""
    (tmp_path / "r.xml").write_text(GREEN)
    (tmp_path / "r.json").write_text(REPORT)
    (tmp_path / "r.html").write_text(PAGE)
    return ["--junit", tmp_path / "r.xml", "--json", tmp_path / "r.json", "--html", tmp_path / "r.html"]


def told(tmp_path):
    """Return what all the files say, which must be the same: message and exit code."""
    suite = ET.parse(tmp_path / "r.xml").getroot()  # noqa: S314 - our own file
    wrong = [*suite.iter("failure"), *suite.iter("error")]
    error = json.loads((tmp_path / "r.json").read_text())["error"]
    assert [case.get("message") for case in wrong] == [error["message"]]
    assert int(suite.get("failures")) + int(suite.get("errors")) == 1
    html = (tmp_path / "r.html").read_text()
    assert escape(error["message"]) in html
    assert "all is well" not in html
    return error


WRONG = [
    ["deploy", "no-such-model"],
    ["deploy", "mlp", "--board", "x86_64"],
    ["deploy", "mlp", "--board", "nonesuch"],
    ["deploy", "mlp", "--budget", "much"],
    ["deploy", "mlp", "--no-such-option"],
    ["deploy"],
    ["deploy", "mlp", "--records", "x", "--no-records"],
    ["bench", "--board", "nonesuch"],
    ["bench", "--no-such-option"],
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_input_leaves_nothing_green(arguments, green, tmp_path):
    result = toolchain(*arguments, *green)
    assert result.code == 2
    error = told(tmp_path)
    assert error["exit_code"] == 2
    assert error["message"] in result.err


@pytest.mark.parametrize(
    "fault", [InputError, BuildError, DeviceError, VerificationError, ZeroDivisionError, RecursionError]
)
def test_every_end_is_written(fault, green, tmp_path, monkeypatch):
    def fails(*_arguments, **_options):
        raise fault("the step failed")

    monkeypatch.setattr("toolchain.pipeline.source.BundleSource.obtain", fails)
    result = toolchain("deploy", "mlp", *green)
    error = told(tmp_path)
    assert error["exit_code"] == result.code == getattr(fault, "exit_code", 70)
    assert "the step failed" in error["message"]


def test_the_files_are_taken_before_the_model_is_looked_at(green, tmp_path, monkeypatch):
    errors = []

    def looks(*_arguments, **_options):
        errors.append(told(tmp_path))
        raise KeyboardInterrupt

    monkeypatch.setattr("toolchain.board.load", looks)
    assert toolchain("deploy", "mlp", *green).code == 130
    assert (errors[0]["message"], errors[0]["exit_code"]) == ("the run has not finished", None)
    assert (told(tmp_path)["message"], told(tmp_path)["exit_code"]) == ("interrupted", 130)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_nothing_green(number, green, tmp_path):
    """A real process with a real signal, as soon as it is at work."""
    command = [sys.executable, "-c", "from toolchain.cli import main; main()", "deploy", "mobilenet"]
    command_line = [*command, "--root", str(tmp_path / "root"), *map(str, green)]  # the user's own may be busy
    environment = os.environ | {"TOOLCHAIN_CACHE": str(files.cache_root())}
    with subprocess.Popen(
        command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        before = next((line for line in process.stderr if "importing" in line), "it ended")
        assert told(tmp_path)["message"] == "the run has not finished"
        process.send_signal(number)
        out, err = process.communicate()
    expected = {signal.SIGTERM: "interrupted by SIGTERM", signal.SIGINT: "interrupted"}.get(number)
    assert process.returncode == (130 if expected else -signal.SIGKILL), err
    assert told(tmp_path)["message"] == (expected or "the run has not finished")
    assert (out, before) == ("", "importing mobilenet\n")


@pytest.mark.parametrize("option", ["--json", "--junit", "--html"])
@pytest.mark.parametrize("path", ["none/report", "folder", "/proc/none"])
def test_a_report_that_cannot_be_written_is_told_first(option, path, green, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("toolchain.board.load", lambda _name: pytest.fail("a board was looked at"))
    other = green[green.index("--html" if option == "--json" else "--json") :][:2]
    result = toolchain("deploy", "mlp", f"{option}={tmp_path / path}", *other)
    assert (result.code, "cannot write" in result.err, "hint: " in result.err) == (2, True, True), result.err
    assert "cannot write" in other[1].read_text()


@pytest.mark.parametrize("option", ["--json", "--junit", "--html"])
@pytest.mark.parametrize("content", ['{"name": "webapp"}', "[]", '<testsuite name="pytest"/>', "\x08\x0a"])
def test_files_of_others_are_left_alone(option, content, tmp_path):
    (tmp_path / "mine").write_text(content)
    result = toolchain("deploy", "mlp", f"{option}={tmp_path / 'mine'}")
    assert (result.code, "something other than" in result.err) == (2, True), result.err
    assert (tmp_path / "mine").read_text() == content


def test_reports_of_a_run_that_failed_give_way(green, tmp_path):
    for _ in range(2):
        assert toolchain("deploy", "no-such-model", *green).code == 2
        assert "no-such-model" in told(tmp_path)["message"]


@pytest.mark.parametrize(
    "arguments", [["compare", "none"], ["tune", "none", "--trials", "0"], ["survey", "--trials", "0"]]
)
def test_commands_with_a_page_alone(arguments, tmp_path):
    (tmp_path / "r.html").write_text(PAGE)
    result = toolchain(*arguments, "--html", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert (result.code, "all is well" in text, "it ended with" in text) == (2, False, True)
    (tmp_path / "r.html").write_text("<!DOCTYPE html><title>mine</title>")
    assert toolchain(*arguments, "--html", tmp_path / "r.html").code == 2
    assert (tmp_path / "r.html").read_text() == "<!DOCTYPE html><title>mine</title>"


def test_help_is_no_run(green, tmp_path):
    assert toolchain("deploy", "--help", *green).code == 0
    assert (tmp_path / "r.xml").read_text() == GREEN


def test_quantize_invalidates_its_report(tmp_path):
    (tmp_path / "q.json").write_text('{"layers": [], "top1_agreement": 1.0}')
    assert toolchain("quantize", "nonesuch", "--calibration", "random", "--report", tmp_path / "q.json").code == 2
    assert json.loads((tmp_path / "q.json").read_text())["error"]["exit_code"] == 2


# --- errors as JSON --------------------------------------------------------------------------------------------

ASKED = [
    ["build", "nonesuch", "--json"],
    ["deploy", "nonesuch", "--json", "-"],
    ["deploy", "nonesuch", "--json=-"],
    ["bench", "--board", "nonesuch", "--json", "-"],
    ["inspect", "model", "nonesuch", "--json"],
    ["board", "check", "none.toml", "--json"],
    ["status", "--board", "nonesuch", "--json"],
    ["tune", "nonesuch", "--json", "--toolchain", "host"],
    ["records", "show", "none.jsonl", "--json"],
    ["build", "--json"],
    ["build", "mlp", "--json", "--no-such-option"],
    ["compare", "mlp", "--json", "--budget", "much"],
]


@pytest.mark.parametrize("arguments", ASKED, ids=" ".join)
def test_errors_are_json_where_json_was_asked(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = toolchain(*arguments)
    error = json.loads(result.out)["error"]
    assert set(error) == {"message", "details", "hint", "exit_code"}
    assert error["exit_code"] == result.code == 2
    assert error["message"] in result.err
    assert list(tmp_path.iterdir()) == []


def test_internal_errors_and_interrupts_too(monkeypatch):
    for fault, code in ((ZeroDivisionError("oh"), 70), (KeyboardInterrupt(), 130)):

        def fails(fault=fault):
            raise fault

        monkeypatch.setattr("toolchain.board.names", fails)
        result = toolchain("board", "list", "--json")
        assert json.loads(result.out)["error"]["exit_code"] == result.code == code


def test_where_json_goes_to_a_file_standard_output_is_for_people(tmp_path):
    result = toolchain("deploy", "nonesuch", "--json", tmp_path / "r.json")
    assert (result.code, result.out) == (2, "")


def test_a_result_that_is_a_fault_stays_one_document(tmp_path):
    (tmp_path / "typo.toml").write_text('conection = "ssh"\n')
    result = toolchain("board", "check", tmp_path / "typo.toml", "--json")
    assert result.code == 2
    assert json.loads(result.out)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--json", "a"], "a"),
        (["--json=a"], "a"),
        (["--json", "a", "--json", "b"], "b"),
        (["--json"], None),
        (["--", "--json", "a"], None),
        ([], None),
    ],
)
def test_an_option_is_found_in_any_command_line(arguments, value):
    assert reports.value_of(arguments, "--json") == value


def test_two_reports_for_one_file_are_refused_and_it_tells_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = toolchain("deploy", "mlp", "--json=both", "--html", tmp_path / "both")
    assert result.code == 2
    assert "two reports would be written to" in result.err
    assert "two reports would be written to" in json.loads((tmp_path / "both").read_text())["error"]["message"]


@pytest.mark.parametrize(
    ("command_line", "spelled"),
    [
        ("models --json", "models --json=-"),
        ("models --json -", "models --json=-"),
        ("models --json a.json --debug", "models --json=a.json --debug"),
        ("inspect package --json a.tar", "inspect package --json=- a.tar"),
        ("models --json=a", "models --json=a"),
        ("farm lock a --json -- run --json", "farm lock a --json=- -- run --json"),
    ],
)
def test_only_json_files_are_values_of_json(command_line, spelled):
    assert reports.with_json_value(command_line.split()) == spelled.split()


def test_the_result_of_any_command_is_written_to_a_file(tmp_path):
    file = tmp_path / "models.json"
    result = done("model", "list", "--json", file)
    assert "mobilenet" in result.out
    assert (
        json.loads(file.read_text()) == parsed("model", "list") == json.loads(done("model", "list", "--json", "-").out)
    )


def test_the_failure_of_any_command_is_written_to_its_file(tmp_path):
    file = tmp_path / "result.json"
    done("model", "list", "--json", file)
    assert toolchain("inspect", "package", tmp_path / "none", "--json", file).code == 2
    assert "there is no package" in json.loads(file.read_text())["error"]["message"]


@pytest.mark.parametrize("content", ["years of work", '{"name": "my-package"}\n', "[]"])
def test_a_result_replaces_only_an_earlier_result(content, tmp_path):
    file = tmp_path / "thesis.json"
    file.write_text(content)
    assert toolchain("model", "list", "--json", file).code == 2
    assert file.read_text() == content
    file.unlink()
    for _ in range(2):
        done("model", "list", "--json", file)


def test_completing_a_command_line_writes_no_report(tmp_path):
    arguments = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    bench = cli.get_command(click.Context(cli), "bench")
    assert bench
    bench.make_context("bench", arguments, resilient_parsing=True)
    assert list(tmp_path.iterdir()) == []
