"""Takes winners back that make the model slower: measured alone, a kernel has the caches to itself."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from toolchain.records import RecordFile
from toolchain.records.lines import UNTUNED
from toolchain.tuning.report import TuneReport


def take_back(report: TuneReport, file: RecordFile) -> TuneReport:
    """Record that the kernels of a run stay untuned, because the model is significantly slower with its winners.

    Returns:
        The report without the winners.

    Raises:
        InputError: The records cannot be written.
    """
    end, winners = report.end_to_end, [winner for winner in report.winners if winner.base_s]
    if end is None or not winners:
        return report
    # A decision for the untuned kernel replaces the one for its winner.
    file.append(
        replace(
            winner,
            candidate=winner.among[0],
            trace=json.dumps(UNTUNED),
            samples_s=winner.base_s,
            verdict="untuned",
            error=f"the whole model: {end.outcome}",
            time=round(time.time(), 3),
        )
        for winner in winners
    )
    count = len(winners)
    outcome = f"{end.outcome}; so {'it is' if count == 1 else f'all {count} winners are'} taken back"
    rows = tuple(
        replace(row, best_s=row.untuned_s, verdict="untuned") if row.verdict == "faster" else row
        for row in report.tasks
    )
    return replace(report, tasks=rows, winners=(), end_to_end=replace(end, outcome=outcome, taken_back=count))
