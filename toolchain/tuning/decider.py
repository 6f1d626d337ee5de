"""Builds the finals of a run, submits them to the boards, and records their decisions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from toolchain.records import Record
from toolchain.records.results import Verdict
from toolchain.tuning import finals
from toolchain.tuning.finals import Decision, Final
from toolchain.tuning.ledger import Ledger
from toolchain.tuning.trials import Built, Measured, Trials


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
        trial = finals.trial(final, built, self._trials.passing_bytes(final.task))
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
                self._record(final, finals.decide(final, results, measured))
            else:
                self._record(final, finals.decide_unmeasured(final, results, by_model=self._by_model))
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
