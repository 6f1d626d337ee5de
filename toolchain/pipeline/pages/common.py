"""Sections that pages of measurements share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

import toolchain
from toolchain.device.bench import Conditions, Latency
from toolchain.device.waiting import Waited
from toolchain.report import (
    EMULATED,
    Facts,
    Group,
    Histogram,
    Level,
    Mark,
    Notes,
    Part,
    Plot,
    Section,
    Strokes,
    Table,
    number,
    samples,
)

_LATENCY_HEAD = ("", "Median", "95 % from", "95 % to", "Mean", "Std", "Min", "p90", "p99", "Max", "Runs")
_CONDITIONS = {
    "load": "load of the last minute",
    "busy": "CPU time in use",
    "governors": "governors",
    "mhz": "clock (MHz)",
    "celsius": "temperature (\u00b0C)",
}


def marks(*, emulated: bool) -> list[Mark]:
    return [EMULATED] if emulated else []


def latencies(sets: Sequence[tuple[str, Latency]]) -> Table:
    """Return the statistics of sets of runs by name, in milliseconds."""
    rows = []
    for name, latency in sets:
        low, high = latency.median_ci95
        values = (
            latency.median,
            low,
            high,
            latency.mean,
            latency.std,
            latency.min,
            latency.p90,
            latency.p99,
            latency.max,
        )
        rows.append((name, *map(number, values), str(len(latency.samples))))
    return Table(rows, _LATENCY_HEAD, range(1, len(_LATENCY_HEAD)), name="latency")


def runs(sets: Sequence[tuple[str, Latency]]) -> list[Part]:
    """Return plots of every run, in order and by duration, of sets of runs by name."""
    levels = [Level(f"median {name}".strip(), latency.median) for name, latency in sets]
    strokes = [Strokes(samples(latency.samples), name) for name, latency in sets]
    groups = [Group(name or "runs", latency.samples) for name, latency in sets]
    return [
        Plot("Every timed run in order", "run", "milliseconds", strokes, levels),
        Histogram("Distribution of the run times", "milliseconds", groups),
    ]


def conditions(before: Conditions, after: Conditions) -> Table:
    """Return the state of the device before and after the runs."""
    sides = asdict(before), asdict(after)
    names = [field.name for field in fields(Conditions)]
    rows = [(_CONDITIONS.get(name, name), *(_condition(name, side[name]) for side in sides)) for name in names]
    return Table(rows, ("", "Before", "After"), (1, 2), name="conditions")


def _condition(name: str, value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "-"
    if name == "busy" and isinstance(value, float):
        return f"{value:.1%}"
    return number_text(value) if isinstance(value, int | float) or value is None else str(value)


def number_text(value: float | None) -> str:
    """Write a number that was measured once: all of its digits."""
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


def waiting(waited: Sequence[Waited]) -> Notes:
    return Notes([f"waited {number(wait.seconds)} s: {wait.owner}" for wait in waited], "plain")


def provenance(rows: Sequence[tuple[str, str]], versions: Mapping[str, str] | None = None) -> Section:
    """Return where the page comes from: digests, and versions, by default that of the toolchain."""
    used = versions or {"toolchain": toolchain.__version__}
    text = ", ".join(f"{name} {version}" for name, version in used.items())
    return Section("Provenance", [Facts([*rows, ("versions", text)])])
