"""The thread of one board: runs trials, and decides whether the board or the candidate is to blame for a failure.

Our own board server reports how a session ended: that the kernel crashed it, or used up its time. If it reports that,
and the board is well afterwards, the candidate is to blame. If it reports nothing, the board or the connection was
lost, even if both are back a moment later: the trial is run again. TVM's own server never reports anything; there only
the state of the board afterwards counts.

The thread is a state machine: a board that is WELL runs trials, one that is SLOW rests until it has cooled down, and
one that is LOST is tried again from time to time. `_enter` is the only function that changes the state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from toolchain.errors import ToolchainError
from toolchain.rpc import Session
from toolchain.rpc.places import Place
from toolchain.tuning.measure.board import Board, Condition, State
from toolchain.tuning.measure.health import Event, Health, Kind, Observer, Rules
from toolchain.tuning.measure.jobs import Job, Jobs
from toolchain.tuning.measure.runner import Outcome, TrialRunner
from toolchain.tuning.measure.trial import Failure
from toolchain.tuning.trials import Measured, Options, Trial

_IDLE_S = 1.0


class Worker:
    """The thread of one place.

    Args:
        observer: Called with every event.
        fits: Called first, in the place's thread: whether the place may be measured on.

    Attributes:
        name: The name of the place.
    """

    def __init__(
        self,
        place: Place,
        jobs: Jobs,
        options: Options,
        rules: Rules,
        observer: Observer,
        *,
        fits: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = place.name
        self._place = place
        self._jobs = jobs
        self._options = options
        self._rules = rules
        self._observer = observer
        self._health = Health(rules, steady=not place.emulated)
        self._board = Board(place, rules, self._health, self._greet)
        self._runner = TrialRunner(
            self._board, self._health, options, rules, emulated=place.emulated, on_well=self._enter
        )
        self._state = State.WELL
        self._fault = ""  # why the board rests
        self._pause_s = self._rested_s = 0.0
        # Results that count only if the next check finds the board as fast as before: it may have throttled meanwhile.
        self._unconfirmed: list[tuple[Job, Measured]] = []
        self._fits = fits
        self._stop = threading.Event()
        self._ending = threading.Event()  # set by `stop`, too
        self._on_end: Callable[[], None] = lambda: None
        self._greeted = False
        self._thread = threading.Thread(target=self._run, name=f"measure-{place.name}", daemon=True)

    # --- called by the pool ---

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and a running trial; does not wait for it."""
        self._stop.set()
        self._ending.set()
        self._board.cut()

    def retire(self, on_end: Callable[[], None]) -> None:
        """End the thread after the running trial, whose result counts; does not wait for it.

        `on_end` is called by the thread when it no longer uses the place.
        """
        self._on_end = on_end
        self._ending.set()

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the thread has ended, without limit if None; return whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- the state of the board ---

    def _run(self) -> None:
        try:
            if self._fits():
                self._work()
            if self._unconfirmed and not self._stop.is_set():
                condition = self._board.check()
                if condition.state is State.SLOW:  # other boards measure the last results again
                    self._repeat_unconfirmed(condition.fault)
                else:
                    self._confirm()
        except Exception as fault:  # noqa: BLE001 - passed on to those who wait for results
            self._jobs.break_off(fault)
            for job, _ in self._unconfirmed:
                job.fail(fault)
        for job, _ in self._unconfirmed:
            job.future.cancel()
        if not self._stop.is_set():  # after `stop` the pool's owner may go on using the place
            self._place.close()
        self._jobs.leave(self.name)
        self._on_end()

    def _work(self) -> None:
        while not self._ending.is_set():
            if self._state is State.LOST:
                self._probe()
            elif self._state is State.SLOW:
                self._rest()
            elif job := self._jobs.take(0.0 if self._unconfirmed else _IDLE_S):
                self._serve(job)
            elif self._unconfirmed:  # no trial is waiting: confirm the last results at once
                self._enter(self._board.check())

    def _enter(self, condition: Condition) -> None:
        """Change to the state that a check has found, and do what that requires."""
        before, self._state = self._state, condition.state
        if condition.state is State.LOST:
            self._lose(condition)
        elif before is State.LOST:
            self._state = State.WELL  # if its clock is slow, the check before the next trial will find out
            self._health.failures = 0
            self._jobs.found(self.name)
            self._tell("back")
        elif condition.state is State.SLOW and before is State.WELL:
            self._repeat_unconfirmed(condition.fault)
            self._fault, self._rested_s, self._pause_s = condition.fault, 0.0, self._rules.cool_s[0]
        elif condition.state is State.SLOW and self._rested_s < self._rules.cool_total_s:
            self._fault = condition.fault
        elif condition.state is State.SLOW and condition.pulse is not None:
            self._state = State.WELL
            self._health.accept(condition.pulse, time.monotonic())
            pause = f"after a pause of {self._rested_s:g} s"
            self._tell("slower", f"{condition.fault} {pause}; this now counts as its normal speed")
        elif condition.pulse is not None:
            self._health.well(condition.pulse, time.monotonic())
            self._confirm()
            if before is State.SLOW:
                self._tell("cooled", f"after {self._rested_s:g} s")

    def _lose(self, condition: Condition) -> None:
        if self._stop.is_set():
            return
        # A lost board may not come back for long; its results must not wait for that.
        self._confirm()  # the board was well when it last answered
        self._health.failures += 1
        self._jobs.lost(self.name, condition.fault, hopeless=condition.hopeless)
        if self._health.failures == self._rules.failures:
            self._tell("quarantined", f"after {self._rules.failures} failures in a row: {condition.fault}")
        elif not self._health.quarantined:
            self._tell("lost", condition.fault)

    def _probe(self) -> None:
        """Wait a while, then check whether the lost board is back."""
        end = time.monotonic() + self._health.pause_s
        while not self._ending.is_set() and (remaining := end - time.monotonic()) > 0:
            self._jobs.give_up()
            self._ending.wait(min(remaining, _IDLE_S))
        if not self._ending.is_set():
            self._enter(self._board.check())

    def _rest(self) -> None:
        """Let a board cool down for a while, longer each time, then check whether it is as fast as before."""
        self._tell("cooling", f"{self._fault}; it rests {self._pause_s:g} s")
        self._ending.wait(self._pause_s)
        self._rested_s += self._pause_s
        self._pause_s = min(2 * self._pause_s, self._rules.cool_s[1])
        self._enter(self._board.check())

    def _confirm(self) -> None:
        """Deliver the results that waited for a check."""
        for job, measured in self._unconfirmed:
            job.deliver(measured)
        self._unconfirmed.clear()

    def _repeat_unconfirmed(self, fault: str) -> None:
        """Have results measured again because the board was slow by then; they fail if that happens too often."""
        for job, measured in self._unconfirmed:
            job.again += 1
            if job.again <= self._rules.again:
                self._jobs.put_back(job)
            else:
                error = f"the board was slower than before in each of {job.again} measurements: {fault}"
                job.deliver(replace(measured, samples_s=(), rivals_s=(), cause="suspicious", error=error))
        self._unconfirmed.clear()

    def _tell(self, kind: Kind, detail: str = "", trial: Trial | None = None, measured: Measured | None = None) -> None:
        self._observer(Event(kind, self.name, detail, trial, measured))

    def _greet(self, session: Session) -> None:
        if session.stock and not self._greeted:
            self._greeted = True
            self._tell("stock", "TVM's own RPC server: its versions are unknown, and a crash may take it down")

    # --- trials ---

    def _serve(self, job: Job) -> None:
        """Run a trial, and deal with its outcome."""

        def on_start() -> None:
            job.attempts += 1
            self._tell("started", trial=job.trial)

        try:
            outcome = self._runner.run(job.trial, on_start)
        except (ToolchainError, OSError) as fault:  # the options do not fit, or the library is not there
            job.fail(fault)
            return
        except BaseException as fault:
            job.fail(fault)
            raise
        if isinstance(outcome, Condition):  # the board was not well, so the trial has not counted
            self._jobs.put_back(job)
            self._enter(outcome)
            return
        self._health.count()
        if outcome.failure is not None and self._stop.is_set():  # `stop` has cut the session
            job.future.cancel()
        elif outcome.failure is not None:
            self._blame(job, outcome, outcome.failure)
        elif outcome.doubt:
            job.again += 1
            if job.again <= self._rules.again:
                self._jobs.put_back(job)
            else:
                error = f"{outcome.doubt}, in each of {job.again} measurements"
                self._reject(job, outcome, Failure("suspicious", error, reported=False))
        else:
            self._accept(job, outcome)
        self._ending.wait(self._options.cooldown_s)

    def _accept(self, job: Job, outcome: Outcome) -> None:
        samples, *rivals = outcome.samples
        measured = self._measured(job, outcome, samples_s=samples, rivals_s=tuple(rivals))
        self._tell("ended", trial=job.trial, measured=measured)
        # The board may have throttled during the trial, which only the next check shows.
        if self._health.holds(outcome.session.place):
            self._unconfirmed.append((job, measured))
        else:
            job.deliver(measured)

    def _blame(self, job: Job, outcome: Outcome, failure: Failure) -> None:
        """Decide whether the candidate or the board is to blame for a failure."""
        may_be_guilty = failure.reported or outcome.session.stock
        # A board that vanished without a report says nothing about the candidate.
        if not may_be_guilty:
            self._retry(job, outcome, failure.error)  # before the check, so that other boards need not wait for it
        condition = self._board.check_after_failure(outcome.session)
        is_lost = condition.state is State.LOST
        if self._stop.is_set():
            job.future.cancel()
        elif may_be_guilty and is_lost:
            self._retry(job, outcome, condition.fault)
        elif may_be_guilty:
            self._reject(job, outcome, failure)
        if is_lost:
            self._enter(condition)
        elif not may_be_guilty:
            self._tell("lost", f"{failure.error}; it works again", job.trial)

    def _retry(self, job: Job, outcome: Outcome, fault: str) -> None:
        """Let another board run a trial, unless too many were lost with it."""
        job.lost += 1
        if job.lost < self._rules.boards_lost:
            self._jobs.put_back(job)
        else:
            error = f"{job.lost} boards failed with it, the last one was {self.name}: {fault}"
            self._reject(job, outcome, Failure("crash", error, reported=False))

    def _reject(self, job: Job, outcome: Outcome, failure: Failure) -> None:
        measured = self._measured(job, outcome, cause=failure.cause, error=failure.error)
        self._tell("ended", trial=job.trial, measured=measured)
        job.deliver(measured)

    def _measured(self, job: Job, outcome: Outcome, **fields: object) -> Measured:
        common = {"board": self.name, "attempts": job.attempts, "seconds": outcome.seconds}
        return Measured(**{"samples_s": (), **common, **fields})  # type: ignore[arg-type]
