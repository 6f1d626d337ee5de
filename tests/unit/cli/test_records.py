"""The `records` commands: their text and their JSON, and what they say to a wrong file."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.support.tunings import KEY, OTHER, OTHER_KEY, TARGET, record, workload
from toolchain.cli import records
from toolchain.cli.console import Console
from toolchain.errors import InputError
from toolchain.records import Key, RecordFile
from toolchain.report import plain


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rpi4.jsonl"
    RecordFile(path).append(
        [
            workload(0, "conv", 4e6),
            record(1, 2e-3, board="bench-1", tuner="grid"),
            record(2, 1e-3, board="bench-2", tuner="grid"),
            record(3, None),
            record(4, 3e-3, target=OTHER, emulated=True),
        ]
    )
    return path


def run(*argv, say=str):
    console = Console(say, print)
    return records.records.main([str(argument) for argument in argv], standalone_mode=False, obj=console)


def document(*argv):
    result = run(*argv, "--json")
    assert result.as_json
    return json.loads(json.dumps(result.document, default=dataclasses.asdict))


def test_show_prints_a_table_for_each_target(file):
    text = plain(run("show", file).text)
    first, second = text.split("\n\n")
    assert first.startswith(f"target {KEY.id}  ")
    assert "EMULATED" not in first
    row = first.splitlines()[-1].split()
    assert row[:8] == ["conv", "3", "crash", "1", "1.0000", "ms", "4.00", "bench-2"]
    assert "EMULATED" in second.splitlines()[0]


def test_show_as_json(file):
    first, second = document("show", file)
    assert (first["id"], first["target"], first["emulated"], second["emulated"]) == (KEY.id, TARGET, False, True)
    assert first["tasks"][0]["failures"] == {"crash": 1}
    assert first["tasks"][0]["latency_s"] == 1e-3


def test_show_takes_the_boards_own_file(file, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_RECORDS", str(file.parent))
    lines = []
    assert run("show", "--board", "rpi4", say=lines.append).text == run("show", file).text
    assert lines == [f"tuning records: {file}"]
    assert run("show", "--board", "boards/rpi4.toml").text == run("show", file).text


def test_best_prints_the_fastest_of_each_target(file):
    emulated = Key.of(OTHER, emulated=True)
    table = run("best", file).text
    assert table.head == ("TARGET", "KERNEL", "LATENCY", "NOTES")
    assert table.rows == [(KEY.id, "conv", "1.0000 ms", ""), (emulated.id, "conv", "3.0000 ms", "")]
    assert [record["index"] for record in document("best", file, "--target", KEY.id)] == [2]


def test_distill_and_merge_tell_what_they_wrote(file, tmp_path):
    best, merged = tmp_path / "best.jsonl", tmp_path / "both.jsonl"
    assert run("distill", file, "-o", best).text == f"{best}: 2 records of 1 kernels"
    assert document("merge", file, best, "-o", merged) == {"file": str(merged), "workloads": 1, "trials": 4}
    assert len(RecordFile(merged).read().trials) == 4


def test_export_wants_one_target(file, tmp_path):
    with pytest.raises(InputError, match="records for 2 targets") as caught:
        run("export", file, "-o", tmp_path / "out")
    assert KEY.id in caught.value.details
    assert "--target" in caught.value.hint


@pytest.mark.parametrize("command", ["show", "best"])
def test_another_target_is_refused_with_those_there_are(file, command):
    with pytest.raises(InputError, match=f"no records for target {OTHER_KEY.id}") as caught:
        run(command, file, "--target", OTHER_KEY.id)
    assert KEY.id in caught.value.details


@pytest.mark.parametrize(
    "argv", [["show", "{}"], ["best", "{}"], ["distill", "{}", "-o", "x"], ["merge", "{}", "-o", "x"]], ids=" ".join
)
@pytest.mark.parametrize("content", [None, b"notes\n"], ids=["missing", "notes"])
def test_a_wrong_file_is_named(tmp_path, monkeypatch, argv, content):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match="file") as caught:
        run(*(argument.format("file") for argument in argv))
    assert caught.value.hint
    assert not (tmp_path / "x").exists()


def test_a_file_without_trials_says_so(tmp_path):
    RecordFile(tmp_path / "empty.jsonl").append([workload()])
    assert "holds no trials" in run("show", tmp_path / "empty.jsonl").text


# --- forgetting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "remaining_trials"),
    [
        (("--machine", "bench-1"), [2, 3, 4]),
        (("--target", KEY.id), [4]),
        (("--op", "on"), []),
        (("--op", "dense"), [1, 2, 3, 4]),
        (("--older-than", "1d"), []),
        (("--all",), []),
        (("--target", KEY.id, "--machine", "bench-2"), [1, 3, 4]),
    ],
    ids=str,
)
def test_forgetting(file, options, remaining_trials):
    before = file.read_bytes()
    would = run("forget", file, *options, "--dry-run").text
    assert file.read_bytes() == before
    assert f"{4 - len(remaining_trials)} trials and 0 finals" in would
    assert "would be forgotten" in would
    report = document("forget", file, *options)
    assert (report["trials"], report["kept"]) == (4 - len(remaining_trials), len(remaining_trials))
    remaining = RecordFile(file).read()
    assert [trial.index for trial in remaining.trials] == remaining_trials
    assert bool(remaining.workloads) == bool(remaining_trials)


def test_forgetting_the_kernels_of_a_model(file, monkeypatch):
    task = workload(7, "dense")
    RecordFile(file).append([task, record(9, workload=task.workload)])
    tasks = type("Extracted", (), {"tasks": [task]})
    monkeypatch.setattr("toolchain.pipeline.tune.extract", lambda _request: tasks)
    run("forget", file, "--model", "mlp")
    assert [trial.index for trial in RecordFile(file).read().trials] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ((), "no records are chosen"),
        (("--all", "--op", "conv"), "--all and a choice of records cannot be combined"),
        (("--older-than", "soon"), "'soon' is not a valid time span"),
        (("--target", "abc"), "no records for target abc"),
    ],
)
def test_what_is_to_be_forgotten_is_said(file, options, cause):
    before = file.read_bytes()
    with pytest.raises(InputError, match=cause) as caught:
        run("forget", file, *options)
    assert caught.value.hint or caught.value.details
    assert file.read_bytes() == before


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        run("forget", tmp_path / "none.jsonl", "--all")
    assert list(tmp_path.iterdir()) == []


def test_show_tells_what_finals_decided_and_how_it_was_measured(file):
    quick = {"number": 1, "repeat": 1, "min_repeat_ms": 0, "cache_flush": 0}
    fields = {"schema": 2, "verdict": "faster", "base_s": (3e-3,), "options": quick, "threads": 1}
    RecordFile(file).append(
        [record(5, 2e-3, **fields), record(6, 2e-3, **{**fields, "threads": 2, "verdict": "untuned"})]
    )
    text = plain(run("show", file).text)
    assert "1.50x" in text
    assert "1 thread(s), measured with" in text
    assert run("best", file).text.rows[-1][-1] == "untuned"
