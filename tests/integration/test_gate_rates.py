"""The gate's rule on the recorded rounds: few pairs here, a thousand by `python benchmarks/gate_rates.py`."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from benchmarks import _recorded
from benchmarks.gate_rates import CALM_SD, Rates, faults, rates
from toolchain.stats import Rule

PAIRS = 200


@functools.cache
def recorded(kind):
    return _recorded.load(kind)


@pytest.mark.parametrize("kind", _recorded.KINDS)
def test_the_rates_keep_their_limits_on_recorded_rounds(kind):
    error_rates = [rates(kind, recorded(kind).medians, change, PAIRS, Rule()) for change in (0.0, 0.05)]
    assert faults(error_rates, recorded(kind).sd) == []
    assert [rate.regression + rate.passed + rate.inconclusive for rate in error_rates] == pytest.approx([1, 1])


def test_a_change_of_ten_per_cent_is_found_on_calm_rounds_and_an_improvement_passes():
    medians = recorded("calm").medians
    assert rates("calm", medians, 0.10, PAIRS, Rule()).regression == 1
    assert rates("calm", medians, -0.05, PAIRS, Rule()).passed == 1


def test_a_rule_that_passes_what_it_does_not_find_is_beyond_the_limits():
    """Hostile rounds are what tells such a rule from ours."""
    medians = recorded("hostile").medians
    careless = Rule(worst=1.0)
    error_rates = [rates("hostile", medians, change, PAIRS, careless) for change in (0.0, 0.05)]
    assert faults(error_rates, recorded("hostile").sd) != []


def test_rates_beyond_their_limits_are_named():
    same = Rates("calm", 0.0, 1000, regression=0.011, passed=0.98, inconclusive=0.009, rounds=9.0)
    slower = Rates("calm", 0.05, 1000, regression=0.949, passed=0.011, inconclusive=0.04, rounds=20.0)
    assert len(faults([same, slower], CALM_SD)) == 3
    assert len(faults([same, slower], CALM_SD + 0.001)) == 1, "others are allowed where the rounds scatter more"
    better = dataclasses.replace(slower, regression=0.95, passed=0.01)
    assert faults([dataclasses.replace(same, regression=0.01), better], CALM_SD) == []


def test_the_recordings_are_of_three_kinds_of_noise_and_say_what_they_were_taken_under():
    recordings = {kind: recorded(kind) for kind in _recorded.KINDS}
    assert sum(len(recording.rounds) for recording in recordings.values()) >= 20_000
    assert recordings["calm"].sd <= CALM_SD < recordings["neighbours"].sd < recordings["hostile"].sd
    assert sum(path.stat().st_size for path in _recorded.FOLDER.iterdir()) < 1 << 20
    for kind, recording in recordings.items():
        assert recording.about["noise"] == kind
        assert {"model", "threads", "machine", "kernel", "date"} <= set(recording.about)
        assert all(turn.median_us > 0 and turn.runs > 0 for turn in recording.rounds)


def test_what_is_written_is_read_again(tmp_path, monkeypatch):
    short = dataclasses.replace(recorded("calm"), rounds=recorded("calm").rounds[:3])
    monkeypatch.setattr(_recorded, "FOLDER", tmp_path)
    short.save(tmp_path / "calm.csv.gz")
    assert _recorded.load("calm") == short
