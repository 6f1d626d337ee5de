"""Winners that make the whole model slower are taken back: alone, a kernel has caches that it shares there."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from toolchain.records import Record, RecordFile
from toolchain.records.lines import UNTUNED
from toolchain.tuning.report import TaskRow, TuneReport


def taken_back(found: TuneReport, file: RecordFile) -> TuneReport:
    """Record that the kernels of a run stay untuned, as the whole model is surely slower with its winners.

    Args:
        found: What the run found out, the comparison of the whole model included.
        file: Its file of records.

    Returns:
        What it has found out after all.

    Raises:
        InputError: The records cannot be written.
    """
    end, winners = found.end_to_end, [one for one in found.winners if one.base_s]
    if end is None or not winners:
        return found
    file.append(_untuned(one, f"the whole model: {end.outcome}") for one in winners)
    count = len(winners)
    outcome = f"{end.outcome}; so {'it is' if count == 1 else f'all {count} winners are'} taken back"
    rows = tuple(_stays(row) for row in found.tasks)
    return replace(found, tasks=rows, winners=(), end_to_end=replace(end, outcome=outcome, taken_back=count))


def _untuned(winner: Record, why: str) -> Record:
    """Return a decision for what a kernel is untuned, in the place of one for this winner."""
    return replace(
        winner,
        candidate=winner.among[0],
        trace=json.dumps(UNTUNED),
        samples_s=winner.base_s,
        verdict="untuned",
        error=why,
        time=round(time.time(), 3),
    )


def _stays(row: TaskRow) -> TaskRow:
    return replace(row, best_s=row.untuned_s, verdict="untuned") if row.verdict == "faster" else row
