"""Work on several devices at once, a thread for each. What becomes of it is told, and written, by the caller's thread.

A thread that has found out what a device runs goes on only when that is on disk, so that whoever comes after a kill
knows what to go back to.
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

_LOOK_S = 0.5
_LEAVE_S = 10.0
"""Seconds for threads to leave their devices in good order, once their connections are closed."""


class LateError(DeviceError):
    """A device took longer than it may."""


class Closeable(Protocol):
    """What ends a connection."""

    def close(self) -> None:
        """End it. Closing twice is fine."""


@dataclass(frozen=True)
class Outcome:
    """What came of work that went well.

    Attributes:
        after: Digest of the release that the device runs now; empty for none.
        latency_ms: Median of the release; None where it was not measured.
        emulated: Whether that is an emulator's.
        note: What else is to be told.
    """

    after: str
    latency_ms: float | None = None
    emulated: bool = False
    note: str = ""


class Visit:
    """Work on one device, as its thread sees it.

    Attributes:
        name: The device.
        after: Digest of the release that it ran when the work failed; None if that is not known.
        has_found: Whether it was asked what it runs, so that it may have been changed since.
        began: When the work did, by the monotonic clock.
        is_late: Whether it took longer than it may, and was left.
    """

    def __init__(self, name: str, tell: Callable[[Visit, object], None]) -> None:
        self.name = name
        self.after: str | None = None
        self.has_found = False
        self.began = time.monotonic()
        self.is_late = False
        self._tell = tell
        self._written = threading.Event()
        self._lock = threading.Lock()
        self._left = False
        self._open: list[Closeable] = []
        self._thread: threading.Thread | None = None

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self.began

    def start(self, act: Callable[[Visit], Outcome]) -> None:
        """Let a thread do it."""
        self._thread = threading.Thread(target=self._run, args=(act,), name=f"rollout-{self.name}", daemon=True)
        self._thread.start()

    def _run(self, act: Callable[[Visit], Outcome]) -> None:
        found: object
        try:
            found = act(self)
        except Exception as fault:  # noqa: BLE001 - it is told as this device's; the others go on
            found = fault
        self._tell(self, found)

    def found(self, digest: str) -> None:
        """Tell which release the device runs, before anything is changed there; return when that is on disk.

        Raises:
            DeviceError: The roll-out ends.
        """
        self.has_found = True
        self._tell(self, digest)
        self._written.wait()
        if self._left:
            raise DeviceError("the roll-out is ending")

    def go_on(self) -> None:
        """Let the thread go on that has told what it found."""
        self._written.set()

    @contextlib.contextmanager
    def using(self, connection: Closeable) -> Iterator[None]:
        """Let whoever ends the work close a connection, for the time of a block.

        Raises:
            DeviceError: It was ended already.
        """
        with self._lock:
            if self._left:
                raise DeviceError("the roll-out is ending")
            self._open.append(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(connection)

    def leave(self) -> None:
        """End the work: its connections are closed, so that the thread fails, and unwinds."""
        with self._lock:
            self._left, connections = True, list(self._open)
        self._written.set()
        for one in connections:  # which may wait for a peer
            threading.Thread(target=one.close, name=f"leave-{self.name}", daemon=True).start()

    def join(self, deadline: float) -> None:
        """Wait for the end of the thread, up to a moment of the monotonic clock."""
        if self._thread:
            self._thread.join(max(0.0, deadline - time.monotonic()))


class Journal(Protocol):
    """Who keeps what becomes of the work."""

    def began(self, name: str) -> None:
        """Work on a device begins."""

    def found(self, name: str, digest: str) -> None:
        """A device runs this release before anything is changed."""

    def ended(self, visit: Visit, found: Outcome | BaseException) -> None:
        """Work on a device has ended."""

    def save(self) -> None:
        """Write all that is known to disk."""


class Crew:
    """Those who work.

    Args:
        journal: Keeps what becomes of it.
        size: How many devices at once.
        limit_s: Seconds that one device may take.
    """

    def __init__(self, journal: Journal, size: int, limit_s: float) -> None:
        self._journal, self._size, self._limit_s = journal, size, limit_s
        self._visits: list[Visit] = []
        self._events: queue.SimpleQueue[tuple[Visit, object]] = queue.SimpleQueue()

    def run(
        self, names: Sequence[str], act: Callable[[Visit], Outcome], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Do something on devices, and return when nobody is at work any more.

        Args:
            names: The devices, in the order in which they are begun.
            act: Does it on one of them, in a thread.
            stopped: Whether no other one is to be begun.
        """
        waiting = deque(names)
        while True:
            while waiting and len(self._visits) < self._size and not stopped():
                self._begin(waiting.popleft(), act)
            if not self._visits:
                return
            self._take_events(_LOOK_S)
            self._end_late()

    def _begin(self, name: str, act: Callable[[Visit], Outcome]) -> None:
        visit = Visit(name, lambda visit, found: self._events.put((visit, found)))
        self._journal.began(name)
        self._visits.append(visit)
        visit.start(act)

    def _take_events(self, seconds: float) -> None:
        """Wait for an event, take it with all others that there are, and write what they change, once."""
        taken = list(self._events_within(seconds))
        if taken:
            self._journal.save()
        for visit in taken:
            visit.go_on()

    def _events_within(self, seconds: float) -> Iterator[Visit]:
        with contextlib.suppress(queue.Empty):
            visit, found = self._events.get(timeout=seconds)
            while True:
                if visit in self._visits:  # or it was given up before
                    self._note(visit, found)
                    yield visit
                visit, found = self._events.get_nowait()

    def _note(self, visit: Visit, found: object) -> None:
        if isinstance(found, str):
            self._journal.found(visit.name, found)
        elif isinstance(found, Outcome):
            self._end(visit, found)
        elif isinstance(found, BaseException):
            self._end(visit, self._late(visit) if visit.is_late else found)

    def _end(self, visit: Visit, found: Outcome | BaseException) -> None:
        self._visits.remove(visit)
        self._journal.ended(visit, found)

    def _late(self, visit: Visit) -> ToolchainError:
        return LateError(
            f"{visit.name} did not finish within {self._limit_s:g} s",
            details="it may still be working; the next run checks its state",
            hint="check the device and its connection, or allow more time with --timeout",
        )

    def _end_late(self) -> None:
        """Leave devices that take too long; one whose thread does not end then is given up."""
        for visit in [one for one in self._visits if one.seconds > self._limit_s]:
            if not visit.is_late:
                visit.is_late = True
                visit.leave()
            elif visit.seconds > self._limit_s + _LEAVE_S:
                self._end(visit, self._late(visit))
                self._journal.save()

    def leave(self) -> None:
        """End all work. What was in flight stays so in the journal: the next run asks the devices."""
        if not self._visits:
            return
        list(self._events_within(0.0))  # what has ended by now has ended well, or for a cause of its own
        left, self._visits = self._visits, []
        for visit in left:
            visit.leave()
        deadline = time.monotonic() + _LEAVE_S
        for visit in left:
            visit.join(deadline)
        self._journal.save()
