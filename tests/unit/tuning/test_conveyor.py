"""Rounds on their way: built in order while others are searched, and what goes wrong is told to who waits."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.tunings import record
from toolchain.errors import BuildError, DeviceError
from toolchain.tuning import conveyor as conveyors
from toolchain.tuning.conveyor import Conveyor, Round
from toolchain.tuning.search import Candidate
from toolchain.tuning.trials import Built, Measured, Trials

SOON_S = 30.0


class Builds:
    """Makes a library of each module, but for those that are called `bad`; waits for leave where there is a gate."""

    def __init__(self):
        self.given, self.discarded = [], []
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()

    def build(self, modules):
        self.given.append(list(modules))
        self.began.set()
        assert self.gate.wait(SOON_S)
        return [Built(None if "bad" in module else Path(module), "no" * ("bad" in module), 0.0) for module in modules]

    def discard(self, built):
        self.discarded.append(built.library.name)


class Measures:
    """Keeps the trials until their results are given."""

    def __init__(self):
        self.futures = {}

    def submit(self, trial):
        return self.futures.setdefault(trial.library.name, Future())


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch):
    monkeypatch.setattr(conveyors, "args_of", lambda *_, **__: ())


@pytest.fixture
def harness():
    noted = []
    builds, measures = Builds(), Measures()
    trials = Trials(builds, measures, complete=str, passing_bytes=lambda _: 0)
    conveyor = Conveyor(trials, None, lambda _round, index, measured: noted.append((index, measured)))
    return SimpleNamespace(builds=builds, measures=measures, noted=noted, conveyor=conveyor)


def planned(*names, number=0, measured=()):
    state = SimpleNamespace(task=SimpleNamespace(name="conv", layer=None, gflop=0.0, workload="ab"))
    results = [record(1, 1.0) if name in measured else None for name in names]
    return Round(number, state, [Candidate(name, "", name) for name in names], results, len(names))


def passed(round_):
    return [stage for stage, event in round_.passed.items() if event.is_set()]


def test_a_round_is_built_measured_and_noted(harness):
    round_ = planned("a", "bad", "b")
    with harness.conveyor as conveyor:
        conveyor.put(round_)
        assert round_.passed["build"].wait(SOON_S)
        until(lambda: len(harness.measures.futures) == 2)
        assert passed(round_) == ["model", "build"]
        harness.measures.futures["b"].set_result(Measured((2.0,)))
        harness.measures.futures["a"].set_result(Measured((1.0,)))
        assert round_.passed["run"].wait(SOON_S)
        conveyor.check()
    assert [(index, measured.samples_s, measured.cause) for index, measured in harness.noted] == [
        (1, (), "build"),
        (2, (2.0,), ""),
        (0, (1.0,), ""),
    ]
    assert harness.builds.discarded == ["b", "a"]


def until(condition):
    for _ in range(round(SOON_S * 100)):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("it does not come")


def test_the_next_round_is_built_while_one_is_measured(harness):
    first, second = planned("a"), planned("b", number=1)
    with harness.conveyor as conveyor:
        conveyor.put(first)
        conveyor.put(second)
        assert second.passed["build"].wait(SOON_S)
        assert not first.passed["run"].is_set()
        for name in ("a", "b"):
            until(lambda name=name: name in harness.measures.futures)
            harness.measures.futures[name].set_result(Measured((1.0,)))
        assert first.passed["run"].wait(SOON_S)
    assert harness.builds.given == [["a"], ["b"]]


def test_what_has_a_result_is_neither_built_nor_measured(harness):
    round_ = planned("a", "b", measured=("a", "b"))
    with harness.conveyor as conveyor:
        conveyor.put(round_)
        assert round_.passed["run"].wait(SOON_S)
    assert (harness.builds.given, harness.noted) == ([], [])


@pytest.mark.parametrize("fault", [BuildError("no worker starts"), PermissionError("not ours")])
def test_what_goes_wrong_in_the_builder_is_told(harness, monkeypatch, fault):
    monkeypatch.setattr(harness.builds, "build", lambda *_: (_ for _ in ()).throw(fault))
    with harness.conveyor as conveyor:
        conveyor.put(planned("a"))
    with pytest.raises(type(fault), match=str(fault)):
        conveyor.check()


def test_a_board_that_is_lost_is_told_and_what_else_was_measured_is_kept(harness):
    round_ = planned("a", "b")
    with harness.conveyor as conveyor:
        conveyor.put(round_)
        until(lambda: len(harness.measures.futures) == 2)
        harness.measures.futures["a"].set_exception(DeviceError("no board is left"))
        harness.measures.futures["b"].set_result(Measured((1.0,)))
        assert round_.passed["run"].wait(SOON_S)
    with pytest.raises(DeviceError, match="no board"):
        conveyor.check()
    assert [index for index, _ in harness.noted] == [1]


def interrupted(harness):
    with harness.conveyor as conveyor:
        conveyor.put(planned("a", "bad"))
        assert harness.builds.began.wait(SOON_S)
        raise KeyboardInterrupt


def test_what_a_builder_says_that_is_being_ended_is_no_result(harness):
    harness.builds.gate.clear()
    with pytest.raises(KeyboardInterrupt):
        interrupted(harness)
    harness.builds.gate.set()
    harness.conveyor._thread.join(SOON_S)
    assert (harness.noted, harness.measures.futures) == ([], {})


def test_what_the_model_rules_out_is_noted_and_not_built(harness):
    pruner = SimpleNamespace(verdicts=lambda *_: [None, SimpleNamespace(cause="spills", error="9")])
    harness.conveyor._pruner = pruner
    round_ = planned("a", "b")

    def note(planned, index, measured):
        planned.results[index] = measured
        harness.noted.append((index, measured.cause))

    harness.conveyor._note = note
    with harness.conveyor as conveyor:
        conveyor.put(round_)
        until(lambda: "a" in harness.measures.futures)
        harness.measures.futures["a"].set_result(Measured((1.0,)))
        assert round_.passed["run"].wait(SOON_S)
    assert harness.noted == [(1, "spills"), (0, "")]
    assert harness.builds.given == [["a"]]
