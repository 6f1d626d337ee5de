"""The queue of trials, and which boards could take them."""

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
    """A trial in the queue or on a board.

    Attributes:
        trial: The trial.
        future: Receives its result.
        attempts: Boards that it was given to so far.
        lost: Boards in a row that were lost while they ran it.
        again: Times that its result did not count because the board had throttled, or because it was doubtful.
    """

    trial: Trial
    future: Future[Measured] = field(default_factory=Future)
    attempts: int = 0
    lost: int = 0
    again: int = 0

    def deliver(self, result: Measured) -> None:
        """Set the result, unless the future was cancelled."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_result(result)

    def fail(self, fault: BaseException) -> None:
        """Set an error instead of a result, unless the future was cancelled."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(fault)


class Jobs:
    """The queue, and the boards that are lost. Boards are known by the names of their places.

    The waiting jobs fail after `patience_s` seconds without any board.
    """

    def __init__(self, names: list[str], patience_s: float) -> None:
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        # An error in a thread of the pool: without it, jobs would wait for ever.
        self._broken: BaseException | None = None
        self._faults: dict[str, str] = dict.fromkeys(names, "")
        self._patience_s = patience_s
        # The time since when no board is available; None while there is one.
        self._none_since: float | None = None
        # Boards for which waiting does not help; if all are, waiting jobs fail at once.
        self._hopeless: set[str] = set()

    def put(self, job: Job) -> None:
        """Add a job at the end of the queue."""
        self._add(job, first=False)

    def put_back(self, job: Job) -> None:
        """Add a job at the head of the queue: it has waited before."""
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
        """Return the next job that was not cancelled; None after `timeout_s`, or if the queue is closed."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._closed:
                while self._waiting:
                    # Jobs whose future was cancelled are dropped here.
                    job = self._waiting.popleft()
                    if not job.future.done():
                        return job
                remaining = None if end is None else end - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return None
                self._changed.wait(remaining)
        return None

    def close(self) -> None:
        """Cancel the waiting jobs, and wake the threads that wait for jobs."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job.future.cancel()
            self._waiting.clear()
            self._changed.notify_all()

    def break_off(self, fault: BaseException) -> None:
        """Fail the waiting and all future jobs: a thread of the pool has died of an error."""
        with self._changed:
            self._broken, self._closed = fault, True
            for job in self._waiting:
                job.fail(fault)
            self._waiting.clear()
            self._changed.notify_all()

    def leave(self, name: str) -> None:
        """Note that a board takes no more jobs, though it is well."""
        with self._changed:
            self._hopeless.discard(name)
            self._faults.pop(name, None)
            if self._none_since is None and self._faults and all(self._faults.values()):
                self._none_since = time.monotonic()

    def found(self, name: str) -> None:
        """Note that a board is new, or well again."""
        with self._changed:
            self._hopeless.discard(name)
            self._faults[name] = ""
            self._none_since = None

    def lost(self, name: str, fault: str, *, hopeless: bool = False) -> None:
        """Note that a board cannot take jobs, why, and whether waiting will not help."""
        with self._changed:
            (self._hopeless.add if hopeless else self._hopeless.discard)(name)
            self._faults[name] = fault or "lost"
            if self._none_since is None and all(self._faults.values()):
                self._none_since = time.monotonic()

    def give_up(self) -> None:
        """Fail the waiting jobs if there has been no board at all for too long."""
        with self._changed:
            since = self._none_since
            patience_s = self._patience_s if len(self._hopeless) < len(self._faults) else 0.0
            if since is None or time.monotonic() - since < patience_s:
                return
            jobs = list(self._waiting)
            self._waiting.clear()
            details = "\n".join(f"{name}: {fault}" for name, fault in self._faults.items())
        fault = DeviceError(
            f"no board has been available for {time.monotonic() - since:.0f} s",
            details=details,
            hint="make a board available again: `toolchain farm status` lists them",
        )
        # Outside the lock, since the callbacks of a future run here.
        for job in jobs:
            job.fail(fault)
