"""The canary and the measurements of one session, and what a failure in it means."""

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

# Messages of TVM's client when the connection ends without an answer.
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


def take_pulse(session: Session, milliseconds: int) -> Pulse:
    """Time a fixed amount of work; on a server without that, a trivial call shows that it is alive.

    Raises:
        CallError: The board cannot, or is gone.
        DeviceError: The session was cut.
    """
    answer = session.run(calls.take_pulse, milliseconds)
    return Pulse(session.place, answer["canary_s"], answer["celsius"])


def send_file(session: Session) -> None:
    """Store a small file on the board: with a full disk every trial would fail, and no candidate would be to blame.

    Raises:
        CallError: The board cannot, or is gone.
        DeviceError: The session was cut.
    """
    session.run(calls.send_file)


@dataclass(frozen=True)
class Taken:
    """The samples of one session.

    Attributes:
        samples_s: Of the trial and of each rival: seconds of one run, one value per sample; empty for a rival that was
            not measured.
        waited: Share of the time that the kernels' threads waited for CPUs that ran other work; None if unknown.
    """

    samples_s: tuple[Samples, ...]
    waited: float | None = None


def measure_trial(session: Session, trial: Trial, options: Options, spread: float, budget_s: float) -> Taken:
    """Measure a trial.

    Samples are taken again if the slowest is more than `spread` times the fastest, and `budget_s` allows it.

    Raises:
        CallError: TVM's error for any failure of the board or the connection.
        InputError: The board does not have as many CPUs.
        DeviceError: The session was cut, or the board returned no valid times.
        OSError: The library cannot be read.
    """
    args = (_TRIAL.dump_python(trial, mode="json"), vars(options), spread, budget_s)
    return _to_taken(session, session.run(calls.measure_trial, *args))


def measure_turn(session: Session, trial: Trial, options: Options, order: Sequence[int]) -> Taken:
    """Measure a trial and its rivals one after the other, in `order` and then in the reverse order.

    `order` has the indices of the kernels: 0 is the trial, 1 its first rival.

    Raises:
        ToolchainError: As `measure_trial`.
        OSError: As `measure_trial`.
    """
    args = (_TRIAL.dump_python(trial, mode="json"), vars(options), list(order))
    return _to_taken(session, session.run(calls.measure_turn, *args))


def measure_peak(session: Session) -> float:
    """Return the peak of a board's CPUs in GFLOPS; 0 if it is unknown.

    Raises:
        CallError: The board cannot, or is gone.
        DeviceError: The session was cut.
    """
    return float(session.run(calls.measure_peak) or 0.0)


def _to_taken(session: Session, answer: Mapping[str, Any]) -> Taken:
    samples = tuple(tuple(map(float, seconds)) for seconds in answer["samples_s"])
    if not samples[0] or not all(math.isfinite(value) for seconds in samples for value in seconds):
        raise DeviceError(f"{session.place} returned no times", details=str(samples))
    waited = answer["waited"]
    return Taken(samples, None if waited is None else float(waited))


@dataclass(frozen=True)
class Failure:
    """Why a trial has no samples.

    Attributes:
        cause: The cause to record if the candidate is to blame.
        error: The message.
        reported: Whether the server reported it; otherwise the connection just ended, or no answer came.
    """

    cause: Cause
    error: str
    reported: bool


def failure(fault: Exception) -> Failure:
    """Classify an error of a session or of its deadline."""
    if not isinstance(fault, CallError):
        return Failure("timeout", str(fault), reported=False)
    if server.SESSION_CUT in str(fault):  # the owner of the board has taken it back
        return Failure("crash", error_text(fault), reported=False)
    if fault.kind in _TIMEOUTS or server.SESSION_EXPIRED in str(fault):
        return Failure("timeout", error_text(fault), reported=True)
    if fault.kind == _RPC_ERROR:
        return Failure("crash" if server.PROCESS_ENDED in str(fault) else "refused", error_text(fault), reported=True)
    if any(sign in str(fault) for sign in _LOST):
        return Failure("crash", "the connection was lost while the kernel ran", reported=False)
    return Failure("refused", error_text(fault), reported=True)
