"""What a report has about runs at the rate of an application: its part of the JSON document, and its warnings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from toolchain.device.histogram import Histogram, lower, upper
from toolchain.device.rate_report import Outlier, Periodic, throttled


def median_ms(histogram: Histogram) -> float | None:
    """Return the median of a histogram in milliseconds; None if there are too few values."""
    return _ms(histogram.quantiles()[0].value)


def ratio(histogram: Histogram, back_to_back_ms: float) -> float | None:
    """Return the median of runs at a rate divided by that of runs back to back; None if it has none."""
    median = median_ms(histogram)
    return median / back_to_back_ms if median is not None and back_to_back_ms else None


def document(periodic: Periodic, back_to_back_ms: float) -> dict[str, Any]:
    """Return the part of a report; docs/report.md describes every field."""
    rate = periodic.rate
    return {
        "period_ms": rate.period_s * 1e3,
        "for_s": rate.for_s,
        "deadline_ms": rate.deadline_s * 1e3,
        "load": {"kind": rate.load, "processes": periodic.processes} if rate.load else None,
        "fifo": rate.fifo,
        "mlock": rate.mlock,
        "elapsed_s": periodic.elapsed_s,
        "stopped": periodic.stopped,
        "runs": periodic.runs,
        "not_started": periodic.not_started,
        "missed": periodic.missed,
        "longest_missed": periodic.longest_missed,
        "first_ms": _ms(periodic.first_ns),
        "ratio": ratio(periodic.latency, back_to_back_ms),
        "run_ratio": ratio(periodic.run, back_to_back_ms),
        "latency_ms": _quantiles(periodic.latency),
        "run_ms": _quantiles(periodic.run),
        "lateness_ms": _quantiles(periodic.lateness),
        "involuntary_switches": periodic.switches,
        "cpus": {"before": asdict(periodic.before), "after": asdict(periodic.after)},
        "outliers": [_outlier(outlier, periodic) for outlier in periodic.outliers],
        "histogram": periodic.latency.hdr_log(periodic.elapsed_s),
        "slices": {"seconds": periodic.slice_s, "latency_ms": [_buckets(piece) for piece in periodic.slices]},
    }


def warnings(periodic: Periodic | None) -> tuple[str, ...]:
    """Return what a reader of the numbers must know."""
    if periodic is None:
        return ()
    rate, total = periodic.rate, periodic.runs + periodic.not_started
    more = f", up to {periodic.longest_missed} in a row" if periodic.longest_missed > 1 else ""
    signs = ", ".join(throttled(periodic.before, periodic.after))
    slower = (
        f"the model does not keep up: {periodic.not_started} runs that were due were not started; the latencies grow"
        " with the time of the measurement"
    )
    checks = [
        (periodic.stopped, f"ended early, after {periodic.elapsed_s:.1f} of {rate.for_s:g} s"),
        (periodic.not_started > 0, slower),
        (
            periodic.missed > 0,
            f"{periodic.missed} of {total} runs missed the deadline of {rate.deadline_s * 1e3:g} ms{more}",
        ),
        (bool(signs), f"throttled during the periodic runs: {signs}"),
    ]
    return tuple(text for applies, text in checks if applies)


def _ms(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6


def _quantiles(histogram: Histogram) -> dict[str, Any]:
    percentiles = {
        f"p{quantile.percentile:g}": {"value": _ms(quantile.value), "ci95": [_ms(quantile.low), _ms(quantile.high)]}
        for quantile in histogram.quantiles()
    }
    return {**percentiles, "max": _ms(histogram.max)}


def _outlier(outlier: Outlier, periodic: Periodic) -> dict[str, Any]:
    return {
        "number": outlier.number,
        "at_s": outlier.at_s,
        "latency_ms": _ms(outlier.latency_ns),
        "run_ms": _ms(outlier.run_ns),
        "late_ms": _ms(outlier.late_ns),
        "involuntary_switches": outlier.switches,
        "cpus": asdict(outlier.clocks) if outlier.clocks else None,
        "throttled": list(throttled(periodic.before, outlier.clocks)) if outlier.clocks else None,
    }


def _buckets(piece: Histogram) -> list[list[float]]:
    return [
        [lower(index, piece.bits) / 1e6, (upper(index, piece.bits) + 1) / 1e6, count]
        for index, count in sorted(piece.counts.items())
    ]
