"""Finals: after the search of a kernel, its best candidates are measured in turns with the untuned kernel.

A search measures each candidate once, on a machine that may be doing other work. The minimum of many noisy samples is
biased, so trials only nominate candidates. Only a candidate that is significantly faster in turns replaces the kernel
that a deploy without the user's records would use. Winners that make the whole model slower are taken back: measured
alone, a kernel has the caches to itself.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from toolchain.records import Key, Record, RecordFile, Records
from toolchain.records.lines import UNTUNED
from toolchain.records.results import LEAST_S, TensorArg, Verdict
from toolchain.records.tasks import Task, args_of
from toolchain.stats import Estimate
from toolchain.tuning.measure import turns
from toolchain.tuning.records_view import Ledger
from toolchain.tuning.report import TuneReport
from toolchain.tuning.search import Candidate, Search
from toolchain.tuning.trials import Built, Measured, Rival, Trial, Trials

RIVALS = 3
"""Candidates of a final, beside the untuned kernel."""
LEAST_GAIN = 0.01
"""The least gain of a winner, as a share of the latency: a smaller one is not worth another kernel."""


@dataclass(frozen=True)
class Final:
    """A final to be held.

    Attributes:
        task: The kernel.
        base: The kernel untuned.
        rivals: Its best candidates, the fastest first.
        fastest: The trial of the first of them.
    """

    task: Task
    base: Candidate
    rivals: tuple[Candidate, ...]
    fastest: Record

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return (self.base, *self.rivals)

    @property
    def among(self) -> tuple[str, ...]:
        return tuple(candidate.key for candidate in self.candidates)


@dataclass(frozen=True)
class Decision:
    """The result of a final.

    Attributes:
        winner: The candidate to use from now on; the untuned kernel if none is significantly faster.
        measured: Its times, one for each turn; or a failure, which decides nothing.
        base_s: The times of the untuned kernel.
        why: The reason, as text.
    """

    winner: Candidate
    measured: Measured
    base_s: tuple[float, ...] = ()
    why: str = ""


def due(tasks: Iterable[Task], search: Search, records: Records, key: Key) -> list[Final]:
    """Return the finals to be held: of each kernel with working candidates, unless the same final was held already."""
    finals = (_final(task, search, records.ranked(key, task.workload)) for task in tasks)
    decided = {workload: set(record.among) for workload, record in records.decided(key).items()}
    # A final with the same candidates would only repeat the measurement.
    return [final for final in finals if final is not None and decided.get(final.task.workload) != set(final.among)]


def _final(task: Task, search: Search, ranked: Iterable[Record]) -> Final | None:
    base = search.base(task)
    working = (record for record in ranked if record.candidate != base.key)
    rebuilt = ((record, search.rebuild(task, json.loads(record.trace))) for record in working)
    # Another version of the search may rebuild a trace to another kernel than the one that was measured.
    fitting = (
        (record, candidate)
        for record, candidate in rebuilt
        if candidate is not None and candidate.key == record.candidate
    )
    best = list(itertools.islice(fitting, RIVALS))
    return Final(task, base, tuple(candidate for _, candidate in best), best[0][0]) if best else None


def trial_of(final: Final, results: Sequence[Built], passing_bytes: int) -> Trial | None:
    """Return the trial of a final; None unless the untuned kernel and at least one rival were built."""
    base, built = results[0].library, _built_rivals(final, results)
    if base is None or not built:
        return None
    rivals = tuple(Rival(library, _args(candidate)) for candidate, library in built)
    name = f"final of {final.task.name}"
    return Trial(base, _args(final.base), name, passing_bytes, final.task.gflop, rivals)


def _built_rivals(final: Final, results: Sequence[Built]) -> list[tuple[Candidate, Path]]:
    pairs = zip(final.rivals, results[1:], strict=True)
    return [(candidate, built.library) for candidate, built in pairs if built.library is not None]


def _args(candidate: Candidate) -> tuple[TensorArg, ...]:
    return args_of(candidate.module, packed=True)


def decide_unmeasured(final: Final, results: Sequence[Built], *, by_model: bool) -> Decision:
    """Decide a final in which nothing can be measured.

    If a model stands in for the boards and has no time for the untuned kernel, for example because that spills, any
    candidate with a time is better.
    """
    base = results[0]
    if base.library is None and by_model:
        measured = Measured(final.fastest.samples_s, board=final.fastest.board)
        return Decision(final.rivals[0], measured, why=f"the untuned kernel could not be measured: {base.error}")
    fault = base.error or next(built.error for built in results if built.error)
    return Decision(final.base, Measured((), "build", f"a candidate of the final does not compile: {fault}"))


def decide(final: Final, results: Sequence[Built], measured: Measured) -> Decision:
    """Decide a final by its turns."""
    base, base_s = final.base, measured.samples_s
    if measured.cause:
        return Decision(base, measured)
    rivals = zip((candidate for candidate, _ in _built_rivals(final, results)), measured.rivals_s, strict=True)
    # A rival that was dropped early cannot win.
    complete = [pair for pair in rivals if len(pair[1]) == turns.TURNS and min(pair[1]) >= LEAST_S]
    changes = [(turns.change(base_s, samples), candidate, samples) for candidate, samples in complete]
    changes.sort(key=lambda row: row[0].value)
    winner = next((row for row in changes if row[0].high < -LEAST_GAIN), None)
    if winner is None:
        closest = f"; the best of them: {_to_text(changes[0][0])}" if changes else ""
        return Decision(base, measured, base_s, f"none of {len(final.rivals)} candidates is measurably faster{closest}")
    change, candidate, samples_s = winner
    return Decision(candidate, replace(measured, samples_s=samples_s), base_s, _to_text(change))


def _to_text(change: Estimate) -> str:
    interval = f"{1 / (1 + change.high):.3f} to {1 / (1 + change.low):.3f}"
    return f"{1 / (1 + change.value):.3f} times as fast as untuned, {change.confidence:.0%} within {interval}"


class Decider:
    """Holds finals and records what they decide.

    Args:
        by_model: Whether a model stands in for the boards.
        note: Called with each decision that was written.
    """

    def __init__(self, trials: Trials, ledger: Ledger, *, by_model: bool, note: Callable[[Record], None]) -> None:
        self._trials = trials
        self._ledger = ledger
        self._by_model = by_model
        self._note = note
        self._fault: Exception | None = None

    def hold(self, due: Sequence[Final], wait: Callable[[threading.Event], None]) -> None:
        """Hold finals, all at once if there are enough boards, and wait until all are decided.

        Raises:
            BuildError: No candidate can be built.
            DeviceError: No board is left.
            InputError: A decision cannot be written.
        """
        # Building would disturb the measurements, so all finals are built before the first one is measured.
        results = [self._trials.build([candidate.module for candidate in final.candidates]) for final in due]
        submitted = [self._submit(final, built) for final, built in zip(due, results, strict=True)]
        for future, decided in submitted:
            wait(decided)
            future.result()
        if self._fault is not None:
            raise self._fault

    def _submit(self, final: Final, built: Sequence[Built]) -> tuple[Future[Measured], threading.Event]:
        """Submit a final to a board; if there is nothing to measure, decide it at once."""
        decided = threading.Event()  # a future wakes those who wait for it before it runs its callbacks
        trial = trial_of(final, built, self._trials.passing_bytes(final.task))
        if trial is None:
            future: Future[Measured] = Future()
            future.set_result(Measured(()))
        else:
            future = self._trials.measures.submit(trial)
        future.add_done_callback(partial(self._finish, final, built, decided))
        return future, decided

    def _finish(
        self, final: Final, results: Sequence[Built], decided: threading.Event, future: Future[Measured]
    ) -> None:
        """Record the decision of a final as soon as its measurement ends, in the thread that measured it."""
        try:
            for built in results:
                self._trials.builds.discard(built)
            if future.cancelled() or future.exception() is not None:  # `hold` raises it
                return
            measured = future.result()
            # Neither means that there was nothing to measure; see `_submit`.
            if measured.samples_s or measured.cause:
                self._record(final, decide(final, results, measured))
            else:
                self._record(final, decide_unmeasured(final, results, by_model=self._by_model))
        except Exception as fault:  # noqa: BLE001 - an exception in a callback would be lost; `hold` raises it
            self._fault = self._fault or fault
        finally:
            decided.set()

    def _record(self, final: Final, decision: Decision) -> None:
        """Record a decision. A final that failed decides nothing, and the next run holds it again."""
        verdict: Verdict = "faster" if decision.winner.key != final.base.key else "untuned"
        measured = replace(decision.measured, error=decision.measured.error or decision.why)
        record = self._ledger.line(
            final.task,
            decision.winner,
            measured,
            verdict="" if measured.cause else verdict,
            base_s=decision.base_s,
            among=final.among,
        )
        self._ledger.write(record, lambda: self._note(record))


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
