"""Winners with which the whole model is slower are taken back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.tunings import KEY, record, workload
from toolchain.records import RecordFile
from toolchain.tuning import finals
from toolchain.tuning.report import EndToEnd, TaskRow, TuneReport

BASE = f"{7:016x}"


def winner(number=0, **fields):
    defaults = {
        "schema": 2,
        "verdict": "faster",
        "base_s": (2e-3, 3e-3),
        "workload": f"{number:016x}",
        "trace": '"tile"',
    }
    return record(number + 1, 1e-3, among=(BASE, f"{number + 1:016x}"), **(defaults | fields))


def row(number, verdict, best_s):
    return TaskRow(number, f"task{number}", "conv", "1x2", 3, 1.0, 8, 0, best_s, False, 2.5e-3, 0, verdict)  # noqa: FBT003


def report(winners, end_to_end):
    plain = SimpleNamespace(**dict.fromkeys(TuneReport.__dataclass_fields__, None))
    plain.tasks = (row(0, "faster", 1e-3), row(1, "untuned", 2.5e-3), row(2, "", None))
    plain.winners, plain.end_to_end = winners, end_to_end
    return TuneReport(**vars(plain))


@pytest.fixture
def file(tmp_path):
    records_file = RecordFile(tmp_path / "R.jsonl")
    records_file.append([workload(0), winner()])
    return records_file


def test_a_winner_is_taken_back_and_its_kernel_stays_untuned(file):
    assert file.read().best(KEY)[f"{0:016x}"].verdict == "faster"
    result = finals.take_back(report((winner(),), EndToEnd("tuned is SLOWER: 0.90")), file)
    decided = file.read().best(KEY)[f"{0:016x}"]
    assert (decided.verdict, decided.candidate, decided.samples_s) == ("untuned", BASE, (2e-3, 3e-3))
    assert decided.error == "the whole model: tuned is SLOWER: 0.90"
    assert decided.among == winner().among, "and the same final is not held again"
    assert [(task.verdict, task.best_s) for task in result.tasks] == [
        ("untuned", 2.5e-3),
        ("untuned", 2.5e-3),
        ("", None),
    ]
    assert result.end_to_end.outcome == "tuned is SLOWER: 0.90; so it is taken back"
    assert (result.end_to_end.taken_back, result.winners) == (1, ())


def test_all_winners_are_taken_back_at_once(file):
    result = finals.take_back(report((winner(), winner(1)), EndToEnd("SLOWER")), file)
    assert result.end_to_end.outcome == "SLOWER; so all 2 winners are taken back"
    assert {record.verdict for record in file.read().decided(KEY).values()} == {"untuned"}


@pytest.mark.parametrize(("winners", "end"), [((), EndToEnd("SLOWER")), ((winner(),), None)])
def test_nothing_is_to_be_taken_back(file, winners, end):
    before, original = file.path.read_bytes(), report(winners, end)
    assert finals.take_back(original, file) is original
    assert file.path.read_bytes() == before
