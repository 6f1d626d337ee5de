"""The sessions of one board, and the checks of its health."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolchain import rpc
from toolchain.errors import BusyError, DeviceError, ToolchainError, VerificationError
from toolchain.rpc import CallError, Session
from toolchain.rpc.places import Place
from toolchain.tuning.measure import trial as measure_session
from toolchain.tuning.measure.health import Health, Pulse, Rules


class State(enum.Enum):
    """Whether a board can measure: it is well, its clock is slow because it throttles, or it is lost."""

    WELL = enum.auto()
    SLOW = enum.auto()
    LOST = enum.auto()


@dataclass(frozen=True)
class Condition:
    """The result of a check.

    Attributes:
        state: The state of the board.
        fault: What is wrong with it; empty if it is well.
        hopeless: Whether waiting will not help.
        pulse: The health check; None if the board is lost.
    """

    state: State
    fault: str = ""
    hopeless: bool = False
    pulse: Pulse | None = None


def lost(fault: Exception, prefix: str = "") -> Condition:
    """Return the condition of a board after an error of its sessions.

    Waiting helps neither against a board of another kind nor against one that was leased to another user.
    """
    return Condition(State.LOST, f"{prefix}{_one_line(fault)}", isinstance(fault, VerificationError | BusyError))


def _one_line(fault: Exception) -> str:
    if isinstance(fault, ToolchainError) and fault.details:
        return f"{fault.message}: {fault.details.strip().splitlines()[-1]}"
    return str(fault).strip().splitlines()[-1] if str(fault).strip() else type(fault).__name__


class Board:
    """Opens sessions on one place, one at a time, for one thread; `cut` may be called by any.

    `on_session` is called with each session that was opened.
    """

    def __init__(self, place: Place, rules: Rules, health: Health, on_session: Callable[[Session], None]) -> None:
        self._place = place
        self._rules = rules
        self._health = health
        self._on_session = on_session
        self._session: Session | None = None
        self._cut = threading.Event()

    def cut(self) -> None:
        """End the running session, if there is one, and open none from now on."""
        self._cut.set()
        session = self._session
        if session is not None:
            session.cut()

    @contextlib.contextmanager
    def session(self, session_s: float) -> Iterator[Session]:
        """Open a session for at most `session_s` seconds.

        Raises:
            DeviceError: The board cannot be reached, or `cut` was called.
            VerificationError: It is not the board that was asked for.
        """
        session = self._place.open(self._rules.open_s, session_s, self._cut)
        # `cut` of another thread ends the session from now on.
        self._session = session
        self._on_session(session)
        try:
            with session:
                if self._cut.is_set():  # between the opening and the assignment of the session
                    raise DeviceError("the pool is closed")
                yield session
        finally:
            self._session = None

    def check(self) -> Condition:
        """Check in a new session that the board stores files and that its clock is as fast as before."""
        try:
            with self.session(2 * self._rules.canary_s) as session:
                return self._check_disk(session) or self.check_clock(session)
        except (DeviceError, VerificationError) as fault:
            return lost(fault)

    def check_clock(self, session: Session) -> Condition:
        """Time a fixed amount of work; twice if it seems slow, since the board may have been busy for a moment."""
        try:
            with rpc.deadline(session, self._rules.canary_s):
                pulse = measure_session.take_pulse(session, self._rules.canary_ms)
                if self._health.fault(pulse):
                    pulse = measure_session.take_pulse(session, self._rules.canary_ms)
        except (CallError, DeviceError, VerificationError) as fault:
            return lost(fault, "its health check fails: ")
        fault_text = self._health.fault(pulse)
        return Condition(State.SLOW if fault_text else State.WELL, fault_text, pulse=pulse)

    def _check_disk(self, session: Session) -> Condition | None:
        try:
            with rpc.deadline(session, self._rules.canary_s):
                measure_session.send_file(session)
        except (CallError, DeviceError, VerificationError) as fault:
            return lost(fault, "it accepts no files: ")
        return None

    def check_after_failure(self, session: Session) -> Condition:
        """Check the board after a trial failed in this session, which has ended."""
        # The server answers at once even if the board is busy; opening a session would wait much longer.
        if not session.stock and not session.answers(self._rules.answer_s):
            return Condition(State.LOST, f"the board server at {session.place} does not answer")
        return self.check()
