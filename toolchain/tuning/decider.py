"""The finals of a run: built, held on boards, and what they decide recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import tvm

from toolchain.records import Record
from toolchain.records.results import Verdict
from toolchain.records.tasks import Task
from toolchain.tuning import finals
from toolchain.tuning.finals import Decision, Final
from toolchain.tuning.ledger import Ledger
from toolchain.tuning.trials import Builds, Built, Measured, Measures


class Decider:
    """Holds finals and writes down what they decide.

    Args:
        builds: Compiles candidates.
        measures: Measures them.
        completed: Makes of a candidate's module what a build makes of it.
        passing: Bytes that pass the caches between two runs of a task's kernel.
        ledger: Where decisions are written.
        by_model: Whether a model stands in for the boards.
        note: Is told each decision that was written.
    """

    def __init__(  # noqa: PLR0913 - a final has these independent parts
        self,
        builds: Builds,
        measures: Measures,
        *,
        completed: Callable[[tvm.IRModule], tvm.IRModule],
        passing: Callable[[Task], int],
        ledger: Ledger,
        by_model: bool,
        note: Callable[[Record], None],
    ) -> None:
        self._builds = builds
        self._measures = measures
        self._completed = completed
        self._passing = passing
        self._ledger = ledger
        self._by_model = by_model
        self._note = note
        self._fault: Exception | None = None

    def hold(self, due: Sequence[Final], wait: Callable[[threading.Event], None]) -> None:
        """Hold finals, all at once where there are boards enough, and wait until all are decided.

        Args:
            due: They.
            wait: Waits for an event.

        Raises:
            BuildError: No candidate can be built.
            DeviceError: No board is left.
            InputError: A decision cannot be written down.
        """
        # All are built before the first is held, which building would disturb.
        built = [self._builds.build([self._completed(one.module) for one in final.candidates]) for final in due]
        held = [self._begin(final, several) for final, several in zip(due, built, strict=True)]
        for future, decided in held:
            wait(decided)
            future.result()
        if self._fault is not None:
            raise self._fault

    def _begin(self, final: Final, built: Sequence[Built]) -> tuple[Future[Measured], threading.Event]:
        """Hand a final to a board; where there is nothing to measure, it is decided at once."""
        decided = threading.Event()  # a future wakes who waits for it before it calls back
        trial = finals.trial(final, built, self._passing(final.task))
        if trial is None:
            future: Future[Measured] = Future()
            future.set_result(Measured(()))
        else:
            future = self._measures.submit(trial)
        future.add_done_callback(partial(self._ended, final, built, decided))
        return future, decided

    def _ended(self, final: Final, built: Sequence[Built], decided: threading.Event, future: Future[Measured]) -> None:
        """Write down what a final decided the moment that it is known, in the thread that it comes in."""
        try:
            for one in built:
                self._builds.discard(one)
            if future.cancelled() or future.exception() is not None:  # whoever waits for it is told otherwise
                return
            measured = future.result()
            if measured.samples_s or measured.cause:
                self._decide(final, finals.decided(final, built, measured))
            else:
                self._decide(final, finals.undecided(final, built, by_model=self._by_model))
        except Exception as fault:  # noqa: BLE001 - a callback has nobody to tell; `hold` raises it
            self._fault = self._fault or fault
        finally:
            decided.set()

    def _decide(self, final: Final, decision: Decision) -> None:
        """Record a decision; a final that failed decides nothing, and is held again by the next run."""
        won: Verdict = "faster" if decision.winner.key != final.base.key else "untuned"
        measured = replace(decision.measured, error=decision.measured.error or decision.why)
        record = self._ledger.line(
            final.task,
            decision.winner,
            measured,
            verdict="" if measured.cause else won,
            base_s=decision.base_s,
            among=final.among,
        )
        self._ledger.write(record, lambda: self._note(record))
