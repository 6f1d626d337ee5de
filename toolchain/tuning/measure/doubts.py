"""When a measurement is not credible: it is repeated, and if it stays doubtful, the trial fails."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from toolchain.records.results import LEAST_S
from toolchain.tuning.measure.health import Rules

SAVED = 6.0
"""How many times the board's peak a kernel may seem to reach: Winograd's algorithm saves up to five sixths of the
operations, and byte instructions do four times as many as the float instructions that the peak is measured with."""


def too_fast(samples: Sequence[float], gflop: float, peak_gflops: float) -> str:
    """Return why the board cannot be so fast; empty if it can.

    Args:
        samples: Seconds of one run.
        gflop: Billions of operations of one run; 0 if unknown.
        peak_gflops: The peak of the board; 0 if unknown.
    """
    fastest = min(samples)
    if fastest < LEAST_S:
        return f"{fastest:.3g} s is shorter than any call can be"
    # Such times come from a clock that jumps, or from a kernel that did not do its work.
    if gflop and peak_gflops and gflop / fastest > SAVED * peak_gflops:
        return f"{gflop / fastest:.3g} GFLOPS, but the board reaches at most {peak_gflops:.3g}"
    return ""


def unsteady(samples: Sequence[float], rules: Rules) -> str:
    """Return how far samples vary, if too far for their median to mean anything; else an empty text."""
    ratio = statistics.median(samples) / min(samples)
    return f"half of the samples took {ratio:.1f} times as long as the fastest" if ratio > rules.unsteady else ""


def disturbed(waited: float | None, rules: Rules) -> str:
    """Return how busy the board was with other work, if it was too busy; else an empty text."""
    if waited is None or waited <= rules.waited:
        return ""
    return f"the board was busy: other work used the CPUs for {waited:.0%} of the kernel's time"
