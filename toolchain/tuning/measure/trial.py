"""What is done on a board in one session: the canary, and a trial; and what a failure there means."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import TypeAdapter

from toolchain.errors import DeviceError
from toolchain.records.results import Cause
from toolchain.rpc import CallError, Session, server, words
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


def measured(session: Session, trial: Trial, options: Options, spread: float, budget_s: float) -> Samples:
    """Measure a trial.

    Args:
        session: The session to do it in.
        trial: The trial.
        options: How it is measured.
        spread: Ratio of the slowest to the fastest sample beyond which samples are taken again.
        budget_s: Seconds that running it may take; samples are taken again only if there is time for it.

    Returns:
        Seconds of one run, one value per sample.

    Raises:
        CallError: What TVM makes of anything that goes wrong on the board or on the way.
        InputError: The board has not so many CPUs.
        DeviceError: The session was cut, or the board says what is no time.
        OSError: The library cannot be read.
    """
    given = (_TRIAL.dump_python(trial, mode="json"), vars(options), spread, budget_s)
    found = tuple(float(value) for value in session.run(calls.measured, *given))
    if not found or not all(math.isfinite(value) for value in found):
        raise DeviceError(f"{session.place} answers with no times", details=str(found))
    return found


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
        return Failure("crash", words(fault), told=False)
    if fault.kind in _TIMEOUTS or server.SESSION_EXPIRED in str(fault):
        return Failure("timeout", words(fault), told=True)
    if fault.kind == _RPC_ERROR:
        return Failure("crash" if server.PROCESS_ENDED in str(fault) else "refused", words(fault), told=True)
    if any(sign in str(fault) for sign in _LOST):
        return Failure("crash", "the connection ended while it ran", told=False)
    return Failure("refused", words(fault), told=True)
