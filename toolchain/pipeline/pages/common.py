"""Parts that pages of measurements share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

import toolchain
from toolchain import page
from toolchain.device.bench import Conditions, Latency
from toolchain.device.waiting import Waited

_LATENCY_HEAD = ("", "Median", "95 % from", "95 % to", "Mean", "Std", "Min", "p90", "p99", "Max", "Runs")
_CONDITIONS = {
    "load": "load of the last minute",
    "busy": "CPU time in use",
    "governors": "governors",
    "mhz": "clock (MHz)",
    "celsius": "temperature (\u00b0C)",
}


def marks(*, emulated: bool) -> list[page.Mark]:
    """Return what a page of measurements is stamped with."""
    return [page.EMULATED] if emulated else []


def latencies(found: Sequence[tuple[str, Latency]]) -> page.Table:
    """Return the statistics of one set of runs or several, in milliseconds.

    Args:
        found: Name and statistics of each.
    """
    return page.Table(_LATENCY_HEAD, [_latency(*one) for one in found], range(1, len(_LATENCY_HEAD)), "latency")


def _latency(name: str, one: Latency) -> tuple[str, ...]:
    low, high = one.median_ci95
    values = (one.median, low, high, one.mean, one.std, one.min, one.p90, one.p99, one.max)
    return (name, *map(page.number, values), str(len(one.samples)))


def runs(found: Sequence[tuple[str, Latency]]) -> list[page.Part]:
    """Return plots of every run, in order and by duration.

    Args:
        found: Name and statistics of each set.
    """
    levels = [page.Level(f"median {name}".strip(), one.median) for name, one in found]
    series = [page.Run(name, one.samples) for name, one in found]
    groups = [page.Group(name or "runs", one.samples) for name, one in found]
    return [
        page.Series("Every timed run in order", "run", "milliseconds", series, levels),
        page.Histogram("Distribution of the run times", "milliseconds", groups),
    ]


def conditions(before: Conditions, after: Conditions) -> page.Table:
    """Return what the device's CPU was doing before and after the runs."""
    sides = asdict(before), asdict(after)
    names = [one.name for one in fields(Conditions)]
    rows = [(_CONDITIONS.get(name, name), *(_condition(name, side[name]) for side in sides)) for name in names]
    return page.Table(("", "Before", "After"), rows, (1, 2), "conditions")


def _condition(name: str, value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "-"
    if name == "busy" and isinstance(value, float):
        return f"{value:.1%}"
    return plain(value) if isinstance(value, int | float) or value is None else str(value)


def plain(value: float | None) -> str:
    """Write a number that was not measured in many runs: no more digits than it has."""
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


def waiting(waited: Sequence[Waited]) -> page.Notes:
    """Return who had the device before, and for how long."""
    return page.Notes([f"waited {page.number(one.seconds)} s: {one.owner}" for one in waited], "plain")


def provenance(rows: Sequence[tuple[str, str]], versions: Mapping[str, str] | None = None) -> page.Section:
    """Return where the page comes from.

    Args:
        rows: Names of what it is made of, such as digests.
        versions: Versions of what it was made with, where they are known; that of the toolchain by default.
    """
    known = versions or {"toolchain": toolchain.__version__}
    told = ", ".join(f"{name} {version}" for name, version in known.items())
    return page.Section("Provenance", [page.Facts([*rows, ("versions", told)])])
