"""What a model rules out before a board is asked, and what it must never rule out."""

from __future__ import annotations

import pytest

from toolchain.backends.base import Estimate
from toolchain.records import traces
from toolchain.tuning.conveyor import Pruner, Verdict
from toolchain.tuning.search import Candidate

STAMP = "modelled (Mesa 1)"


class Said:
    """Says of each module what it is."""

    name = "g610"
    identity = "Mesa 1"
    stamp = STAMP
    obstacle = ""

    def estimates(self, modules, *, spilling=True):
        assert not spilling, "the time of what spills is not wanted"
        return list(modules)


def candidate(estimate, trace="[]"):
    return Candidate("0", trace, estimate)


def verdicts(pruner, *estimates, workload="w"):
    return pruner.verdicts(workload, [None if estimate is None else candidate(estimate) for estimate in estimates])


def test_what_spills_and_what_costs_too_much_is_ruled_out():
    results = verdicts(Pruner(Said(), 2.0), Estimate(1.0), Estimate(2.0), Estimate(2.1), Estimate(None, 7), None)
    assert results == [
        None,
        None,
        Verdict("costly", f"2.1 times the best known; {STAMP}"),
        Verdict("spills", f"7 values are spilled; {STAMP}"),
        None,
    ]


@pytest.mark.parametrize("estimate", [Estimate(fault="refused"), Estimate(None), Estimate(9.0, 3, "too large a group")])
def test_what_nobody_can_judge_is_measured(estimate):
    assert verdicts(Pruner(Said(), 1.0), Estimate(1.0), estimate) == [None, None]


@pytest.mark.parametrize("estimate", [Estimate(90.0), Estimate(None, 5)])
def test_what_a_kernel_is_untuned_is_always_measured(estimate):
    pruner = Pruner(Said(), 1.0)
    assert pruner.verdicts("w", [candidate(Estimate(1.0)), candidate(estimate, traces.DEFAULT)]) == [None, None]


def test_the_best_known_is_of_all_rounds_of_that_kernel():
    pruner = Pruner(Said(), 3.0)
    verdicts(pruner, Estimate(1.0))
    assert verdicts(pruner, Estimate(5.0), workload="another") == [None]
    (late,) = verdicts(pruner, Estimate(5.0))
    assert late is not None
    assert late.cause == "costly"


def test_the_time_of_one_that_spills_is_not_the_best_known():
    pruner = Pruner(Said(), 1.0)
    assert verdicts(pruner, Estimate(0.1, 4), Estimate(1.0))[1] is None
