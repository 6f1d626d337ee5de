"""What a run sees of a file that others append to."""

from __future__ import annotations

from tests.support.tunings import KEY, record
from toolchain.records import EXPIRY_S, Key, Records, Start
from toolchain.tuning.records_view import RecordsView

NOW = 1e9
MINE, HERS = f"{0:016x}", f"{1:016x}"


def trial(number, **fields):
    return record(number, **{"schema": 2, "time": NOW, **fields})


def view_of(*trials, position, fresh=False, key=KEY):
    start = Start(run="me", time=NOW, fresh=fresh)
    return RecordsView(Records.collect([*trials[:position], start, *trials[position:]]), key, start, {MINE})


def numbers(trials):
    return [record.index for record in trials]


def test_what_others_append_after_the_start_is_not_earlier():
    view = view_of(trial(0), trial(1, run="me"), trial(2), trial(3, run="me"), position=1)
    assert numbers(view.earlier(1000)) == [0]
    assert numbers(view.own()[0]) == [1, 3]
    assert numbers(view.now().trials) == [0, 1, 2, 3], "finals look at all"


def test_a_fresh_run_passes_over_what_was_there_of_its_kernels():
    others = [trial(0), trial(1, workload=HERS), trial(2, run="me")]
    view = view_of(*others, trial(3, run="me"), position=3, fresh=True)
    assert numbers(view.earlier(1000)) == [1]
    assert numbers(view.own()[0]) == [3]
    assert numbers(view.now().trials) == [3]


def test_what_has_expired_is_not_seen():
    old = NOW - EXPIRY_S - 1
    view = view_of(trial(0, time=old), trial(1, time=old, run="me"), trial(2), position=3)
    assert (numbers(view.earlier(1000)), view.own(), numbers(view.now().trials)) == ([2], {}, [2])


def test_other_threads_and_options_are_others():
    view = [trial(0), trial(1, threads=1), trial(2, options={"number": 1})]
    assert numbers(view_of(*view, position=3).earlier(1000)) == [0]
    key = Key.of(view[1].target, threads=1)
    assert numbers(view_of(*view, position=3, key=key).earlier(1000)) == [1]


def test_what_finals_decided_and_what_a_model_ruled_out_is_no_trial_of_others():
    ruled_out = trial(0, seconds=None, cause="costly")
    final = trial(1, verdict="untuned", among=(MINE,))
    assert view_of(ruled_out, final, trial(2, seconds=None, among=(MINE,)), position=3).earlier(1000) == ()


def test_a_run_whose_beginning_was_taken_out_of_the_file_goes_on():
    view = RecordsView(Records.collect([trial(0), trial(1, run="me")]), KEY, Start(run="me", time=NOW), {MINE})
    assert (view.earlier(1000), numbers(view.own()[0]), numbers(view.now().trials)) == ((), [1], [0, 1])
