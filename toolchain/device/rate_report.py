"""What a runner reports about runs at the rate of an application."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolchain.device.histogram import BITS, SLICE_BITS, Histogram, largest_index, lower, upper
from toolchain.device.rate import Rate

SLICES, _MOST_OUTLIERS, _MOST_NAMES = 120, 10, 64  # kSlices and kOutliers of runtime/runner/periodic.cc
_LARGEST = 1 << 62
_LONGEST_NAME = 80
# Cooling devices that slow down a CPU or an accelerator, unlike a fan.
COOLING = re.compile(r"Processor|intel_powerclamp|(thermal-)?(cpufreq|cpuidle|devfreq)\b.*|.*gpu.*", re.IGNORECASE)


@dataclass(frozen=True)
class Clocks:
    """The CPUs of a device at one moment.

    Attributes:
        mhz: Mean clock; None if the device does not report it.
        governors: Frequency governors in use.
        throttles: How often its CPUs throttled since its start; None if it does not count that.
        cooling: Active cooling devices that slow down a CPU or an accelerator.
    """

    mhz: float | None
    governors: tuple[str, ...]
    throttles: int | None
    cooling: tuple[str, ...]


@dataclass(frozen=True)
class Outlier:
    """One of the slowest runs.

    Attributes:
        number: Its number, from 0.
        at_s: When it was due, in seconds since the first run.
        latency_ns: From when it was due to its result.
        run_ns: The run alone.
        late_ns: How late it began.
        switches: How often one of its threads lost its CPU since the run before.
        clocks: The CPUs right after it; None if the next run was due.
    """

    number: int
    at_s: float
    latency_ns: int
    run_ns: int
    late_ns: int
    switches: int
    clocks: Clocks | None


@dataclass(frozen=True)
class Periodic:
    """Runs at a rate.

    Attributes:
        rate: What was asked for.
        runs: Number of runs.
        not_started: Runs that were due, but whose turn did not come: the model is slower than its period.
        missed: Runs beyond the deadline, with those that were not started.
        longest_missed: The most of them in a row.
        first_ns: Latency of the first run, after a pause of a second.
        elapsed_s: Seconds until the last run ended.
        stopped: Whether it ended early, by Ctrl-C.
        processes: Number of processes of the load.
        switches: How often one of the model's threads lost its CPU.
        latency: From when each run was due to its result.
        run: The runs alone.
        lateness: How late the device woke up; without runs that were late because of the run before.
        slice_s: Seconds of a slice.
        slices: The latencies of each slice of time.
        outliers: The slowest runs, the slowest first.
        before: The CPUs before the first run.
        after: The CPUs after the last run.
    """

    rate: Rate
    runs: int
    not_started: int
    missed: int
    longest_missed: int
    first_ns: int
    elapsed_s: float
    stopped: bool
    processes: int
    switches: int
    latency: Histogram
    run: Histogram
    lateness: Histogram
    slice_s: float
    slices: tuple[Histogram, ...]
    outliers: tuple[Outlier, ...]
    before: Clocks
    after: Clocks


def read_periodic(value: Mapping[str, Any], rate: Rate) -> Periodic:
    """Read what a runner reports about runs at a rate.

    Raises:
        LookupError, TypeError, ValueError: It is not valid.
    """
    number = {name: _number(value[name]) for name in ("runs", "not_started", "missed", "missed_last", "longest_missed")}
    latency, run, lateness = (
        _histogram(value[name], _number(value[largest]))
        for name, largest in (("latency", "max_ns"), ("run", "max_run_ns"), ("lateness", "max_late_ns"))
    )
    slices = tuple(_histogram(counts, latency.max, SLICE_BITS) for counts in value["slices"][:SLICES])
    totals = [latency.total, run.total, sum(piece.total for piece in slices)]
    if totals != [number["runs"]] * 3 or number["missed"] > number["runs"]:
        raise ValueError(f"{number['runs']} runs have histograms of {totals} values")
    used = max((index + 1 for index, piece in enumerate(slices) if piece.counts), default=0)
    return Periodic(
        rate=rate,
        runs=number["runs"],
        not_started=number["not_started"],
        missed=number["missed"] + number["not_started"],
        longest_missed=max(number["longest_missed"], number["missed_last"] + number["not_started"])
        if number["not_started"]
        else number["longest_missed"],
        first_ns=_number(value["first_ns"]),
        elapsed_s=_number(value["elapsed_ns"]) / 1e9,
        stopped=bool(value["stopped"]),
        processes=_number(value["processes"]),
        switches=_number(value["switches"]),
        latency=latency,
        run=run,
        lateness=lateness,
        slice_s=_number(value["slice_ns"]) / 1e9,
        slices=slices[:used],
        outliers=tuple(map(_outlier, value["outliers"][:_MOST_OUTLIERS])),
        before=_clocks(value["before"]),
        after=_clocks(value["after"]),
    )


def throttled(before: Clocks, after: Clocks) -> tuple[str, ...]:
    """Return signs that heat slowed down a device between two moments; empty without any."""
    counts = before.throttles, after.throttles
    more = 0 if None in counts else (counts[1] or 0) - (counts[0] or 0)
    counted = [f"{more} time(s) by the CPUs' own count"] if more > 0 else []
    return (*counted, *sorted({*before.cooling, *after.cooling}))


def _histogram(pairs: list[Any], largest: int, bits: int = BITS) -> Histogram:
    numbers = [_number(item) for item in pairs]
    counts = dict(zip(numbers[::2], numbers[1::2], strict=True))
    if any(index > largest_index(bits) for index in counts) or 2 * len(counts) != len(numbers):
        raise ValueError("it has a bucket that does not exist, or one twice")
    if counts and bits == BITS and not lower(max(counts)) <= largest <= upper(max(counts)):
        raise ValueError(f"its largest value is not in its last bucket: {largest}")
    return Histogram({index: count for index, count in counts.items() if count}, largest, bits)


def _outlier(value: Mapping[str, Any]) -> Outlier:
    conditions = value["conditions"]
    return Outlier(
        number=_number(value["number"]),
        at_s=_number(value["begin_ns"]) / 1e9,
        latency_ns=_number(value["latency_ns"]),
        run_ns=_number(value["run_ns"]),
        late_ns=_number(value["late_ns"]),
        switches=_number(value["switches"]),
        clocks=None if conditions is None else _clocks(conditions),
    )


def _clocks(value: Mapping[str, Any]) -> Clocks:
    khz = [_number(clock) for clock in value["khz"]]
    throttles = value["throttles"]
    active = [_name(item).partition(" ")[2] for item in value["cooling"][:_MOST_NAMES]]
    return Clocks(
        mhz=round(sum(khz) / len(khz) / 1000, 1) if khz else None,
        governors=tuple(map(_name, value["governors"][:_MOST_NAMES])),
        throttles=None if throttles is None else _number(throttles),
        cooling=tuple(sorted({kind for kind in active if COOLING.fullmatch(kind)})),
    )


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise ValueError(f"{value!r:.50} is not a valid time or count")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{value!r:.50} is not a valid name")
    return value
