"""Candidates timed by a model of their machine code: what is recorded of each."""

from __future__ import annotations

import pytest

from toolchain.backends.base import Estimate
from toolchain.errors import BuildError
from toolchain.tuning.measure import Event
from toolchain.tuning.measure.estimated import Costed
from toolchain.tuning.trials import Built, Trial


class Said:
    """Says of each module what it is."""

    name = "g610, 4 cores, 1000 MHz"
    identity = "Mesa 1"
    stamp = "modelled (Mesa 1)"
    obstacle = ""

    def estimates(self, modules, *, spilling=True):
        assert not spilling, "the time of what spills is not wanted"
        return list(modules)


NAME = f"{Said.name}, {Said.stamp}"


def test_a_candidate_takes_what_the_model_says():
    events = []
    machine = Costed(Said(), events.append)
    built = machine.build([Estimate(4.0), Estimate(1.5)])
    assert events == []
    results = [machine.submit(Trial(candidate.library, ())).result() for candidate in built]
    assert [result.samples_s for result in results] == [(pytest.approx(4e-3),), (pytest.approx(1.5e-3),)]
    assert {result.board for result in results} == {NAME}
    trial = Trial(built[1].library, ())
    assert events[1] == Event("ended", NAME, trial=trial, measured=results[1])


@pytest.mark.parametrize(
    ("estimate", "message"),
    [
        (Estimate(fault="no such thing"), "no such thing; modelled (Mesa 1)"),
        (Estimate(None), "the lengths of its loops are not known; modelled (Mesa 1)"),
        (Estimate(1.0, 0, "x"), "x; modelled (Mesa 1)"),
        (Estimate(None, 4), "4 values are spilled; modelled (Mesa 1)"),
    ],
)
def test_what_the_model_cannot_tell_has_failed(estimate, message):
    (built,) = Costed(Said(), [].append).build([estimate])
    assert built.library is None
    assert message in built.error


def test_nothing_is_recorded_of_what_has_no_answer():
    with pytest.raises(BuildError, match="did not answer") as caught:
        Costed(Said(), [].append).build([Estimate(1.0), Estimate(fault="qemu is gone", answered=False)])
    assert "qemu is gone" in caught.value.details
    assert "resume" in caught.value.hint


def test_a_discarded_candidate_is_forgotten():
    machine = Costed(Said(), [].append)
    (built,) = machine.build([Estimate(1.0)])
    machine.discard(built)
    with pytest.raises(KeyError):
        machine.submit(Trial(built.library, ()))
    machine.discard(Built(None, "no", 0.0))
