"""What is counted as results come, and what is learned of whole rounds."""

from __future__ import annotations

import math

from tests.support.tunings import record
from toolchain.records.results import PRUNED
from toolchain.tuning.task_state import TaskState


def state():
    return TaskState(None)


def test_a_result_is_counted_at_once_and_decides_nothing_yet():
    one = state()
    one.count(record(1, 2.0))
    one.count(record(2, None))
    assert (one.measured, one.failed, one.fastest_s) == (2, 1, 2.0)
    assert (one.best_s, one.known_s, one.hopeless) == ((), math.inf, 0)


def test_what_a_model_ruled_out_is_no_failure():
    one = state()
    for cause in sorted(PRUNED):
        one.count(record(1, None, cause=cause))
    one.learn([record(1, None, cause=cause) for cause in sorted(PRUNED)])
    assert (one.measured, one.pruned, one.failed, one.hopeless) == (len(PRUNED), len(PRUNED), 0, 0)


def test_the_best_of_each_round_is_kept():
    one = state()
    one.learn([record(1, 3.0), record(2, 2.0)])
    one.learn([record(3, 5.0)])
    one.learn([record(4, 1.0), record(5, None)])
    assert (one.best_s, one.known_s) == ((2.0, 2.0, 1.0), 1.0)


def test_trials_without_a_gain_are_stale():
    one = state()
    one.learn([record(1, 3.0)])
    one.learn([record(2, 3.0), record(3, 4.0)])
    assert one.stale == 2
    one.learn([record(4, 2.0)])
    assert one.stale == 0


def test_failures_are_hopeless_until_something_works():
    one = state()
    one.learn([record(1, None)] * 3)
    one.learn([record(1, None)] * 2)
    assert one.hopeless == 5
    one.learn([record(2, 1.0), record(1, None)])
    assert one.hopeless == 0


def test_earlier_records_are_where_a_task_begins():
    one = state()
    one.begin(math.inf)
    assert one.best_s == ()
    one.begin(2.0)
    assert (one.best_s, one.fastest_s) == ((2.0,), 2.0)
