"""What is counted as results come, and what is learned of whole rounds."""

from __future__ import annotations

import math

from tests.support.tunings import record
from toolchain.records.results import PRUNED
from toolchain.tuning.task_state import TaskState


def state():
    return TaskState(None)


def test_a_result_is_counted_at_once_and_decides_nothing_yet():
    task = state()
    task.count(record(1, 2.0))
    task.count(record(2, None))
    assert (task.measured, task.failed, task.fastest_s) == (2, 1, 2.0)
    assert (task.best_s, task.known_s, task.hopeless) == ((), math.inf, 0)


def test_what_a_model_ruled_out_is_no_failure():
    task = state()
    for cause in sorted(PRUNED):
        task.count(record(1, None, cause=cause))
    task.learn([record(1, None, cause=cause) for cause in sorted(PRUNED)])
    assert (task.measured, task.pruned, task.failed, task.hopeless) == (len(PRUNED), len(PRUNED), 0, 0)


def test_the_best_of_each_round_is_kept():
    task = state()
    task.learn([record(1, 3.0), record(2, 2.0)])
    task.learn([record(3, 5.0)])
    task.learn([record(4, 1.0), record(5, None)])
    assert (task.best_s, task.known_s) == ((2.0, 2.0, 1.0), 1.0)


def test_trials_without_a_gain_are_stale():
    task = state()
    task.learn([record(1, 3.0)])
    task.learn([record(2, 3.0), record(3, 4.0)])
    assert task.stale == 2
    task.learn([record(4, 2.0)])
    assert task.stale == 0


def test_failures_are_hopeless_until_something_works():
    task = state()
    task.learn([record(1, None)] * 3)
    task.learn([record(1, None)] * 2)
    assert task.hopeless == 5
    task.learn([record(2, 1.0), record(1, None)])
    assert task.hopeless == 0


def test_earlier_records_are_where_a_task_begins():
    task = state()
    task.begin(math.inf)
    assert task.best_s == ()
    task.begin(2.0)
    assert (task.best_s, task.fastest_s) == ((2.0,), 2.0)
