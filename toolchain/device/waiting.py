"""Wait for devices that are in use, and record for whom a command waited."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from toolchain.errors import BusyError
from toolchain.printable import printable

T = TypeVar("T")
Tell = Callable[[str], None]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 2.0
_TELL_AGAIN_S = 60.0
_JITTER = random.SystemRandom()  # commands that wait together must not retry at the same moments


@dataclass(frozen=True)
class Waited:
    """A wait of a command.

    Attributes:
        seconds: Its duration.
        owner: The user of the device during that time, and the purpose.
    """

    seconds: float
    owner: str


class Patience:
    """How long a command waits in total for devices in use.

    The lock of a device has no queue: commands retry, less often over time, and the first retry after its release gets
    it. A farm has a queue and reports itself for whom a command waits.

    Args:
        seconds: Longest total wait; 0 does not wait.
        progress: Called with the user of the device: once for each user, then every minute.
    """

    def __init__(self, seconds: float = 0.0, progress: Tell = lambda _line: None) -> None:
        self._seconds = seconds
        self._report = progress
        self._waited: list[Waited] = []
        self._last_message, self._last_told_at = "", -math.inf

    @property
    def waited(self) -> tuple[Waited, ...]:
        """The waits so far, in order."""
        return tuple(self._waited)

    @property
    def left(self) -> float:
        """The remaining seconds."""
        return max(0.0, self._seconds - math.fsum(wait.seconds for wait in self._waited))

    def get(self, attempt: Callable[[], T]) -> T:
        """Retry an attempt while the device is in use; return its result.

        `attempt` raises BusyError if the device is in use.

        Raises:
            BusyError: The device is still in use when the time is up.
        """
        pause = _FIRST_PAUSE_S
        while True:
            began, left_s = time.monotonic(), self.left
            try:
                return attempt()
            except BusyError as fault:
                if self.left <= 0:
                    if not self._waited:
                        raise
                    waits = [f"this command waited {wait.seconds:.0f} s for {wait.owner}" for wait in self._waited]
                    details = "\n".join(filter(None, [fault.details, *waits]))
                    raise BusyError(fault.message, details=details, hint=fault.hint, owner=fault.owner) from None
                self.tell(fault)
                time.sleep(min(self.left, pause * _JITTER.uniform(0.5, 1.5)))
                noted = left_s - self.left  # a farm's attempt waits, and notes that, itself
                self.note(fault, time.monotonic() - began - noted)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def tell(self, fault: BusyError) -> None:
        """Report for whom the command waits, unless it did so within the last minute."""
        if fault.message != self._last_message or time.monotonic() > self._last_told_at + _TELL_AGAIN_S:
            self._last_message, self._last_told_at = fault.message, time.monotonic()
            since = f", {fault.details.partition(';')[0]}" if fault.details.startswith("since ") else ""
            self._report(printable(f"{fault.message}{since}; waiting for up to {self.left:.0f} s"))

    def note(self, fault: BusyError, seconds: float) -> None:
        """Record a wait; consecutive waits for one user become one."""
        if self._waited and self._waited[-1].owner == fault.owner:
            seconds += self._waited.pop().seconds
        self._waited.append(Waited(seconds, fault.owner))
