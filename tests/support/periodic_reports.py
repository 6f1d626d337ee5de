"""What a runner reports about runs at the rate of an application, with numbers that are easy to check."""

from __future__ import annotations

from typing import Any

from toolchain.device.rate import Rate
from toolchain.device.rate_report import Periodic, read_periodic

RATE = Rate(period_s=0.033, for_s=10.0, deadline_s=0.04)
CPUS = {"khz": [1_200_000, 1_800_000], "governors": ["schedutil"], "throttles": 3, "cooling": []}
OUTLIER = {
    "number": 17, "begin_ns": 561_000_000, "latency_ns": 50_000_000, "run_ns": 20_000_000, "late_ns": 30_000_000,
    "switches": 4, "conditions": {**CPUS, "throttles": 5, "cooling": ["2 Processor", "1 Fan"]},
}  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    """A report of four runs: three take 1 microsecond, and one, which misses the deadline, 50 milliseconds."""
    return {
        "runs": 4, "not_started": 0, "missed": 1, "missed_last": 0, "longest_missed": 1, "first_ns": 1000,
        "elapsed_ns": 10_000_000_000, "stopped": False, "processes": 0, "switches": 5,
        "latency": [1000, 3, 16885, 1], "run": [900, 4], "lateness": [100, 3],
        "max_ns": 50_000_000, "max_run_ns": 900, "max_late_ns": 100, "slice_ns": 83_333_333,
        "slices": [[63, 3], [], [187, 1], []],
        "outliers": [OUTLIER, {**OUTLIER, "conditions": None}], "before": CPUS, "after": CPUS, **changes,
    }  # fmt: skip


def periodic(rate: Rate = RATE, **changes: Any) -> Periodic:
    return read_periodic(document(**changes), rate)
