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

    A device is asked again and again, less often the longer that takes, and who asks at the right moment gets it. A
    farm has a line to stand in, and says itself for whom is waited.

    Args:
        seconds: How long; 0 is not at all.
        tell: Told who has the device, once for each of them and then every minute.
    """

    def __init__(self, seconds: float = 0.0, progress: Tell = lambda _line: None) -> None:
        self._seconds = seconds
        self._report = progress
        self._waited: list[Waited] = []
        self._last_message, self._last_told_at = "", -math.inf

    @property
    def waited(self) -> tuple[Waited, ...]:
        """What was waited for so far, in its order."""
        return tuple(self._waited)

    @property
    def left(self) -> float:
        """How many seconds more it waits."""
        return max(0.0, self._seconds - math.fsum(wait.seconds for wait in self._waited))

    def get(self, attempt: Callable[[], T]) -> T:
        """Try something until nobody else is at work on the device, and return what it returns.

        Args:
            attempt: Raises BusyError where somebody is.

        Raises:
            BusyError: Somebody still is when the time is up.
        """
        pause = _FIRST_PAUSE_S
        while True:
            began, left_s = time.monotonic(), self.left
            try:
                return attempt()
            except BusyError as fault:
                if self.left <= 0:
                    raise self._told_of(fault) from None
                self.tell(fault)
                time.sleep(min(self.left, pause * _JITTER.uniform(0.5, 1.5)))
                noted = left_s - self.left  # by the attempt itself
                self.note(fault, time.monotonic() - began - noted)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def tell(self, fault: BusyError) -> None:
        """Say for whom is waited, unless that was said within the last minute."""
        if fault.message != self._last_message or time.monotonic() > self._last_told_at + _TELL_AGAIN_S:
            self._last_message, self._last_told_at = fault.message, time.monotonic()
            self._report(printable(self._why(fault)))

    def note(self, fault: BusyError, seconds: float) -> None:
        """Note that somebody was waited for, for so long."""
        if self._waited and self._waited[-1].owner == fault.owner:
            seconds += self._waited.pop().seconds
        self._waited.append(Waited(seconds, fault.owner))

    def _why(self, fault: BusyError) -> str:
        since = fault.details.partition(";")[0] if fault.details.startswith("since ") else ""
        return f"{fault.message}{f', {since}' if since else ''}; waiting for up to {self.left:.0f} s"

    def _told_of(self, fault: BusyError) -> BusyError:
        """Add to an error how long was waited."""
        if not self._waited:
            return fault
        lines = [f"this command waited {wait.seconds:.0f} s for {wait.owner}" for wait in self._waited]
        details = "\n".join(filter(None, [fault.details, *lines]))
        return BusyError(fault.message, details=details, hint=fault.hint, owner=fault.owner)
