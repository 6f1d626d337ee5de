"""How near each kernel of a tuning run comes to what the board allows: its roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolchain.device import roofline
from toolchain.device.roofline import Attained, Peak
from toolchain.report import Cell
from toolchain.units import duration

if TYPE_CHECKING:
    from toolchain.tuning.report import TaskRow

HEAD = ("Limit", "Of limit", "Bound by")
_NEAR = 0.9  # share of the limit from which on little is left to gain
_NOTHING = "-"


def attained(row: TaskRow, peak: Peak | None) -> Attained | None:
    """Compare a kernel's best time with the peak; None without either, or if the peak is not that of its numbers."""
    if peak is None or row.gbytes is None or not row.best_s:
        return None
    return roofline.attained(row.gflop, row.gbytes, row.best_s, peak)


def document(row: TaskRow, peak: Peak | None) -> dict[str, Any]:
    """Return the fields of a kernel for JSON."""
    result = attained(row, peak)
    if result is None:
        return {"limit_s": None, "of_limit": None, "bound": ""}
    return {"limit_s": result.limit_s, "of_limit": result.share, "bound": result.bound}


def cells(row: TaskRow, peak: Peak | None) -> tuple[str | Cell, ...]:
    """Return the cells below `HEAD`."""
    result = attained(row, peak)
    if result is None:
        return (_NOTHING, _NOTHING, "")
    share = Cell(f"{result.share:.0%}", min(result.share, 1.0))
    return (duration(result.limit_s * 1e3), share, result.bound)


def peak_text(peak: Peak | None, no_peak: str) -> str:
    """Return the peak and its method, or why it is unknown."""
    if peak is None:
        return no_peak and f"unknown: {no_peak}"
    return f"{peak.gflops:.1f} GFLOP/s and {peak.gbytes_s:.1f} GB/s, measured: {peak.method}"


def limit_text(rows: Sequence[TaskRow], peak: Peak | None) -> str:
    """Return how near all kernels together come to their limits; empty if no limit is known."""
    pairs = [(row, result) for row in rows if (result := attained(row, peak))]
    if not pairs:
        return ""
    total_s = sum(row.weight * (row.best_s or 0.0) for row, _ in pairs)
    # Winograd's algorithm beats the limit of plain products, which must not make up for other kernels.
    limit_s = sum(row.weight * min(result.limit_s, row.best_s or 0.0) for row, result in pairs)
    near = sum(result.share >= _NEAR for _, result in pairs)
    return (
        f"{limit_s / total_s:.0%} of the roofline: {duration(total_s * 1e3)}, and the peak allows"
        f" {duration(limit_s * 1e3)}; {near} of {len(pairs)} kernels are at {_NEAR:.0%} of their limit or above"
    )
