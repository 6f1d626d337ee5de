"""Finals are built before the first is held, and what they decide is written down."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolchain.errors import DeviceError
from toolchain.records import Key, RecordFile
from toolchain.tuning import finals
from toolchain.tuning import finals as deciders
from toolchain.tuning.finals import Decider, Final
from toolchain.tuning.measure.turns import TURNS
from toolchain.tuning.plan import Plan
from toolchain.tuning.records_view import Ledger
from toolchain.tuning.search import Candidate
from toolchain.tuning.trials import Built, Measured, Trials

KEY = Key.of({"kind": "llvm"}, tvm="1")


class Boards:
    """Builds and measures: a candidate takes as long as its name says."""

    def __init__(self):
        self.did = []
        self.fault = None

    def build(self, modules):
        self.did.append("build")
        return [Built(Path(module), "", 0.0) for module in modules]

    def discard(self, built):
        self.did.append(f"discard {built.library}")

    def submit(self, trial):
        self.did.append("measure")
        future = Future()
        if self.fault:
            future.set_exception(self.fault)
        else:
            base, *rivals = ([float(str(entry.library))] * TURNS for entry in (trial, *trial.rivals))
            future.set_result(Measured(tuple(base), board="a", rivals_s=tuple(map(tuple, rivals))))
        return future


@pytest.fixture
def decide(tmp_path, monkeypatch):
    monkeypatch.setattr(finals, "args_of", lambda *_, **__: ())
    boards, decided = Boards(), []
    book = Ledger(RecordFile(tmp_path / "records.jsonl"), "run-1", KEY, Plan())
    trials = Trials(boards, boards, complete=str, passing_bytes=lambda _: 0)
    decider = Decider(trials, book, by_model=False, note=decided.append)
    return SimpleNamespace(
        boards=boards, decided=decided, hold=lambda *due: decider.hold(due, lambda event: event.wait(30)), path=tmp_path
    )


def final(name, base_s, *rivals_s):
    task = SimpleNamespace(workload=name, name=name, gflop=0.0)
    base, *rivals = (Candidate(f"{number:02x}", "", str(seconds)) for number, seconds in enumerate((base_s, *rivals_s)))
    return Final(task, base, tuple(rivals), None)


def test_a_winner_is_written_down_and_told(decide):
    decide.hold(final("ab", 2.0, 1.0, 3.0), final("cd", 1.0, 2.0))
    assert [(record.workload, record.verdict, record.candidate) for record in decide.decided] == [
        ("ab", "faster", "01"),
        ("cd", "untuned", "00"),
    ]
    assert RecordFile(decide.path / "records.jsonl").read().decided(KEY).keys() == {"ab", "cd"}


def test_all_are_built_before_the_first_is_held_and_nothing_is_left(decide):
    decide.hold(final("ab", 2.0, 1.0), final("cd", 1.0, 2.0))
    assert decide.boards.did[:3] == ["build", "build", "measure"]
    assert sum(step.startswith("discard") for step in decide.boards.did) == 4


def test_a_board_that_is_lost_is_told_and_decides_nothing(decide):
    decide.boards.fault = DeviceError("no board is left")
    with pytest.raises(DeviceError, match="no board"):
        decide.hold(final("ab", 2.0, 1.0))
    assert decide.decided == []
    assert sum(step.startswith("discard") for step in decide.boards.did) == 2


def test_what_cannot_be_written_is_told(decide, monkeypatch):
    monkeypatch.setattr(deciders.Ledger, "write", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        decide.hold(final("ab", 2.0, 1.0))
