"""Profiles as pages of HTML."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain import page
from toolchain.page import Bar, Bars, Cell, Facts, Notes, Page, Section, Verdict
from toolchain.pipeline.pages import common
from toolchain.pipeline.profile import Profile, Row
from toolchain.pipeline.profile.against import Against, carried_text, change_text
from toolchain.pipeline.profile.layers import Layer
from toolchain.pipeline.profile.shown import is_modelled, rate
from toolchain.units import duration

_MOST_BARS = 60


def profile(found: Profile) -> bytes:
    """Return a profile as a page."""
    slowest = max(found.rows, key=lambda row: row.ms)
    share = f"{page.percent(slowest.share)} of the time"
    verdict = f"{duration(found.plain_ms)} a run; slowest layer: {_called(slowest)}, {share}"
    modelled = is_modelled(found)
    marks = [*([page.EMULATED] if found.emulated else []), *([page.MODELLED] if modelled else [])]
    peak = found.peak
    facts = [
        ("a run without profiling", f"{duration(found.plain_ms)}, the median of {found.runs}"),
        ("a run with profiling", f"{duration(found.watched_ms)}, {found.hook_share:+.2%}"),
        ("sum of the kernels", f"{duration(found.sum_ms)}, {found.sum_share:.2%} of a run without profiling"),
        *(found.split.facts() if found.split else []),
        ("threads", str(found.threads or "one for each CPU")),
        ("peak", f"{peak.gflops:.1f} GFLOP/s, {peak.gbytes_s:.1f} GB/s" if peak else f"none: {found.no_peak}"),
        ("how the peak was measured", peak.method if peak else ""),
    ]
    provenance = [
        ("model", found.model),
        ("release", f"sha256:{found.bundle_digest}"),
        ("board", f"{found.board} at {found.host}"),
        ("computed on", found.processor.text if found.processor else ""),
    ]
    mark = " (emulated)" if found.emulated else ""
    return (
        Page(
            title=f"Profile of {found.model} on {found.board}",
            command="profile",
            verdict=Verdict(f"{verdict}{mark}", "doubt" if found.emulated else "plain"),
            sections=[
                Section("Numbers", [Facts(facts)]),
                Section("Kernels in order", [Bars("Time of each call", "milliseconds", _bars(found.rows))]),
                Section("Each call", [_table(found.rows, modelled=modelled)]),
                Section("Warnings", [Notes(found.warnings)]),
                Section("Conditions", [common.conditions(found.before, found.after), common.waiting(found.waited)]),
                common.provenance(provenance),
            ],
            marks=marks,
        )
        .html()
        .encode()
    )


def _called(row: Row) -> str:
    """Name a layer by its node, where that is known, and by what it computes."""
    return f"{row.node} ({row.brief})" if row.nodes else row.brief


def _bars(rows: Sequence[Row]) -> list[Bar]:
    """Return a bar for each row, or for the longest where they are too many to be seen."""
    kept = set(sorted((row.ms for row in rows), reverse=True)[:_MOST_BARS])
    return [
        Bar(
            f"{row.place or ''} {row.node or row.operator} {row.shape.rpartition(' -> ')[2]}".strip(),
            row.ms,
            f"{duration(row.ms)}, {page.percent(row.share)}",
            f"{row.operator} {row.kernel} {row.shape}".strip(),
        )
        for row in rows
        if row.ms in kept
    ]


def _table(rows: Sequence[Row], *, modelled: bool) -> page.Table:
    head = ["#", "node", "kernel", "operator", "shapes", "calls", "time", "10 to 90 %", "share", "GFLOP", "GFLOP/s"]
    head += ["of the peak", "MB", "GB/s", "bound by", *(["modelled"] if modelled else [])]
    body = []
    for row in rows:
        modelled_ms = "" if row.modelled_ms is None else duration(row.modelled_ms)
        cells: tuple[str | Cell, ...] = (
            str(row.place or ""),
            row.node,
            row.kernel,
            row.operator,
            row.shape,
            str(row.calls),
            duration(row.ms),
            f"{duration(row.low_ms)} to {duration(row.high_ms)}",
            Cell(page.percent(row.share), row.share),
            "" if row.gflop is None else f"{row.gflop:.5f}",
            rate(row.gflops),
            "" if row.of_peak is None else Cell(f"{row.of_peak:.0%}", min(row.of_peak, 1.0)),
            f"{row.gbytes * 1e3:.3f}",
            rate(row.gbytes_s),
            row.bound,
            *([modelled_ms] if modelled else []),
        )
        body.append(cells)
    return page.Table(head, body, (0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15), "calls of kernels")


def against(found: Against) -> bytes:
    """Return the comparison of two releases as a page."""
    facts = [
        ("a run", f"{duration(found.new_ms)}, of the base {duration(found.base_ms)}: {change_text(found.change)}"),
        ("rounds of each", str(found.rounds)),
    ]
    provenance = [
        ("model", found.model),
        ("release", f"sha256:{found.new_digest}"),
        ("base", f"sha256:{found.base_digest}"),
        ("board", f"{found.board} at {found.host}"),
    ]
    bars = [
        Bar(
            one.name,
            one.more_ms,
            duration(one.more_ms, signed=True),
            f"{one.new or 'nothing'} for {one.base or 'nothing'}",
        )
        for one in sorted(found.layers, key=lambda one: -abs(one.more_ms))[:_MOST_BARS]
    ]
    return (
        Page(
            title=f"Layers of {found.model} on {found.board}",
            command="profile",
            verdict=Verdict(carried_text(found), "bad" if any(one.is_slower for one in found.layers) else "plain"),
            sections=[
                Section("Numbers", [Facts(facts)]),
                Section(
                    "How much longer each layer takes", [Bars("The largest difference first", "milliseconds", bars)]
                ),
                Section("Each layer", [_layers(found.layers)]),
                common.provenance(provenance),
            ],
            marks=[page.EMULATED] if found.emulated else [],
        )
        .html()
        .encode()
    )


def _layers(layers: Sequence[Layer]) -> page.Table:
    head = ("layer", "kernel", "kernel of the base", "time", "time of the base", "more", "change")
    body = [
        (one.name, one.new, one.base, duration(one.new_ms), duration(one.base_ms), duration(one.more_ms, signed=True),
         change_text(one.change))
        for one in layers
    ]  # fmt: skip
    return page.Table(head, body, (3, 4, 5), "layers of both")
