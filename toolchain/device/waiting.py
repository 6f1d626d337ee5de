"""Waiting for devices that others are at work on, and what a command waited for."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from toolchain.errors import BusyError
from toolchain.tables import printable

T = TypeVar("T")
Tell = Callable[[str], None]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 2.0
_TELL_AGAIN_S = 60.0
_JITTER = random.SystemRandom()  # two that wait alike shall not ask alike


@dataclass(frozen=True)
class Waited:
    """What a command waited for.

    Attributes:
        seconds: How long.
        owner: Who was at work on the device all that time, and what for.
    """

    seconds: float
    owner: str


class Patience:
    """How long a command waits, all in all, for devices that others are at work on.

    A device is asked again and again, less often the longer that takes, and who asks at the right moment gets it:
    nobody stands in a line.

    Args:
        seconds: How long; 0 is not at all.
        tell: Told who has the device, once for each of them and then every minute.
    """

    def __init__(self, seconds: float = 0.0, tell: Tell = lambda _line: None) -> None:
        self._seconds = seconds
        self._tell = tell
        self._waited: list[Waited] = []

    @property
    def waited(self) -> tuple[Waited, ...]:
        """What was waited for so far, in its order."""
        return tuple(self._waited)

    @property
    def left(self) -> float:
        """How many seconds more it waits."""
        return max(0.0, self._seconds - math.fsum(one.seconds for one in self._waited))

    def get(self, attempt: Callable[[], T]) -> T:
        """Try something until nobody else is at work on the device, and return what it returns.

        Args:
            attempt: Raises BusyError where somebody is.

        Raises:
            BusyError: Somebody still is when the time is up.
        """
        pause, before, told_at = _FIRST_PAUSE_S, "", -math.inf
        while True:
            began = time.monotonic()
            try:
                return attempt()
            except BusyError as fault:
                if self.left <= 0:
                    raise self._told_of(fault) from None
                if fault.owner != before or time.monotonic() > told_at + _TELL_AGAIN_S:
                    before, told_at = fault.owner, time.monotonic()
                    self._tell(printable(self._why(fault)))
                self._sleep(began, min(self.left, pause * _JITTER.uniform(0.5, 1.5)), fault.owner)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _sleep(self, began: float, pause: float, owner: str) -> None:
        """Wait a little, and note it together with the time that asking took."""
        time.sleep(pause)
        seconds = time.monotonic() - began
        if self._waited and self._waited[-1].owner == owner:
            seconds += self._waited.pop().seconds
        self._waited.append(Waited(seconds, owner))

    def _why(self, fault: BusyError) -> str:
        since = fault.details.partition(";")[0] if fault.details.startswith("since ") else ""
        return f"{fault.message}{f', {since}' if since else ''}; waiting for up to {self.left:.0f} s"

    def _told_of(self, fault: BusyError) -> BusyError:
        """Add to an error how long was waited."""
        if not self._waited:
            return fault
        lines = [f"this command waited {one.seconds:.0f} s: {one.owner}" for one in self._waited]
        details = "\n".join(filter(None, [fault.details, *lines]))
        return BusyError(fault.message, details=details, hint=fault.hint, owner=fault.owner)
