"""One place at work: takes trials, runs them, and decides whose fault it was when one fails.

Our own board server tells in words how a session ended: that the kernel crashed it, or used up its time. If it tells,
and the board is well afterwards, it is the candidate's fault. If it says nothing, the board or the way to it was lost,
also if both are back a moment later: the trial is run again. TVM's own server never tells; there only the state of the
board afterwards counts.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from toolchain import rpc
from toolchain.errors import BusyError, DeviceError, ToolchainError, VerificationError
from toolchain.rpc import CallError, Session
from toolchain.rpc.places import Place
from toolchain.tuning.measure import doubts, turns
from toolchain.tuning.measure import trial as measure_session
from toolchain.tuning.measure.events import Event, Kind, Observer
from toolchain.tuning.measure.health import Health, Pulse, Rules
from toolchain.tuning.measure.jobs import Job, Jobs
from toolchain.tuning.measure.trial import Failure, Samples, Taken
from toolchain.tuning.trials import Measured, Options, Trial

_IDLE_S = 1.0
_EMULATED_SLOWER = 3


class _LostError(Exception):
    """The board is gone, and no trial is to blame."""

    def __init__(self, fault: str, *, hopeless: bool = False) -> None:
        super().__init__(fault)
        self.hopeless = hopeless


class _SlowError(Exception):
    """The board's clock is slow; the trial has not begun."""


@dataclass(frozen=True)
class _Outcome:
    """How a trial went: its samples, or the failure; and the session that it had.

    Attributes:
        session: The session; of several the last one.
        samples: What was measured.
        failure: Why there is nothing; None if there is.
        seconds: What it took.
        rivals: What was measured of its rivals.
        doubt: Why what was measured is not to be believed; empty if it is.
    """

    session: Session
    samples: Samples
    failure: Failure | None
    seconds: float
    rivals: tuple[Samples, ...] = ()
    doubt: str = ""


class Worker:
    """The thread of one place.

    Args:
        place: The place.
        jobs: Where trials come from.
        options: How they are measured.
        rules: When the board is no longer trusted.
        observer: Is told what happens.
        fits: Is asked first of all, in the place's thread, whether it may be measured on.

    Attributes:
        name: The place's.
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
        self._held: list[tuple[Job, Measured]] = []
        self._fits = fits
        self._stop = threading.Event()
        self._ending = threading.Event()  # set by `stop`, too
        self._left: Callable[[], None] = lambda: None
        self._session: Session | None = None
        self._peak = 0.0  # GFLOPS; 0 while it is unknown
        self._stock_told = False
        self._thread = threading.Thread(target=self._run, name=f"measure-{place.name}", daemon=True)

    def start(self) -> None:
        """Begin to take trials."""
        self._thread.start()

    def stop(self) -> None:
        """End the work, a running trial included; does not wait for it."""
        self._stop.set()
        self._ending.set()
        session = self._session
        if session is not None:
            session.cut()

    def retire(self, left: Callable[[], None]) -> None:
        """End the work after the trial that runs, whose result counts; does not wait for it.

        Args:
            left: Called by the thread when nothing of it is left on the place.
        """
        self._left = left
        self._ending.set()

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the thread has ended, for ever with None; return whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _tell(self, kind: Kind, detail: str = "", trial: Trial | None = None, measured: Measured | None = None) -> None:
        self._observer(Event(kind, self._place.name, detail, trial, measured))

    def _run(self) -> None:
        try:
            if self._fits():
                self._work()
            self._depart()
        except Exception as fault:  # noqa: BLE001 - those who wait must learn of any error; here nobody would
            self._jobs.break_off(fault)
            for job, _ in self._held:
                job.fail(fault)
        for job, _ in self._held:
            job.future.cancel()
        if not self._stop.is_set():  # else whoever made the place may want to use it again
            self._place.close()
        self._jobs.left(self.name)
        self._left()

    def _depart(self) -> None:
        """See whether the last results count; if not, other boards measure them again."""
        if not self._held or self._stop.is_set():
            return
        try:
            self._judge(self._canary())
        except _SlowError as fault:
            self._put_held_back(str(fault))
        except _LostError:
            self._release()  # the board was well when it was last heard

    def _put_held_back(self, fault: str) -> None:
        """Let what a board has measured that is slower by now be measured again, unless it was too often."""
        for job, found in self._held:
            job.again += 1
            if job.again <= self._rules.again:
                self._jobs.put_back(job)
            else:
                words = f"the board was slower than before in each of {job.again} measurements: {fault}"
                job.deliver(replace(found, samples_s=(), rivals_s=(), cause="suspicious", error=words))
        self._held.clear()

    def _work(self) -> None:
        while not self._ending.is_set():
            if self._health.failures:
                self._probe()
            elif job := self._jobs.take(0.0 if self._held else _IDLE_S):
                self._serve(job)
            elif self._held:
                self._settle()

    # --- trials ---

    def _serve(self, job: Job) -> None:
        try:
            outcome = self._attempt(job)
        except _SlowError as fault:
            self._jobs.put_back(job)
            self._cool(str(fault))
        except _LostError as fault:
            self._jobs.put_back(job)
            self._lose(fault)
        except (ToolchainError, OSError) as fault:  # the options do not fit, or the library is not there
            job.fail(fault)
        except BaseException as fault:
            job.fail(fault)
            raise
        else:
            self._conclude(job, outcome)
            self._ending.wait(self._options.cooldown_s)

    def _attempt(self, job: Job) -> _Outcome:
        if job.trial.rivals:
            return self._turns(job)
        rules, options = self._rules, self._options

        def take(session: Session) -> Taken:
            return measure_session.measured(session, job.trial, options, rules.spread, options.timeout_s)

        taken, outcome = self._visit(job, take)
        return outcome if taken is None else replace(outcome, doubt=self._doubt(job.trial, taken))

    def _turns(self, job: Job) -> _Outcome:
        """Hold a final: each turn in a session of its own, since memory lies elsewhere in each and favours another."""
        trial, seconds = job.trial, 0.0
        heats: list[list[float]] = [[] for _ in range(1 + len(trial.rivals))]
        for number in range(turns.TURNS):
            order = turns.order(heats, number)
            if len(order) == 1:  # no rival has prospects any more
                break
            take = functools.partial(measure_session.turn, trial=trial, options=self._options, order=order)
            taken, outcome = self._visit(job, take, first=not number)
            seconds += outcome.seconds
            if taken is None:
                return replace(outcome, seconds=seconds)
            for heat, samples in zip(heats, taken.samples_s, strict=True):
                heat.extend([statistics.median(samples)] if samples else [])
        base, *rivals = (tuple(heat) for heat in heats)
        doubt = next(filter(None, (doubts.too_fast(one, trial.gflop, self._peak) for one in (base, *rivals))), "")
        return replace(outcome, samples=base, rivals=tuple(rivals), seconds=seconds, doubt=doubt)

    def _visit(
        self, job: Job, take: Callable[[Session], Taken], *, first: bool = True
    ) -> tuple[Taken | None, _Outcome]:
        """Measure in one session; return what was measured, or None if that failed, and how it went.

        Args:
            job: What.
            take: Measures it.
            first: Whether it is the first session of the job.
        """
        rules, trial = self._rules, job.trial
        slack = rules.slack_s * (_EMULATED_SLOWER if self._place.emulated else 1)
        libraries = [trial.library, *(one.library for one in trial.rivals)]
        upload_s = sum(one.stat().st_size for one in libraries) / rules.upload_bytes_s + slack
        session_s = upload_s + self._options.timeout_s * len(libraries)
        with self._session_for(rules.open_s, session_s) as session:
            self._check(session)
            if first:
                job.attempts += 1
                self._tell("started", trial=trial)
            start = time.monotonic()
            try:
                with rpc.deadline(session, session_s + rules.grace_s):
                    taken = take(session)
                    self._learn_peak(session, trial, taken.samples_s[0])
            except VerificationError as fault:
                raise _LostError(_one_line(fault), hopeless=True) from fault
            except (CallError, DeviceError) as fault:
                failure = measure_session.failure(fault)
                return None, _Outcome(session, (), failure, time.monotonic() - start)
            return taken, _Outcome(session, taken.samples_s[0], None, time.monotonic() - start)

    def _learn_peak(self, session: Session, trial: Trial, samples: Samples) -> None:
        """Measure what the board does at most: once, and again where a kernel seems to do more."""
        if not trial.gflop or self._options.device != "llvm" or self._place.emulated:
            return
        if not self._peak or doubts.too_fast(samples, trial.gflop, self._peak):
            self._peak = max(self._peak, measure_session.peak(session))

    def _doubt(self, trial: Trial, taken: Taken) -> str:
        samples = taken.samples_s[0]
        found = doubts.too_fast(samples, trial.gflop, self._peak)
        if found or self._place.emulated:  # an emulator's clock says nothing else
            return found
        return doubts.unsteady(samples, self._rules) or doubts.disturbed(taken.waited, self._rules)

    def _conclude(self, job: Job, outcome: _Outcome) -> None:
        self._health.count()
        if outcome.failure is None and not outcome.doubt:
            self._accept(job, outcome)
        elif outcome.failure is None:
            self._take_again(job, outcome)
        elif self._stop.is_set():  # cut by us
            job.future.cancel()
        else:
            self._blame(job, outcome, outcome.failure)

    def _accept(self, job: Job, outcome: _Outcome) -> None:
        found = self._measured(job, outcome, samples_s=outcome.samples, rivals_s=outcome.rivals)
        self._tell("ended", trial=job.trial, measured=found)
        if self._health.holds(outcome.session.place):
            self._held.append((job, found))
        else:
            job.deliver(found)

    def _take_again(self, job: Job, outcome: _Outcome) -> None:
        """Measure again what is doubtful; what stays so has failed."""
        job.again += 1
        if job.again <= self._rules.again:
            self._jobs.put_back(job)
        else:
            words = f"{outcome.doubt}, in each of {job.again} measurements"
            self._reject(job, outcome, Failure("suspicious", words, told=False))

    def _blame(self, job: Job, outcome: _Outcome, failure: Failure) -> None:
        may_be_guilty = failure.told or outcome.session.stock
        if not may_be_guilty:
            self._retry(job, outcome, failure.error)  # first of all: other boards need not wait for the verdict
        fault = self._fault_after(outcome.session)
        if self._stop.is_set():
            job.future.cancel()
        elif may_be_guilty and fault:
            self._retry(job, outcome, str(fault))
        elif may_be_guilty:
            self._reject(job, outcome, failure)
        if fault:
            self._lose(fault)
        elif not may_be_guilty:
            self._tell("lost", f"{failure.error}; it works again", job.trial)

    def _retry(self, job: Job, outcome: _Outcome, fault: str) -> None:
        """Let another board try a trial, unless it has taken down too many."""
        job.lost += 1
        if job.lost < self._rules.boards_lost:
            self._jobs.put_back(job)
        else:
            words = f"{job.lost} boards failed with it, the last one was {self._place.name}: {fault}"
            self._reject(job, outcome, Failure("crash", words, told=False))

    def _reject(self, job: Job, outcome: _Outcome, failure: Failure) -> None:
        found = self._measured(job, outcome, cause=failure.cause, error=failure.error)
        self._tell("ended", trial=job.trial, measured=found)
        job.deliver(found)

    def _measured(self, job: Job, outcome: _Outcome, **what: object) -> Measured:
        known = {"board": self._place.name, "attempts": job.attempts, "seconds": outcome.seconds}
        return Measured(**{"samples_s": (), **known, **what})  # type: ignore[arg-type]

    # --- the board ---

    @contextlib.contextmanager
    def _session_for(self, open_s: float, session_s: float) -> Iterator[Session]:
        try:
            session = self._place.open(open_s, session_s, self._stop)
        except (DeviceError, VerificationError) as fault:
            # Neither will be another one by itself: a board of another kind, nor one that was given to somebody else.
            raise _LostError(_one_line(fault), hopeless=isinstance(fault, VerificationError | BusyError)) from fault
        self._session = session
        self._greet(session)
        try:
            with session:
                if self._stop.is_set():
                    raise _LostError("the pool is closed")
                yield session
        finally:
            self._session = None

    def _greet(self, session: Session) -> None:
        if session.stock and not self._stock_told:
            self._stock_told = True
            self._tell("stock", "TVM's own RPC server: its versions are unknown, and a crash may take it down")

    def _pulse(self, session: Session) -> Pulse:
        """Take the board's pulse; one that seems slow is taken twice, for it may have been busy for a moment."""
        try:
            with rpc.deadline(session, self._rules.canary_s):
                first = measure_session.pulse(session, self._rules.canary_ms)
                if not self._health.fault(first):
                    return first
                return measure_session.pulse(session, self._rules.canary_ms)
        except (CallError, DeviceError, VerificationError) as fault:
            hopeless = isinstance(fault, VerificationError)
            raise _LostError(f"its health check fails: {_one_line(fault)}", hopeless=hopeless) from fault

    def _check(self, session: Session) -> None:
        """Before a trial, if it is time: is the clock what it was?"""
        if self._health.due(time.monotonic()):
            self._judge(self._pulse(session))

    def _judge(self, pulse: Pulse) -> None:
        fault = self._health.fault(pulse)
        if fault:
            raise _SlowError(fault)
        self._health.well(pulse, time.monotonic())
        self._release()

    def _release(self) -> None:
        """Let the results that were held back count."""
        for job, found in self._held:
            job.deliver(found)
        self._held.clear()

    def _settle(self) -> None:
        """Nothing is left to do: see at once whether the last results count."""
        try:
            self._judge(self._canary())
        except _SlowError as fault:
            self._cool(str(fault))
        except _LostError as fault:
            self._lose(fault)

    def _canary(self) -> Pulse:
        with self._session_for(self._rules.open_s, 2 * self._rules.canary_s) as session:
            self._send_something(session)
            return self._pulse(session)

    def _send_something(self, session: Session) -> None:
        try:
            with rpc.deadline(session, self._rules.canary_s):
                measure_session.send_something(session)
        except (CallError, DeviceError, VerificationError) as fault:
            hopeless = isinstance(fault, VerificationError)
            raise _LostError(f"it accepts no files: {_one_line(fault)}", hopeless=hopeless) from fault

    def _fault_after(self, session: Session) -> _LostError | None:
        """Say what is wrong with the board after a failed trial; None if it is well."""
        if not session.stock and not session.answers(self._rules.answer_s):
            return _LostError(f"the board server at {session.place} does not answer")
        try:
            self._canary()
        except _LostError as fault:
            return fault
        return None

    def _lose(self, fault: _LostError) -> None:
        if self._stop.is_set():
            return
        self._release()  # the board was well when it was last heard
        self._health.failures += 1
        self._jobs.lost(self._place.name, str(fault), hopeless=fault.hopeless)
        if self._health.failures == self._rules.failures:
            self._tell("quarantined", f"after {self._rules.failures} failures in a row: {fault}")
        elif not self._health.quarantined:
            self._tell("lost", str(fault))

    def _probe(self) -> None:
        """Wait a while, then see whether the lost board is well again."""
        end = time.monotonic() + self._health.pause_s
        while not self._ending.is_set() and (left := end - time.monotonic()) > 0:
            self._jobs.give_up()
            self._ending.wait(min(left, _IDLE_S))
        if self._ending.is_set():
            return
        try:
            self._canary()
        except _LostError as fault:
            self._lose(fault)
        else:
            self._health.failures = 0
            self._jobs.found(self._place.name)
            self._tell("back")

    def _cool(self, fault: str) -> None:
        """Rest until the board is as fast as it was; what was measured since it last was, is measured again."""
        self._put_held_back(fault)
        pause, longest = self._rules.cool_s
        rested = 0.0
        while not self._ending.is_set():
            self._tell("cooling", f"{fault}; it rests {pause:g} s")
            self._ending.wait(pause)
            rested += pause
            pause = min(2 * pause, longest)
            try:
                pulse = self._canary()
            except _LostError as lost:
                self._lose(lost)
                return
            fault = self._health.fault(pulse)
            if not fault:
                self._health.well(pulse, time.monotonic())
                self._tell("cooled", f"after {rested:g} s")
                return
            if rested >= self._rules.cool_total_s:
                self._health.accept(pulse, time.monotonic())
                self._tell("slower", f"{fault} after a pause of {rested:g} s; this now counts as its normal speed")
                return


def _one_line(fault: Exception) -> str:
    if isinstance(fault, ToolchainError) and fault.details:
        return f"{fault.message}: {fault.details.strip().splitlines()[-1]}"
    return str(fault).strip().splitlines()[-1] if str(fault).strip() else type(fault).__name__
