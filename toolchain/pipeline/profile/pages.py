"""Profiles as pages of HTML."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.pipeline.pages import common
from toolchain.pipeline.profile import Profile, Row
from toolchain.pipeline.profile.against import Against, change_text, slower_text
from toolchain.pipeline.report import waited_rows
from toolchain.report import (
    EMULATED,
    MODELLED,
    Bar,
    Bars,
    Cell,
    Facts,
    Headline,
    Notes,
    Page,
    Section,
    Table,
    Tone,
    percent,
)
from toolchain.units import duration

_MAX_BARS = 60


def profile_page(profile: Profile) -> Page:
    slowest = max(profile.rows, key=lambda row: row.ms)
    layer = f"{slowest.node} ({slowest.brief})" if slowest.nodes else slowest.brief
    mark = " (emulated)" if profile.emulated else ""
    headline = f"{duration(profile.plain_ms)} a run; slowest layer: {layer}, {percent(slowest.share)} of the time{mark}"
    modelled = any(row.modelled_ms is not None for row in profile.rows)  # by a model of an accelerator
    marks = [*([EMULATED] if profile.emulated else []), *([MODELLED] if modelled else [])]
    peak, no_peak = profile.peak, f"none: {profile.no_peak}"
    facts = [
        ("model", profile.model),
        ("release", profile.bundle_digest[:16]),
        ("board", f"{profile.board} at {profile.host}{mark}"),
        ("computed on", profile.processor.text if profile.processor else ""),
        ("threads", str(profile.threads or "one for each CPU")),
        ("without profiling", f"{duration(profile.plain_ms)}{mark}, the median of {profile.runs} runs"),
        ("with profiling", f"{duration(profile.watched_ms)}, {profile.hook_share:+.2%}"),
        ("sum of the kernels", f"{duration(profile.sum_ms)}, {profile.sum_share:.1%} of a run without profiling"),
        *(profile.split.facts() if profile.split else []),
        (
            "peak",
            f"{peak.gflops:.1f} GFLOP/s and {peak.gbytes_s:.1f} GB/s, measured: {peak.method}" if peak else no_peak,
        ),
        *waited_rows(profile.waited),
    ]
    sections = [
        Section("Kernels in order", [Bars("Time of each call", "milliseconds", _bars(profile.rows))]),
        Section("Each call", [_table(profile.rows, modelled=modelled)], on_terminal=True),
        Section("Numbers", [Facts(facts)], on_terminal=True),
        Section("Warnings", [Notes(profile.warnings)], on_terminal=True),
        Section("Conditions", [common.conditions(profile.before, profile.after)]),
        common.provenance([("release", f"sha256:{profile.bundle_digest}")]),
    ]
    title = f"Profile of {profile.model} on {profile.board}"
    tone: Tone = "doubt" if profile.emulated else "plain"
    return Page(title, "profile", Headline(headline, tone), sections, marks)


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


_HEAD = (
    *("#", "Node", "Kernel", "Computes", "Shapes", "Calls", "Time", "10 to 90 %", "Share", "GFLOP", "GFLOP/s"),
    *("Peak", "MB", "GB/s", "Bound by", "Modelled"),
)
_SPARE = (3, 13, 11, 14, 10, 5, 2)
_NODE, _MODELLED = 1, 15


def _table(rows: Sequence[Row], *, modelled: bool) -> Table:
    cells = [
        (
            str(row.place or ""),
            row.node,
            row.kernel,
            Cell(row.operator, brief=row.brief),
            row.shape,
            str(row.calls),
            duration(row.ms),
            f"{duration(row.low_ms)} to {duration(row.high_ms)}",
            Cell(percent(row.share), row.share),
            "" if row.gflop is None else f"{row.gflop:.5f}",
            f"{row.gflops:.1f}" if row.gflops else "",
            "" if row.of_peak is None else Cell(f"{row.of_peak:.0%}", min(row.of_peak, 1.0)),
            f"{row.gbytes * 1e3:.3f}",
            f"{row.gbytes_s:.1f}" if row.gbytes_s else "",
            row.bound,
            "" if row.modelled_ms is None else duration(row.modelled_ms),
        )
        for row in rows
    ]
    table = Table(cells, _HEAD, (0, *range(5, 14), _MODELLED), _SPARE, (4, 7, 9, 12), "calls of kernels")
    table = table if modelled else table.without(_MODELLED)
    return table if any(row.nodes for row in rows) else table.without(_NODE)  # a bundle of an older toolchain has none


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
