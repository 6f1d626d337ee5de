"""What is not believed of a measurement."""

from __future__ import annotations

import pytest

from toolchain.tuning.measure import Rules, runner

RULES = Rules()


@pytest.mark.parametrize(
    ("samples", "gflop", "peak", "message"),
    [
        ((1e-12, 1e-3), 0.0, 0.0, "1e-12 s is shorter than any call can be"),
        ((0.0, 1e-3), 1.0, 100.0, "0 s is shorter"),
        ((1e-3, 1e-3), 1.0, 100.0, "1e+03 GFLOPS, but the board reaches at most 100"),
        ((2e-3, 2e-3), 1.0, 100.0, ""),
        ((1e-3, 1e-3), 1.0, 0.0, ""),
        ((1e-6, 1e-6), 0.0, 100.0, ""),
    ],
)
def test_no_kernel_is_faster_than_its_machine(samples, gflop, peak, message):
    reason = runner.too_fast(samples, gflop, peak)
    assert message in reason
    assert bool(reason) == bool(message)


def test_samples_that_lie_far_apart():
    assert "10.0 times as long" in runner.unsteady((2.1e-3, 21e-3, 21e-3), RULES)
    assert runner.unsteady((1e-3, 1.1e-3, 50e-3), RULES) == "", "one that was disturbed is what a median is for"
    assert runner.unsteady((1e-3,), RULES) == ""


@pytest.mark.parametrize(("waited", "doubtful"), [(None, False), (0.0, False), (0.5, False), (0.95, True)])
def test_a_board_that_others_use(waited, doubtful):
    assert ("other work used the CPUs for 95% " in runner.disturbed(waited, RULES)) == doubtful
