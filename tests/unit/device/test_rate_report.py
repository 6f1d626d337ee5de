"""The options of runs at a rate, and what a device reports about them, which may be anything."""

from __future__ import annotations

import copy

import pytest

from tests.support.periodic_reports import CPUS, RATE, document, periodic
from toolchain.device import runner
from toolchain.device.rate import Rate
from toolchain.device.rate_report import read_periodic, throttled


def test_the_runner_gets_what_is_asked_for():
    folders = {"runners": "/r", "inputs": "/i"}
    rate = Rate(0.033, 600.0, 0.04, "memory", fifo=True, mlock=True)
    argv = " ".join(runner.command(folders, "/release", "/f", runner.Plan(rate=rate)))
    assert "--period-us 33000 --deadline-us 40000 --for-ms 600000 --attended --load memory --fifo --mlock" in argv
    assert "--period-us" not in " ".join(runner.command(folders, "/release", "/f", runner.Plan()))


def test_a_report_is_read():
    report = periodic()
    assert (report.runs, report.missed, report.longest_missed) == (4, 1, 1)
    assert (report.first_ns, report.elapsed_s) == (1000, 10.0)
    assert (report.latency.total, report.latency.max, report.run.total, report.lateness.total) == (4, 50_000_000, 4, 3)
    assert [piece.total for piece in report.slices] == [3, 0, 1]  # later slices have no runs
    assert (report.before.mhz, report.before.governors) == (1500.0, ("schedutil",))
    slowest, unseen = report.outliers
    assert (slowest.number, slowest.at_s, slowest.switches, unseen.clocks) == (17, 0.561, 4, None)
    assert slowest.clocks.cooling == ("Processor",)  # and no fan
    assert throttled(report.before, slowest.clocks) == ("2 time(s) by the CPUs' own count", "Processor")


def test_runs_that_were_not_started_are_missed_too():
    report = periodic(not_started=7, missed_last=1)
    assert (report.missed, report.longest_missed) == (8, 8)
    assert periodic(not_started=1, missed_last=0, longest_missed=3, missed=3).longest_missed == 3


def test_a_device_without_clocks_is_read():
    bare = {"khz": [], "governors": [], "throttles": None, "cooling": []}
    report = periodic(before=bare, after=bare)
    assert (report.before.mhz, report.before.throttles, throttled(report.before, report.after)) == (None, None, ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("runs", 5),
        ("runs", -1),
        ("runs", True),
        ("runs", 1e3),
        ("missed", 5),
        ("latency", [1000, 4, 1000, 4]),
        ("latency", [1000]),
        ("latency", [40_000, 4]),
        ("latency", [1000, "4"]),
        ("slices", [[63, 3]]),
        ("slices", [[1 << 20, 4]]),
        ("max_ns", None),
        ("max_ns", 60_000_000),
        ("before", {**CPUS, "governors": ["\x1b[31m"]}),
        ("before", {**CPUS, "governors": ["x" * 1000]}),
        ("before", {**CPUS, "khz": ["fast"]}),
        ("outliers", [{"number": 1}]),
        ("outliers", 3),
    ],
)
def test_a_report_that_is_not_valid_is_refused(key, value):
    with pytest.raises((LookupError, TypeError, ValueError)):
        read_periodic(document(**{key: value}), RATE)


def test_each_field_is_needed():
    for key in document():
        incomplete = copy.deepcopy(document())
        del incomplete[key]
        with pytest.raises(LookupError):
            read_periodic(incomplete, RATE)
