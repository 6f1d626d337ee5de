"""Who is in a final, and who wins it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.tunings import KEY, record
from toolchain.records import Records
from toolchain.records.results import TensorArg
from toolchain.tuning import finals
from toolchain.tuning.measure.turns import TURNS
from toolchain.tuning.search import Candidate
from toolchain.tuning.trials import Built, Measured

TASK = SimpleNamespace(workload=f"{0:016x}", name="conv", gflop=1e-3)
BASE = f"{0:016x}"


def candidate(key):
    return Candidate(key, f"trace of {key}", None)


class Search:
    """Makes any candidate again, but for the one with the number 9."""

    def base(self, _task):
        return candidate(BASE)

    def rebuild(self, _task, trace):
        return None if trace == 9 else candidate(f"{trace:016x}")


def trial(number, seconds, **fields):
    return record(number, seconds, schema=2, trace=str(number), **fields)


def due(*trials):
    return finals.due([TASK], Search(), Records.collect(trials), KEY)


def test_the_best_three_compete_with_what_is_untuned():
    (final,) = due(*(trial(number, 1.0 - number / 10) for number in range(1, 8)), trial(0, 0.1))
    assert final.among == (BASE, *(f"{number:016x}" for number in (7, 6, 5)))
    assert final.fastest.candidate == f"{7:016x}"


def test_who_failed_who_is_impossible_and_who_cannot_be_made_again_do_not():
    (final,) = due(trial(1, None), trial(2, 1e-12), trial(9, 0.1), trial(3, 0.5))
    assert final.among == (BASE, f"{3:016x}")


def test_no_final_without_rivals():
    assert due(trial(0, 0.1), trial(1, None)) == []


def test_a_final_that_was_held_is_not_held_again_until_others_are_in_it():
    among = (BASE, f"{2:016x}", f"{1:016x}")
    previous = trial(0, 1.0, verdict="untuned", base_s=(1.0,), among=among)
    assert due(trial(1, 0.2), trial(2, 0.1), previous) == []
    failed = trial(0, None, among=among)
    assert len(due(trial(1, 0.2), trial(2, 0.1), failed)) == 1, "one that failed is"
    assert len(due(trial(1, 0.2), trial(2, 0.1), previous, trial(3, 0.3))) == 1


# --- decisions -------------------------------------------------------------------------------------------------------

FINAL = finals.Final(TASK, candidate(BASE), tuple(candidate(f"{n:016x}") for n in (1, 2, 3)), trial(1, 0.5))
BUILT = [Built(Path(f"{n}.so"), "", 0.0) for n in range(4)]
BASE_S = tuple(1e-3 * (1 + turn / 10) for turn in range(TURNS))


def turns_of(factor, count=TURNS):
    return tuple(factor * seconds for seconds in BASE_S[:count])


def decided(*rivals_s, built=BUILT, **measured):
    return finals.decide(FINAL, built, Measured(BASE_S, rivals_s=rivals_s, board="b", **measured))


def test_the_fastest_of_those_that_are_surely_faster_wins():
    decision = decided(turns_of(0.9), turns_of(0.7), turns_of(0.8))
    assert decision.winner.key == f"{2:016x}"
    assert (decision.measured.samples_s, decision.base_s, decision.measured.board) == (turns_of(0.7), BASE_S, "b")
    assert decision.why == "1.429 times as fast as untuned, 99% within 1.429 to 1.429"


def test_what_is_untuned_stays_where_nobody_is_surely_faster():
    mixed = tuple(seconds * (0.7 if turn % 2 else 1.3) for turn, seconds in enumerate(BASE_S))
    decision = decided(mixed, turns_of(1.1), turns_of(0.5, 4))
    assert (decision.winner.key, decision.measured.samples_s) == (BASE, BASE_S)
    assert "none of 3 candidates is measurably faster; the best of them: " in decision.why


def test_a_gain_of_less_than_a_hundredth_replaces_nothing():
    assert decided(turns_of(0.995), turns_of(1.1), ()).winner.key == BASE
    assert decided(turns_of(0.985), turns_of(1.1), ()).winner.key == f"{1:016x}"


def test_few_turns_and_impossible_times_win_nothing():
    decision = decided(turns_of(0.5, 6), (1e-12,) * TURNS, ())
    assert decision.winner.key == BASE


def test_rivals_that_do_not_compile_are_left_out():
    built = [BUILT[0], Built(None, "no", 0.0), *BUILT[2:]]
    decision = decided(turns_of(0.9), turns_of(0.5), built=built)
    assert decision.winner.key == f"{3:016x}"


def test_a_final_that_failed_decides_nothing():
    decision = finals.decide(FINAL, BUILT, Measured((), "suspicious", "busy"))
    assert (decision.measured.cause, decision.measured.error) == ("suspicious", "busy")


@pytest.mark.parametrize("by_model", [True, False])
def test_what_is_untuned_does_not_compile(by_model):
    built = [Built(None, "it spills", 0.0), *BUILT[1:]]
    assert finals.trial_of(FINAL, built, 0) is None
    decision = finals.decide_unmeasured(FINAL, built, by_model=by_model)
    assert "it spills" in (decision.why if by_model else decision.measured.error)
    assert (decision.winner.key, decision.measured.cause) == ((f"{1:016x}", "") if by_model else (BASE, "build"))


def test_a_trial_of_a_final_has_all_that_compiled(monkeypatch):
    monkeypatch.setattr(finals, "args_of", lambda *_, **__: (TensorArg("float32", (1,)),))
    final_trial = finals.trial_of(FINAL, [*BUILT[:2], Built(None, "no", 0.0), BUILT[3]], 7)
    assert (final_trial.library, [rival.library for rival in final_trial.rivals]) == (
        Path("0.so"),
        [Path("1.so"), Path("3.so")],
    )
    assert (final_trial.passing_bytes, final_trial.gflop) == (7, TASK.gflop)
