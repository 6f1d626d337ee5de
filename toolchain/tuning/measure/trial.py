"""What is done on a board in one session: the canary, and a trial; and what a failure there means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from toolchain.errors import DeviceError
from toolchain.records.results import Cause
from toolchain.rpc import CallError, Session, error_text, server
from toolchain.tuning.measure import calls
from toolchain.tuning.measure.health import Pulse
from toolchain.tuning.trials import Options, Trial

# What TVM's client says of a connection that ended without words.
_LOST = (
    "Channel closes",
    "code=kShutdown",
    "is false: code=1",  # the same, where its name is not known
    "Connection reset",
    "Broken pipe",
    "SockChannel",
    "previously closed",
)
_TIMEOUTS = {"TimeoutError", "RPCSessionTimeoutError"}
_RPC_ERROR = "RPCError"

Samples = tuple[float, ...]
_TRIAL = TypeAdapter(Trial)


def pulse(session: Session, milliseconds: int) -> Pulse:
    """Let a board do a fixed amount of work; where it knows none, a trivial call shows that it is alive.

    Raises:
        CallError: The board cannot, or is gone.
        DeviceError: The session was cut.
    """
    found = session.run(calls.pulse, milliseconds)
    return Pulse(session.place, found["canary_s"], found["celsius"])


def send_something(session: Session) -> None:
    """Let a board store a little: one whose disk is full fails every trial, and none is to blame.

    Raises:
        CallError: The board cannot, or is gone.
        DeviceError: The session was cut.
    """
    session.run(calls.send_something)


@dataclass(frozen=True)
class Taken:
    """What was measured in one session.

    Attributes:
        samples_s: Of the trial, and of each of its rivals: seconds of one run, one value per sample; none of those that
            were left out.
        waited: For which share of the time the kernels' threads waited for a CPU that others had; None if unknown.
    """

    samples_s: tuple[Samples, ...]
    waited: float | None = None


def measured(session: Session, trial: Trial, options: Options, spread: float, budget_s: float) -> Taken:
    """Measure a trial.

    Args:
        session: The session to do it in.
        trial: The trial.
        options: How it is measured.
        spread: Ratio of the slowest to the fastest sample beyond which samples are taken again.
        budget_s: Seconds that running it may take; samples are taken again only if there is time for it.

    Raises:
        CallError: What TVM makes of anything that goes wrong on the board or on the way.
        InputError: The board has not so many CPUs.
        DeviceError: The session was cut, or the board says what is no time.
        OSError: The library cannot be read.
    """
    given = (_TRIAL.dump_python(trial, mode="json"), vars(options), spread, budget_s)
    return _taken(session, session.run(calls.measured, *given))


def turn(session: Session, trial: Trial, options: Options, order: Sequence[int]) -> Taken:
    """Measure a trial and its rivals one after the other, there and back.

    Args:
        session: The session to do it in.
        trial: The trial.
        options: How all are measured.
        order: Who is measured, in this order: 0 is the trial, 1 its first rival.

    Raises:
        ToolchainError: As `measured`.
        OSError: As `measured`.
    """
    given = (_TRIAL.dump_python(trial, mode="json"), vars(options), list(order))
    return _taken(session, session.run(calls.turn, *given))


def peak(session: Session) -> float:
    """Return what a board's CPUs compute at most, in GFLOPS; 0 where it cannot tell.

    Raises:
        CallError: The board cannot, or is gone.
        DeviceError: The session was cut.
    """
    return float(session.run(calls.peak) or 0.0)


def _taken(session: Session, said: Mapping[str, Any]) -> Taken:
    samples = tuple(tuple(float(value) for value in one) for one in said["samples_s"])
    if not samples[0] or not all(math.isfinite(value) for one in samples for value in one):
        raise DeviceError(f"{session.place} returned no times", details=str(samples))
    waited = said["waited"]
    return Taken(samples, None if waited is None else float(waited))


@dataclass(frozen=True)
class Failure:
    """Why a trial has no samples.

    Attributes:
        cause: What it is if it is the candidate's fault.
        error: In whose words.
        told: Whether the server told it; else the connection just ended, or nothing came.
    """

    cause: Cause
    error: str
    told: bool


def failure(fault: Exception) -> Failure:
    """Sort what a session raises, or what a deadline does."""
    if not isinstance(fault, CallError):
        return Failure("timeout", str(fault), told=False)
    if server.SESSION_CUT in str(fault):  # whoever keeps the board wanted it back
        return Failure("crash", error_text(fault), told=False)
    if fault.kind in _TIMEOUTS or server.SESSION_EXPIRED in str(fault):
        return Failure("timeout", error_text(fault), told=True)
    if fault.kind == _RPC_ERROR:
        return Failure("crash" if server.PROCESS_ENDED in str(fault) else "refused", error_text(fault), told=True)
    if any(sign in str(fault) for sign in _LOST):
        return Failure("crash", "the connection was lost while the kernel ran", told=False)
    return Failure("refused", error_text(fault), told=True)
