"""When a measurement is not to be believed: it is taken again, and what stays doubtful is a failure, never a result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from toolchain.records.results import LEAST_S
from toolchain.tuning.measure.health import Rules

SAVED = 6.0
"""How many times as fast as its operations allow a kernel may be: Winograd's algorithm saves up to five sixths of them,
and instructions on bytes do four times as many as those on floats that a peak is measured by."""


def too_fast(samples: Sequence[float], gflop: float, peak_gflops: float) -> str:
    """Say why no machine can be so fast; nothing if this one can.

    Args:
        samples: Seconds of one run.
        gflop: Billions of operations of one run; 0 where nobody knows.
        peak_gflops: What the machine does in a second at most; 0 where nobody knows.
    """
    fastest = min(samples)
    if fastest < LEAST_S:
        return f"{fastest:.3g} s is shorter than any call can be"
    if gflop and peak_gflops and gflop / fastest > SAVED * peak_gflops:
        return f"{gflop / fastest:.3g} GFLOPS, but the board reaches at most {peak_gflops:.3g}"
    return ""


def unsteady(samples: Sequence[float], rules: Rules) -> str:
    """Say how far samples lie apart, if that is too far for their median to mean anything."""
    apart = statistics.median(samples) / min(samples)
    return f"half of the samples took {apart:.1f} times as long as the fastest" if apart > rules.unsteady else ""


def disturbed(waited: float | None, rules: Rules) -> str:
    """Say how busy the board was with other work, if that was too much."""
    if waited is None or waited <= rules.waited:
        return ""
    return f"the board was busy: other work used the CPUs for {waited:.0%} of the kernel's time"
