"""A profile as tables, for a terminal."""

from __future__ import annotations

from toolchain.pipeline.profile import Profile, Row
from toolchain.pipeline.report import waited_rows
from toolchain.tables import Table
from toolchain.units import duration

_HEAD = ("#", "NODE", "KERNEL", "COMPUTES", "CALLS", "TIME", "SHARE", "GFLOP/s", "PEAK", "GB/s", "BOUND BY")
_NUMBERS = (0, 4, 5, 6, 7, 8, 9)
_SPARE = (3, 9, 8, 10, 7, 4, 2)  # what a narrow screen goes without, the first of these first
_MODELLED = "MODELLED"
_NODE = 1


def shown(found: Profile) -> list[str | Table]:
    """Return what a person is shown of a profile."""
    mark = " (emulated)" if found.emulated else ""
    modelled = is_modelled(found)
    head, numbers = ((*_HEAD, _MODELLED), (*_NUMBERS, len(_HEAD))) if modelled else (_HEAD, _NUMBERS)
    body = [_cells(row, modelled=modelled) for row in found.rows]
    about = [
        ("model", found.model),
        ("release", found.bundle_digest[:16]),
        ("board", f"{found.board} at {found.host}{mark}"),
        *([("computed on", found.processor.text)] if found.processor else []),
        ("without profiling", f"{duration(found.plain_ms)}{mark}, the median of {found.runs} runs"),
        ("with profiling", f"{duration(found.watched_ms)}, {found.hook_share:+.1%}"),
        ("sum of the kernels", f"{duration(found.sum_ms)}, {found.sum_share:.1%} of a run without profiling"),
        *(found.split.facts() if found.split else []),
        ("peak", _peak_text(found)),
        *waited_rows(found.waited),
        *(("warning", text) for text in found.warnings),
    ]
    if not any(row.nodes for row in found.rows):  # a bundle of an older toolchain
        return [Table(body, head, numbers, _SPARE).without(_NODE), "", Table(about)]
    return [Table(body, head, numbers, _SPARE), "", Table(about)]


def is_modelled(found: Profile) -> bool:
    """Tell whether there is a model of what computes."""
    return any(row.modelled_ms is not None for row in found.rows)


def _cells(row: Row, *, modelled: bool) -> tuple[str, ...]:
    cells = (
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
    )
    return (*cells, "" if row.modelled_ms is None else duration(row.modelled_ms)) if modelled else cells


def rate(value: float | None) -> str:
    """Write billions in a second."""
    return "" if not value else f"{value:.1f}"


def _peak_text(found: Profile) -> str:
    if found.peak is None:
        return f"none: {found.no_peak}"
    return f"{found.peak.gflops:.1f} GFLOP/s and {found.peak.gbytes_s:.1f} GB/s, measured: {found.peak.method}"
