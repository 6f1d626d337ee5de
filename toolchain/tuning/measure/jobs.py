"""Trials that wait for a board, and what is known of the boards that could take them."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from toolchain.errors import DeviceError
from toolchain.tuning.trials import Measured, Trial


@dataclass(eq=False)
class Job:
    """A trial on its way.

    Attributes:
        trial: The trial.
        future: Gets its result.
        attempts: Boards that it was given to so far.
        lost: Boards in a row that were lost while they had it.
        again: Times that its result did not count because the board had throttled, or because it was doubtful.
    """

    trial: Trial
    future: Future[Measured] = field(default_factory=Future)
    attempts: int = 0
    lost: int = 0
    again: int = 0

    def deliver(self, result: Measured) -> None:
        """Give the result to whoever still waits for it."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_result(result)

    def fail(self, fault: BaseException) -> None:
        """Tell whoever still waits that there is no result."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(fault)


class Jobs:
    """The queue, and the places that are lost.

    Args:
        places: Names of all places.
        patience_s: Seconds without any place after which the jobs that wait are given up.
    """

    def __init__(self, places: list[str], patience_s: float) -> None:
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._broken: BaseException | None = None
        self._faults: dict[str, str] = dict.fromkeys(places, "")
        self._patience_s = patience_s
        self._none_since: float | None = None
        self._hopeless: set[str] = set()

    def put(self, job: Job) -> None:
        """Let a job wait behind all others."""
        self._add(job, first=False)

    def put_back(self, job: Job) -> None:
        """Let a job that had its turn wait before all others."""
        self._add(job, first=True)

    def _add(self, job: Job, *, first: bool) -> None:
        with self._changed:
            if self._broken:
                job.fail(self._broken)
                return
            if self._closed:
                job.future.cancel()
                return
            (self._waiting.appendleft if first else self._waiting.append)(job)
            self._changed.notify()

    def take(self, timeout_s: float | None = None) -> Job | None:
        """Return the next job that somebody waits for; None if none comes in time, or if all is over."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._closed:
                while self._waiting:
                    job = self._waiting.popleft()
                    if not job.future.done():
                        return job
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
        return None

    def close(self) -> None:
        """Cancel what waits, and wake who waits for it."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job.future.cancel()
            self._waiting.clear()
            self._changed.notify_all()

    def break_off(self, fault: BaseException) -> None:
        """Fail what waits and what is still to come: a thread of the pool has died of an error."""
        with self._changed:
            self._broken, self._closed = fault, True
            for job in self._waiting:
                job.fail(fault)
            self._waiting.clear()
            self._changed.notify_all()

    def joined(self, place: str) -> None:
        """Note that there is one more place."""
        self.found(place)

    def left(self, place: str) -> None:
        """Note that a place takes no more jobs, though it is well."""
        with self._changed:
            self._hopeless.discard(place)
            self._faults.pop(place, None)
            if self._none_since is None and self._faults and all(self._faults.values()):
                self._none_since = time.monotonic()

    def found(self, place: str) -> None:
        """Note that a place is well."""
        with self._changed:
            self._hopeless.discard(place)
            self._faults[place] = ""
            self._none_since = None

    def lost(self, place: str, fault: str, *, hopeless: bool = False) -> None:
        """Note that a place cannot take a job, why, and whether waiting will not help."""
        with self._changed:
            (self._hopeless.add if hopeless else self._hopeless.discard)(place)
            self._faults[place] = fault or "lost"
            if self._none_since is None and all(self._faults.values()):
                self._none_since = time.monotonic()

    def give_up(self) -> None:
        """Fail what waits if there has been no place at all for too long."""
        with self._changed:
            since = self._none_since
            patience_s = self._patience_s if len(self._hopeless) < len(self._faults) else 0.0
            if since is None or time.monotonic() - since < patience_s:
                return
            given_up = list(self._waiting)
            self._waiting.clear()
            details = "\n".join(f"{place}: {fault}" for place, fault in self._faults.items())
        fault = DeviceError(
            f"no board has been available for {time.monotonic() - since:.0f} s",
            details=details,
            hint="make a board available again: `toolchain farm status` lists them",
        )
        for job in given_up:
            job.fail(fault)
