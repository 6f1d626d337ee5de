"""Work on several devices at once, in a thread for each; the caller's thread reports and saves the results.

A thread that knows which release a device runs continues only once that is on disk: after a kill, the next run knows
what to roll back to.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from toolchain.errors import DeviceError, ToolchainError

_POLL_S = 0.5
_LEAVE_S = 10.0  # for threads to leave their devices in good order, once their connections are closed


class LateError(DeviceError):
    """A device exceeded its time limit."""


class Closeable(Protocol):
    def close(self) -> None:
        """Close it; closing twice is fine."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of successful work."""

    after: str  # digest of the release that the device runs now; empty for none
    latency_ms: float | None = None  # median of the release; None if it was not measured
    emulated: bool = False  # whether that is an emulator's
    note: str = ""  # anything else to report


class Visit:
    """Work on one device, as its thread sees it."""

    def __init__(self, name: str, events: queue.SimpleQueue[tuple[Visit, object]]) -> None:
        self.name = name
        self.after: str | None = None  # digest of the release that it ran when the work failed; None if unknown
        self.knows_release = False  # whether its release was asked for, so that it may have been changed since
        self.began = time.monotonic()
        self.is_late = False  # whether it exceeded its time limit, and was left
        self._events = events
        self._before = ""
        self._saved = threading.Event()
        self._lock = threading.Lock()
        self._has_ended = False
        self._open: list[Closeable] = []
        self._thread: threading.Thread | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def start(self, act: Callable[[Visit], Outcome]) -> None:
        def run() -> None:
            outcome: object
            try:
                outcome = act(self)
            except Exception as fault:  # noqa: BLE001 - it is reported as this device's; the others go on
                outcome = fault
            self._events.put((self, outcome))

        self._thread = threading.Thread(target=run, name=f"rollout-{self.name}", daemon=True)
        self._thread.start()

    def report_release(self, digest: str) -> str:
        """Report the release that the device runs, before anything is changed there; return when that is on disk.

        Returns:
            The release that it ran before the roll-out, which an interrupted attempt may have replaced already.

        Raises:
            DeviceError: The roll-out ends.
        """
        self.knows_release = True
        self._events.put((self, digest))
        self._saved.wait()
        if self._has_ended:
            raise DeviceError("the roll-out is ending")
        return self._before

    def resume(self) -> None:
        """Let a thread continue that waits in `report_release`."""
        self._saved.set()

    def note_before(self, digest: str) -> None:
        """Keep the release that the device ran before the roll-out, for `report_release`."""
        self._before = digest

    @contextlib.contextmanager
    def closing(self, connection: Closeable) -> Iterator[None]:
        """Let `leave` close a connection during a block.

        Raises:
            DeviceError: The work has ended.
        """
        with self._lock:
            if self._has_ended:
                raise DeviceError("the roll-out is ending")
            self._open.append(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(connection)

    def leave(self) -> None:
        """End the work: its connections are closed, so that the thread fails and unwinds."""
        with self._lock:
            self._has_ended, connections = True, list(self._open)
        self._saved.set()
        for connection in connections:  # in a thread each, since closing may wait for a peer
            threading.Thread(target=connection.close, name=f"leave-{self.name}", daemon=True).start()

    def join(self, deadline: float) -> None:
        """Wait for the thread, up to a moment of the monotonic clock."""
        if self._thread:
            self._thread.join(max(0.0, deadline - time.monotonic()))


class Journal(Protocol):
    """Keeps the results of the work."""

    def begin(self, name: str) -> None: ...

    def note_release(self, name: str, digest: str) -> str:
        """Note the release that a device runs as the work begins; return the one from before the roll-out."""

    def end(self, visit: Visit, outcome: Outcome | BaseException) -> None: ...

    def save(self) -> None:
        """Write everything to disk."""


class DeviceThreads:
    """Threads for at most `size` devices at once; `limit_s` is the time limit of a device."""

    def __init__(self, journal: Journal, size: int, limit_s: float) -> None:
        self._journal, self._size, self._limit_s = journal, size, limit_s
        self._visits: list[Visit] = []
        self._events: queue.SimpleQueue[tuple[Visit, object]] = queue.SimpleQueue()

    def run(
        self, names: Sequence[str], act: Callable[[Visit], Outcome], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Work on devices in this order, and return when all threads have ended.

        `act` runs in a thread of its own for each device; once `stopped` returns True, no further device begins.
        """
        waiting = deque(names)
        while True:
            while waiting and len(self._visits) < self._size and not stopped():
                visit = Visit(waiting.popleft(), self._events)
                self._journal.begin(visit.name)
                self._visits.append(visit)
                visit.start(act)
            if not self._visits:
                return
            self._take_events(_POLL_S)
            self._end_late()

    def _take_events(self, seconds: float) -> None:
        noted = list(self._note_events(seconds))
        if noted:
            self._journal.save()  # once for all of them
        for visit in noted:
            visit.resume()

    def _note_events(self, seconds: float) -> Iterator[Visit]:
        """Wait for an event, note it and all others in the queue, and yield their visits."""
        with contextlib.suppress(queue.Empty):
            visit, event = self._events.get(timeout=seconds)
            while True:
                if visit in self._visits:  # or it was given up
                    if isinstance(event, str):
                        visit.note_before(self._journal.note_release(visit.name, event))
                    elif isinstance(event, Outcome):
                        self._end(visit, event)
                    elif isinstance(event, BaseException):
                        # The failure of a late thread is a consequence of its closed connections.
                        self._end(visit, self._late(visit) if visit.is_late else event)
                    yield visit
                visit, event = self._events.get_nowait()

    def _end(self, visit: Visit, outcome: Outcome | BaseException) -> None:
        self._visits.remove(visit)
        self._journal.end(visit, outcome)

    def _late(self, visit: Visit) -> ToolchainError:
        return LateError(
            f"{visit.name} did not finish within {self._limit_s:g} s",
            details="it may still be working; the next run checks its state",
            hint="check the device and its connection, or allow more time with --timeout",
        )

    def _end_late(self) -> None:
        """Leave late devices, and give one up whose thread does not end even then."""
        for visit in [visit for visit in self._visits if visit.seconds > self._limit_s]:
            if not visit.is_late:
                visit.is_late = True
                visit.leave()
            elif visit.seconds > self._limit_s + _LEAVE_S:
                self._end(visit, self._late(visit))
                self._journal.save()

    def leave(self) -> None:
        """End all work. Devices in flight stay so in the journal: the next run asks them."""
        if not self._visits:
            return
        list(self._note_events(0.0))  # before the connections are closed, which would count as failures
        unfinished, self._visits = self._visits, []
        for visit in unfinished:
            visit.leave()
        deadline = time.monotonic() + _LEAVE_S
        for visit in unfinished:
            visit.join(deadline)
        self._journal.save()
