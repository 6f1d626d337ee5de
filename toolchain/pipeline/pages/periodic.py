"""The part of a page about runs at the rate of an application."""

from __future__ import annotations

from toolchain.device.histogram import Histogram, Quantile, lower, upper
from toolchain.device.rate_report import Clocks, Outlier, Periodic, throttled
from toolchain.pipeline.periodic import ratio
from toolchain.report import Facts, HeatCell, HeatMap, Level, Part, Table, number

_HEAD = ("", "p50", "p90", "p99", "p99.9", "p99.99", "Max")
_UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))  # of an axis of time, which shows two of them at least
_OUTLIER_HEAD = (
    "Run", "At (s)", "Latency (ms)", "Run alone (ms)", "Woke up late (ms)", "Lost its CPU", "Clock (MHz)", "Governor",
    "Throttled since the start",
)  # fmt: skip


def rows(periodic: Periodic | None, back_to_back_ms: float) -> list[tuple[str, str]]:
    """Return facts for the terminal and the page."""
    if periodic is None:
        return []
    rate, total = periodic.rate, periodic.runs + periodic.not_started
    beside = f" beside {periodic.processes} process(es) of load: {rate.load}" if rate.load else ""
    rights = "".join(f", {name}" for name, used in (("real-time", rate.fifo), ("locked memory", rate.mlock)) if used)
    in_a_row = f", up to {periodic.longest_missed} in a row" if periodic.missed else ""
    factor = ratio(periodic.latency, back_to_back_ms)
    times = f", {factor:.2f} times that of runs back to back" if factor else ""
    tail = ", ".join(
        f"p{quantile.percentile:g} {_value(quantile)}" for quantile in periodic.latency.quantiles() if quantile.value
    )
    return [
        ("periodic", f"{periodic.runs} runs, one each {rate.period_s * 1e3:g} ms{beside}{rights}"),
        ("", f"{tail}, max {_ms(periodic.latency.max)} ms{times}"),
        ("", f"first after a pause {_ms(periodic.first_ns)} ms, woke up late by {_late(periodic)}"),
        ("deadline", f"{periodic.missed} of {total} beyond {rate.deadline_s * 1e3:g} ms{in_a_row}"),
    ]


def parts(periodic: Periodic | None) -> list[Part]:
    """Return the section of a page."""
    if periodic is None:
        return []
    sets = (("latency", periodic.latency), ("run alone", periodic.run), ("woke up late", periodic.lateness))
    table = Table([_row(name, histogram) for name, histogram in sets], _HEAD, range(1, len(_HEAD)), name="periodic")
    facts = [
        ("seconds", number(periodic.elapsed_s)),
        ("lost their CPU", f"{periodic.switches} times"),
        ("CPUs before", _clocks_text(periodic.before)),
        ("CPUs after", _clocks_text(periodic.after)),
    ]
    columns = [
        [
            HeatCell(lower(index, piece.bits) / 1e6, (upper(index, piece.bits) + 1) / 1e6, count)
            for index, count in sorted(piece.counts.items())
        ]
        for piece in periodic.slices
    ]
    level = Level("deadline", periodic.rate.deadline_s * 1e3)
    length_s = periodic.slice_s * len(columns)
    unit, seconds = next(((unit, seconds) for unit, seconds in _UNITS if length_s >= 2 * seconds), _UNITS[-1])
    slowest = [_outlier(outlier, periodic) for outlier in periodic.outliers]
    return [
        table,
        HeatMap("Latency over time, darker where more runs are", unit, "milliseconds", columns,
                periodic.slice_s / seconds, level),
        Table(slowest, _OUTLIER_HEAD, range(6), name="slowest runs"),
        Facts(facts),
    ]  # fmt: skip


def _value(quantile: Quantile) -> str:
    if quantile.low is None or quantile.high is None:
        return f"{_ms(quantile.value)} ms (at least {_ms(quantile.low)})"
    return f"{_ms(quantile.value)} ms ({_ms(quantile.low)} to {_ms(quantile.high)})"


def _row(name: str, histogram: Histogram) -> tuple[str, ...]:
    return (name, *map(_value_or_dash, histogram.quantiles()), f"{_ms(histogram.max)} ms")


def _value_or_dash(quantile: Quantile) -> str:
    return "-" if quantile.value is None else _value(quantile)


def _late(periodic: Periodic) -> str:
    median = periodic.lateness.quantiles()[0].value  # of few wake-ups, as when the model never waits, there is none
    usual = "" if median is None else f"{_ms(median)} ms (median), "
    return f"{usual}{'max' if usual else 'at most'} {_ms(periodic.lateness.max)} ms"


def _outlier(outlier: Outlier, periodic: Periodic) -> tuple[str, ...]:
    clocks = outlier.clocks
    return (
        str(outlier.number),
        f"{outlier.at_s:.3f}",
        _ms(outlier.latency_ns),
        _ms(outlier.run_ns),
        _ms(outlier.late_ns),
        f"{outlier.switches} times",
        number(clocks.mhz) if clocks else "-",
        ", ".join(clocks.governors) or "-" if clocks else "-",
        ", ".join(throttled(periodic.before, clocks)) or "-" if clocks else "-",
    )


def _clocks_text(clocks: Clocks) -> str:
    governors = f", governor {', '.join(clocks.governors)}" if clocks.governors else ""
    return f"{number(clocks.mhz)} MHz{governors}" if clocks.mhz else "the device does not report its clock"


def _ms(nanoseconds: int | None) -> str:
    return "-" if nanoseconds is None else number(nanoseconds / 1e6)
