"""A profile as tables, for a terminal."""

from __future__ import annotations

from toolchain.pipeline.profile import Profile
from toolchain.pipeline.report import waited_rows
from toolchain.report import Table
from toolchain.units import duration

_HEAD = ("#", "NODE", "KERNEL", "COMPUTES", "CALLS", "TIME", "SHARE", "GFLOP/s", "PEAK", "GB/s", "BOUND BY")
_NUMBERS = (0, 4, 5, 6, 7, 8, 9)
_SPARE = (3, 9, 8, 10, 7, 4, 2)  # columns that a narrow screen leaves out, in this order
_MODELLED = "MODELLED"
_NODE = 1


def render_text(profile: Profile) -> list[str | Table]:
    mark = " (emulated)" if profile.emulated else ""
    modelled = is_modelled(profile)
    head, numbers = ((*_HEAD, _MODELLED), (*_NUMBERS, len(_HEAD))) if modelled else (_HEAD, _NUMBERS)
    body = [
        (
            str(row.place or ""),
            row.node,
            row.kernel,
            row.brief,
            str(row.calls),
            duration(row.ms),
            f"{row.share:.1%}",
            rate(row.gflops),
            "" if row.of_peak is None else f"{row.of_peak:.0%}",
            rate(row.gbytes_s),
            row.bound,
            *(["" if row.modelled_ms is None else duration(row.modelled_ms)] if modelled else []),
        )
        for row in profile.rows
    ]
    peak, no_peak = profile.peak, f"none: {profile.no_peak}"
    about = [
        ("model", profile.model),
        ("release", profile.bundle_digest[:16]),
        ("board", f"{profile.board} at {profile.host}{mark}"),
        *([("computed on", profile.processor.text)] if profile.processor else []),
        ("without profiling", f"{duration(profile.plain_ms)}{mark}, the median of {profile.runs} runs"),
        ("with profiling", f"{duration(profile.watched_ms)}, {profile.hook_share:+.1%}"),
        ("sum of the kernels", f"{duration(profile.sum_ms)}, {profile.sum_share:.1%} of a run without profiling"),
        *(profile.split.facts() if profile.split else []),
        (
            "peak",
            f"{peak.gflops:.1f} GFLOP/s and {peak.gbytes_s:.1f} GB/s, measured: {peak.method}" if peak else no_peak,
        ),
        *waited_rows(profile.waited),
        *(("warning", text) for text in profile.warnings),
    ]
    table = Table(body, head, numbers, _SPARE)
    has_nodes = any(row.nodes for row in profile.rows)  # a bundle of an older toolchain has none
    return [table if has_nodes else table.without(_NODE), "", Table(about)]


def is_modelled(profile: Profile) -> bool:
    """Whether a model of an accelerator computed some of the times."""
    return any(row.modelled_ms is not None for row in profile.rows)


def rate(value: float | None) -> str:

    return "" if not value else f"{value:.1f}"
