from __future__ import annotations

import pytest

from tests.support import periodic_reports
from toolchain.device import tail
from toolchain.device.tail import LEAST_RUNS, Tail
from toolchain.errors import InputError
from toolchain.stats import Verdict


@pytest.mark.parametrize(
    ("runs", "late", "verdict"),
    [
        (LEAST_RUNS, 0, Verdict.PASS),
        (LEAST_RUNS, 1, Verdict.INCONCLUSIVE),
        (LEAST_RUNS - 1, 0, Verdict.INCONCLUSIVE),
        (1, 1, Verdict.REGRESSION),  # the chance of that is one in 1,000
        (100_000, 70, Verdict.PASS),
        (100_000, 100, Verdict.INCONCLUSIVE),
        (100_000, 130, Verdict.REGRESSION),
        (100_000, 100_000, Verdict.REGRESSION),
    ],
)
def test_late_runs_decide_and_few_runs_show_nothing(runs, late, verdict):
    assert Tail(40.0, 33.0, runs, late, None).verdict is verdict


def test_the_least_number_is_exact():
    assert LEAST_RUNS == 4603
    assert 0.999**LEAST_RUNS <= 0.01 < 0.999 ** (LEAST_RUNS - 1)


def test_a_throttled_device_shows_no_regression_and_too_few_samples_are_said():
    hot = Tail(40.0, 33.0, 5000, 100, 60.0, ("2 time(s) by the CPUs' own count",))
    assert (hot.verdict, "throttled" in hot.text()) == (Verdict.INCONCLUSIVE, True)
    assert "too few samples, at least 4,603 are needed" in Tail(40.0, 33.0, 900, 0, None).sentence()


def test_runs_whose_turn_did_not_come_are_late():
    measured = Tail.of(periodic_reports.periodic(not_started=3))
    assert (measured.runs, measured.late, measured.limit_ms, measured.value_ms) == (7, 4, 40.0, None)


def test_a_measurement_that_could_show_nothing_is_refused_before_it_begins():
    assert tail.rate_of(0.04, 0.033).for_s == pytest.approx(0.033 * 8500)
    with pytest.raises(InputError, match="1,818 runs are too few samples") as caught:
        tail.rate_of(0.04, 0.033, 60.0)
    assert caught.value.hint == "measure for 152s or longer"
    with pytest.raises(InputError, match="too few samples"):
        tail.rate_of(1.0, 60.0, 86400.0)
