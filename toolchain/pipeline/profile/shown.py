"""A profile as tables, for a terminal."""

from __future__ import annotations

from toolchain.pipeline.profile import Profile, Row
from toolchain.pipeline.report import waited_rows
from toolchain.tables import Table

_HEAD = ("#", "KERNEL", "COMPUTES", "CALLS", "ms", "SHARE", "GFLOP/s", "PEAK", "GB/s", "BOUND BY")
_NUMBERS = (0, 3, 4, 5, 6, 7, 8)
_MODELLED = "MODELLED ms"


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
        ("run", f"{found.plain_ms:.3f} ms median{mark}, of {found.runs} runs that nobody watched"),
        ("rows", f"{found.sum_ms:.3f} ms, {found.sum_share:.1%} of that"),
        *(found.split.facts() if found.split else []),
        ("watching", f"{found.watched_ms:.3f} ms, {found.hook_share:+.1%}"),
        ("peak", _peak_text(found)),
        *waited_rows(found.waited),
        *(("warning", text) for text in found.warnings),
    ]
    return [Table(body, head, numbers, spare=(2, 1, 3)), "", Table(about)]


def is_modelled(found: Profile) -> bool:
    """Tell whether there is a model of what computes."""
    return any(row.modelled_ms is not None for row in found.rows)


def _cells(row: Row, *, modelled: bool) -> tuple[str, ...]:
    cells = (
        str(row.place or ""),
        row.kernel,
        row.brief,
        str(row.calls),
        f"{row.ms:.4f}",
        f"{row.share:.1%}",
        rate(row.gflops),
        "" if row.of_peak is None else f"{row.of_peak:.0%}",
        rate(row.gbytes_s),
        row.bound,
    )
    return (*cells, "" if row.modelled_ms is None else f"{row.modelled_ms:.4f}") if modelled else cells


def rate(value: float | None) -> str:
    """Write billions in a second."""
    return "" if not value else f"{value:.1f}"


def _peak_text(found: Profile) -> str:
    if found.peak is None:
        return f"none: {found.no_peak}"
    return f"{found.peak.gflops:.1f} GFLOP/s and {found.peak.gbytes_s:.1f} GB/s, measured: {found.peak.method}"
