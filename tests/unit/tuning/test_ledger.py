"""What a run writes down."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

from toolchain.errors import InputError
from toolchain.records import Key, RecordFile
from toolchain.records.lines import USUAL
from toolchain.tuning.plan import Plan
from toolchain.tuning.records_view import Ledger
from toolchain.tuning.search import Candidate
from toolchain.tuning.trials import Measured

KEY = Key.of({"kind": "llvm"}, tvm="1", threads=2)
TASK = SimpleNamespace(workload="ab")
CANDIDATE = Candidate("cd", [["tile", 4]], None)


def ledger(folder):
    return Ledger(RecordFile(folder / "records.jsonl"), "run-1", KEY, Plan(tuner="grid", seed=3))


def test_a_line_says_what_was_measured_how_and_by_whom(tmp_path):
    record = ledger(tmp_path).line(TASK, CANDIDATE, Measured((1e-3,), board="a"), round=2, index=1, of=16)
    assert (record.workload, record.candidate, json.loads(record.trace)) == ("ab", "cd", [["tile", 4]])
    assert (record.run, record.tuner, record.seed, record.board) == ("run-1", "grid", 3, "a")
    assert (record.round, record.index, record.of) == (2, 1, 16)
    assert record.key == KEY
    assert record.options == dict(USUAL)


def test_a_time_that_no_kernel_takes_is_a_failure(tmp_path):
    record = ledger(tmp_path).line(TASK, CANDIDATE, Measured((1e-3, 1e-12)))
    assert (record.samples_s, record.cause) == ((), "suspicious")
    assert "--min-repeat-ms" in record.error


def test_what_is_written_is_noted_one_after_the_other(tmp_path):
    book, noted, inside = ledger(tmp_path), [], []

    def write(number):
        def note():
            inside.append(number)
            noted.append(len(inside))
            inside.remove(number)

        book.write(book.line(TASK, CANDIDATE, Measured((1e-3,)), index=number), note)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert noted == [1] * 8
    read = RecordFile(tmp_path / "records.jsonl").read()
    assert sorted(record.index for record in read.trials) == list(range(8))


def test_what_cannot_be_written_is_not_noted(tmp_path):
    (tmp_path / "records.jsonl").mkdir()
    book = ledger(tmp_path)
    with pytest.raises(InputError):
        book.write(book.line(TASK, CANDIDATE, Measured((1e-3,))), pytest.fail)
