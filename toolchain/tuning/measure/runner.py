"""Runs trials on one board: a single trial in one session, a final in one session for each of its turns."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from toolchain import rpc
from toolchain.errors import DeviceError, VerificationError
from toolchain.records.results import LEAST_S
from toolchain.rpc import CallError, Session
from toolchain.tuning.measure import trial as measure_session
from toolchain.tuning.measure import turns
from toolchain.tuning.measure.board import Board, Condition, State, lost
from toolchain.tuning.measure.health import Health, Rules
from toolchain.tuning.measure.trial import Failure, Samples, Taken
from toolchain.tuning.trials import Options, Trial

_EMULATED_SLOWER = 3  # times that an emulated board takes for an upload

SAVED = 6.0
"""How many times the board's peak a kernel may seem to reach: Winograd's algorithm saves up to five sixths of the
operations, and byte instructions do four times as many as the float instructions that the peak is measured with."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial: its samples or a failure.

    Attributes:
        session: Its session, or the last one of several.
        samples: The samples of the trial and of each rival; empty if it failed.
        failure: Why it failed; None if it did not.
        seconds: Duration of the measurement.
        doubt: Why the samples are not credible; empty if they are.
    """

    session: Session
    samples: tuple[Samples, ...]
    failure: Failure | None
    seconds: float
    doubt: str = ""


class TrialRunner:
    """Runs trials on one board.

    Args:
        health: Its health, which says when its clock is checked before a trial.
        rules: Time limits, and which samples are doubtful.
        on_well: Called when the check before a trial finds the board well.
    """

    def __init__(
        self,
        board: Board,
        health: Health,
        options: Options,
        rules: Rules,
        *,
        emulated: bool,
        on_well: Callable[[Condition], None],
    ) -> None:
        self._board = board
        self._health = health
        self._options = options
        self._rules = rules
        self._emulated = emulated
        self._on_well = on_well
        self._peak = 0.0  # GFLOPS; 0 while it is unknown

    def run(self, trial: Trial, on_start: Callable[[], None]) -> Outcome | Condition:
        """Run a trial, or a final if it has rivals.

        `on_start` is called when its measurement starts.

        Returns:
            The outcome, or the condition of a board that is not well, in which case the trial does not count.

        Raises:
            ToolchainError: The options do not fit the board.
            OSError: A library cannot be read.
        """
        if trial.rivals:
            return self._hold_final(trial, on_start)
        options, spread = self._options, self._rules.spread

        def take(session: Session) -> Taken:
            return measure_session.measure_trial(session, trial, options, spread, options.timeout_s)

        return self._run_session(trial, take, on_start)

    def _hold_final(self, trial: Trial, on_start: Callable[[], None]) -> Outcome | Condition:
        """Run each turn of a final in its own session: each has another memory layout, which favours another rival."""
        seconds = 0.0
        times: list[list[float]] = [[] for _ in range(1 + len(trial.rivals))]
        for number in range(turns.TURNS):
            order = turns.order(times, number)
            if len(order) == 1:  # no rival can win any more
                break
            take = functools.partial(measure_session.measure_turn, trial=trial, options=self._options, order=order)
            result = self._run_session(trial, take, (lambda: None) if number else on_start)
            if isinstance(result, Condition):
                return result
            outcome = result
            seconds += outcome.seconds
            if outcome.failure is not None:
                return replace(outcome, seconds=seconds)
            for medians, samples in zip(times, outcome.samples, strict=True):
                medians.extend([statistics.median(samples)] if samples else [])
        # Turns are not checked for steadiness: what disturbs a turn disturbs all rivals alike.
        doubt = next(filter(None, (too_fast(medians, trial.gflop, self._peak) for medians in times)), "")
        return replace(outcome, samples=tuple(map(tuple, times)), seconds=seconds, doubt=doubt)

    def _run_session(
        self, trial: Trial, take: Callable[[Session], Taken], on_start: Callable[[], None]
    ) -> Outcome | Condition:
        rules = self._rules
        # The time limits of a session are set on the board when it is opened, so uploads must be estimated.
        slack = rules.slack_s * (_EMULATED_SLOWER if self._emulated else 1)
        libraries = [trial.library, *(rival.library for rival in trial.rivals)]
        upload_s = sum(library.stat().st_size for library in libraries) / rules.upload_bytes_s + slack
        session_s = upload_s + self._options.timeout_s * len(libraries)
        try:
            with self._board.session(session_s) as session:
                if self._health.due(time.monotonic()):
                    condition = self._board.check_clock(session)
                    if condition.state is not State.WELL:
                        return condition
                    self._on_well(condition)
                on_start()
                return self._take(session, trial, take, session_s + rules.grace_s)
        except (DeviceError, VerificationError) as fault:
            return lost(fault)

    def _take(
        self, session: Session, trial: Trial, take: Callable[[Session], Taken], timeout_s: float
    ) -> Outcome | Condition:
        start = time.monotonic()
        try:
            # The server ends the session at its own limit first, and reports why; this is for a server that hangs.
            with rpc.deadline(session, timeout_s):
                taken = take(session)
                self._learn_peak(session, trial, taken.samples_s[0])
        except VerificationError as fault:
            return lost(fault)
        except (CallError, DeviceError) as fault:
            return Outcome(session, (), measure_session.failure(fault), time.monotonic() - start)
        doubt = "" if trial.rivals else self._doubt(trial, taken)
        return Outcome(session, taken.samples_s, None, time.monotonic() - start, doubt)

    def _learn_peak(self, session: Session, trial: Trial, samples: Samples) -> None:
        """Measure the board's peak once, and again if a kernel seems to exceed it."""
        if not trial.gflop or self._options.device != "llvm" or self._emulated:
            return
        if not self._peak or too_fast(samples, trial.gflop, self._peak):
            self._peak = max(self._peak, measure_session.measure_peak(session))

    def _doubt(self, trial: Trial, taken: Taken) -> str:
        samples = taken.samples_s[0]
        doubt = too_fast(samples, trial.gflop, self._peak)
        if doubt or self._emulated:  # an emulator's clock tells nothing else
            return doubt
        return unsteady(samples, self._rules) or disturbed(taken.waited, self._rules)


def too_fast(samples: Sequence[float], gflop: float, peak_gflops: float) -> str:
    """Return why the board cannot be so fast; empty if it can.

    Args:
        samples: Seconds of one run.
        gflop: Billions of operations of one run; 0 if unknown.
        peak_gflops: The peak of the board; 0 if unknown.
    """
    fastest = min(samples)
    if fastest < LEAST_S:
        return f"{fastest:.3g} s is shorter than any call can be"
    # Such times come from a clock that jumps, or from a kernel that did not do its work.
    if gflop and peak_gflops and gflop / fastest > SAVED * peak_gflops:
        return f"{gflop / fastest:.3g} GFLOPS, but the board reaches at most {peak_gflops:.3g}"
    return ""


def unsteady(samples: Sequence[float], rules: Rules) -> str:
    """Return how far samples vary, if too far for their median to mean anything; else an empty text."""
    ratio = statistics.median(samples) / min(samples)
    return f"half of the samples took {ratio:.1f} times as long as the fastest" if ratio > rules.unsteady else ""


def disturbed(waited: float | None, rules: Rules) -> str:
    """Return how busy the board was with other work, if it was too busy; else an empty text."""
    if waited is None or waited <= rules.waited:
        return ""
    return f"the board was busy: other work used the CPUs for {waited:.0%} of the kernel's time"
