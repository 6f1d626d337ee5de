"""Profiles as pages of HTML."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.pipeline.pages import common
from toolchain.pipeline.profile import Profile, Row
from toolchain.pipeline.profile.against import Against, change_text, slower_text
from toolchain.pipeline.profile.texts import is_modelled, rate
from toolchain.report import EMULATED, MODELLED, Bar, Bars, Cell, Facts, Headline, Notes, Page, Section, Table, percent
from toolchain.units import duration

_MAX_BARS = 60


def profile_page(profile: Profile) -> bytes:
    slowest = max(profile.rows, key=lambda row: row.ms)
    layer = f"{slowest.node} ({slowest.brief})" if slowest.nodes else slowest.brief
    verdict = f"{duration(profile.plain_ms)} a run; slowest layer: {layer}, {percent(slowest.share)} of the time"
    modelled = is_modelled(profile)
    marks = [*([EMULATED] if profile.emulated else []), *([MODELLED] if modelled else [])]
    peak = profile.peak
    facts = [
        ("a run without profiling", f"{duration(profile.plain_ms)}, the median of {profile.runs}"),
        ("a run with profiling", f"{duration(profile.watched_ms)}, {profile.hook_share:+.2%}"),
        ("sum of the kernels", f"{duration(profile.sum_ms)}, {profile.sum_share:.2%} of a run without profiling"),
        *(profile.split.facts() if profile.split else []),
        ("threads", str(profile.threads or "one for each CPU")),
        ("peak", f"{peak.gflops:.1f} GFLOP/s, {peak.gbytes_s:.1f} GB/s" if peak else f"none: {profile.no_peak}"),
        ("how the peak was measured", peak.method if peak else ""),
    ]
    provenance = [
        ("model", profile.model),
        ("release", f"sha256:{profile.bundle_digest}"),
        ("board", f"{profile.board} at {profile.host}"),
        ("computed on", profile.processor.text if profile.processor else ""),
    ]
    mark = " (emulated)" if profile.emulated else ""
    return (
        Page(
            title=f"Profile of {profile.model} on {profile.board}",
            command="profile",
            verdict=Headline(f"{verdict}{mark}", "doubt" if profile.emulated else "plain"),
            sections=[
                Section("Numbers", [Facts(facts)]),
                Section("Kernels in order", [Bars("Time of each call", "milliseconds", _bars(profile.rows))]),
                Section("Each call", [_table(profile.rows, modelled=modelled)]),
                Section("Warnings", [Notes(profile.warnings)]),
                Section(
                    "Conditions", [common.conditions(profile.before, profile.after), common.waiting(profile.waited)]
                ),
                common.provenance(provenance),
            ],
            marks=marks,
        )
        .html()
        .encode()
    )


def _bars(rows: Sequence[Row]) -> list[Bar]:
    """Return a bar for each row, or for the longest ones if they are too many to be seen."""
    longest = set(sorted((row.ms for row in rows), reverse=True)[:_MAX_BARS])
    return [
        Bar(
            f"{row.place or ''} {row.node or row.operator} {row.shape.rpartition(' -> ')[2]}".strip(),
            row.ms,
            f"{duration(row.ms)}, {percent(row.share)}",
            f"{row.operator} {row.kernel} {row.shape}".strip(),
        )
        for row in rows
        if row.ms in longest
    ]


def _table(rows: Sequence[Row], *, modelled: bool) -> Table:
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
            Cell(percent(row.share), row.share),
            "" if row.gflop is None else f"{row.gflop:.5f}",
            rate(row.gflops),
            "" if row.of_peak is None else Cell(f"{row.of_peak:.0%}", min(row.of_peak, 1.0)),
            f"{row.gbytes * 1e3:.3f}",
            rate(row.gbytes_s),
            row.bound,
            *([modelled_ms] if modelled else []),
        )
        body.append(cells)
    return Table(body, head, (0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15), name="calls of kernels")


def comparison_page(comparison: Against) -> bytes:
    new_ms, base_ms = duration(comparison.new_ms), duration(comparison.base_ms)
    facts = [
        ("a run", f"{new_ms}, of the base {base_ms}: {change_text(comparison.change)}"),
        ("rounds of each", str(comparison.rounds)),
    ]
    provenance = [
        ("model", comparison.model),
        ("release", f"sha256:{comparison.new_digest}"),
        ("base", f"sha256:{comparison.base_digest}"),
        ("board", f"{comparison.board} at {comparison.host}"),
    ]
    head = ("layer", "kernel", "kernel of the base", "time", "time of the base", "more", "change")
    rows = [
        (layer.name, layer.new, layer.base, duration(layer.new_ms), duration(layer.base_ms),
         duration(layer.more_ms, signed=True), change_text(layer.change))
        for layer in comparison.layers
    ]  # fmt: skip
    bars = [
        Bar(
            layer.name,
            layer.more_ms,
            duration(layer.more_ms, signed=True),
            f"{layer.new or 'nothing'} for {layer.base or 'nothing'}",
        )
        for layer in sorted(comparison.layers, key=lambda layer: -abs(layer.more_ms))[:_MAX_BARS]
    ]
    return (
        Page(
            title=f"Layers of {comparison.model} on {comparison.board}",
            command="profile",
            verdict=Headline(
                slower_text(comparison), "bad" if any(layer.is_slower for layer in comparison.layers) else "plain"
            ),
            sections=[
                Section("Numbers", [Facts(facts)]),
                Section(
                    "How much longer each layer takes", [Bars("The largest difference first", "milliseconds", bars)]
                ),
                Section("Each layer", [Table(rows, head, (3, 4, 5), name="layers of both")]),
                common.provenance(provenance),
            ],
            marks=[EMULATED] if comparison.emulated else [],
        )
        .html()
        .encode()
    )
