"""How well a board is: when it is given no more trials, when it is tried again, and when its clock has slowed down.

Those who watch a pool of boards, such as the progress table, get its events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from toolchain.tuning.trials import Measured, Trial

Kind = Literal["started", "ended", "lost", "quarantined", "back", "cooling", "cooled", "slower", "stock"]


@dataclass(frozen=True)
class Rules:
    """When a board is no longer trusted, and how long everything may take.

    Attributes:
        open_s: Seconds that a board may take to open a session; with a tracker, to become free.
        upload_bytes_s: Bytes per second that the slowest link carries.
        slack_s: Seconds added to every upload; three times as many on an emulated board.
        grace_s: Seconds that a server has to report the end of a session's time before the session is cut.
        answer_s: Seconds that a board server may take to answer a greeting, which it does also while it is busy.
        canary_s: Seconds that a canary may take.
        canary_ms: Milliseconds that a canary keeps the board busy.
        canary_trials: Trials after which a canary is due.
        canary_every_s: Seconds after which one is due, even if there were fewer trials.
        failures: Failures in a row that quarantine a board.
        probe_s: First and longest pause in seconds before a lost board is tried again.
        patience_s: Seconds without any board after which the waiting trials fail.
        boards_lost: Boards in a row that may be lost with a candidate before it is recorded as a crash.
        slower: Share by which a canary may be slower than the board's best.
        hot_c: Temperature in degrees Celsius at which a board throttles or is about to.
        cool_s: First and longest pause in seconds of a board that cools down.
        cool_total_s: Seconds of cooling after which the speed of a board that stays slow counts as normal.
        again: Times that a trial is measured again because its board had throttled, or its times are doubtful; after
            that it fails.
        spread: Ratio of the slowest to the fastest sample beyond which samples are taken again.
        unsteady: Ratio of the median to the fastest sample beyond which the samples are doubtful.
        waited: Share of the time that a kernel's threads may wait for CPUs that run other work. A busy loop beside each
            thread makes it a half, which slows all candidates alike; finals cope with that.
    """

    open_s: float = 60.0
    upload_bytes_s: float = 1e6
    slack_s: float = 3.0
    grace_s: float = 5.0
    answer_s: float = 5.0
    canary_s: float = 15.0
    canary_ms: int = 30
    canary_trials: int = 20
    canary_every_s: float = 10.0
    failures: int = 3
    probe_s: tuple[float, float] = (1.0, 15.0)
    patience_s: float = 120.0
    boards_lost: int = 3
    slower: float = 0.10
    hot_c: float = 80.0
    cool_s: tuple[float, float] = (1.0, 60.0)
    cool_total_s: float = 300.0
    again: int = 2
    spread: float = 1.5
    unsteady: float = 3.0
    waited: float = 0.9


@dataclass(frozen=True)
class Pulse:
    """The result of a canary, a fixed amount of work that shows whether a board is as fast as before.

    Attributes:
        place: Where it ran: a tracker may assign any of several boards.
        seconds: Time that it took; None if the server has no canary.
        celsius: Temperature of the board; None if it reports none.
    """

    place: str
    seconds: float | None = None
    celsius: float | None = None


class Health:
    """The health of one place. It belongs to one thread.

    Args:
        rules: When a board is no longer trusted.
        steady: Whether its speed means anything; that of an emulator does not.
    """

    def __init__(self, rules: Rules, *, steady: bool) -> None:
        self._rules = rules
        self._steady = steady
        # By board: a tracker may assign different boards to one place, of different speed.
        self._best: dict[str, float] = {}
        self._trials = 0
        # The first check is always due.
        self._last = -float("inf")
        self.failures = 0

    @property
    def quarantined(self) -> bool:
        """Whether it has failed so often in a row that further failures are not reported."""
        return self.failures >= self._rules.failures

    @property
    def pause_s(self) -> float:
        """Seconds until a lost board is tried again; they double with each failure."""
        first, longest = self._rules.probe_s
        return float(min(first * 2 ** max(self.failures - self._rules.failures, 0), longest))

    def count(self) -> None:
        self._trials += 1

    def due(self, now: float) -> bool:
        enough_trials = self._trials >= self._rules.canary_trials
        return self._steady and (enough_trials or now - self._last >= self._rules.canary_every_s)

    def holds(self, place: str) -> bool:
        """Whether a result counts only after the next canary is well."""
        return self._steady and place in self._best

    def fault(self, pulse: Pulse) -> str:
        """Return why a board counts as slow; empty if it does not."""
        if not self._steady:
            return ""
        if pulse.celsius is not None and pulse.celsius >= self._rules.hot_c:
            return f"{pulse.celsius:.0f} C"
        best = self._best.get(pulse.place)
        if pulse.seconds is None or best is None or pulse.seconds <= best * (1 + self._rules.slower):
            return ""
        return f"{100 * (pulse.seconds / best - 1):.0f} % slower than its best"

    def well(self, pulse: Pulse, now: float) -> None:
        """Note a canary at normal speed."""
        self._trials, self._last = 0, now
        if pulse.seconds is not None:
            self._best[pulse.place] = min(pulse.seconds, self._best.get(pulse.place, pulse.seconds))

    def accept(self, pulse: Pulse, now: float) -> None:
        """Let a board's present speed count as normal."""
        if pulse.seconds is not None:
            self._best[pulse.place] = pulse.seconds
        self.well(pulse, now)


@dataclass(frozen=True)
class Event:
    """Something that happened at a place.

    Attributes:
        kind: A trial `started` or `ended`; the board was `lost`, was `quarantined` after several losses, came `back`;
            it is `cooling` down, has `cooled`, stays `slower`; it runs TVM's own `stock` server.
        place: Name of the place.
        detail: Details as one line of text.
        trial: The trial, if the event is about one.
        measured: Its result, if it ended; a trial whose board had throttled starts and ends once more.
    """

    kind: Kind
    place: str
    detail: str = ""
    trial: Trial | None = None
    measured: Measured | None = None


Observer = Callable[[Event], None]
"""Called with every event, in the thread of the place."""
