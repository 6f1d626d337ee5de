"""Who has which board: leases, locks, and what `farm status` shows of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from toolchain import _farm_tracker
from toolchain._farm_keeper_board import KeptBoard, private_key
from toolchain._farm_protocol import Message, Served, fault_message
from toolchain.errors import DeviceError, InputError, did_you_mean

_LOG = logging.getLogger(__name__)

_SETTLE_S = 5.0
_CLEAR_S = 3.0
_JOIN_S = 7.0
_NOTICE_S = 2.0  # a client that was killed just now may not be noticed yet


@dataclass(frozen=True)
class Hold:
    """Who has a board, and until when; without an end, until its connection ends."""

    who: str
    kind: Literal["leased", "locked"]
    since: float
    until: float | None = None

    def __str__(self) -> str:
        end = f" until {time.strftime('%H:%M', time.localtime(self.until))}" if self.until else ""
        return f"{self.kind} by {self.who}{end}"


@dataclass
class _Place:
    """A board, who has it, and what its clients reported."""

    board: KeptBoard
    hold: Hold | None = None
    given_back: float = 0.0
    trial: Message | None = None
    celsius: float | None = None
    failures: int = 0
    quarantined: bool = False

    def state(self) -> str:
        """Name its state in one word."""
        if self.board.state != "ready":
            return self.board.state
        if self.hold:
            return "quarantined" if self.quarantined else self.hold.kind
        return "busy" if self.board.session_since else "free"

    def is_free(self) -> bool:
        return self.state() == "free" and self.board.settled

    def may_be_free_soon(self) -> bool:
        return self.is_about_to_be_free() or self.board.state != "ready"

    def is_about_to_be_free(self) -> bool:
        """Whether its last client has just left it, or it is on its way back to the tracker."""
        if self.hold or self.board.state != "ready":
            return False
        return not self.is_free() and (
            self.board.session_since is None or time.monotonic() - self.given_back < _CLEAR_S
        )


@dataclass
class Desk:
    """The boards of a keeper.

    Attributes:
        tracker: The tracker.
    """

    tracker: _farm_tracker.Tracker
    _places: dict[str, _Place] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- the boards ---

    def names(self) -> tuple[str, ...]:
        """Name the boards."""
        with self._changed:
            return tuple(self._places)

    def add(self, served: Served) -> None:
        """Serve a device; one that is served in the same way stays as it is.

        Raises:
            DeviceError: It is served in another way, and somebody has it.
        """
        with self._changed:
            place = self._places.get(served.name)
            if place and place.board.served == served:
                return
            if place and place.hold:
                raise _not_now(place)
            if place:
                place.board.stop()
            board = KeptBoard(served, self.tracker.address, self._notify)
            self._places[served.name] = _Place(board)
            board.start()

    def await_settled(self, names: Sequence[str], seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until boards are ready or have told why they are not; tell about each."""
        left, deadline = list(names), time.monotonic() + seconds
        with self._changed:
            while left and time.monotonic() < deadline:
                for name in left[:]:
                    board = self._place(name).board
                    if board.settled or board.fault:
                        left.remove(name)
                        tell(f"{name}: {board.fault.message if board.fault else 'serves'}")
                self._changed.wait(0.5)

    def remove(self, names: Sequence[str]) -> None:
        """End to serve boards, whoever has them, and wait until that is done."""
        with self._changed:
            boards = [self._places.pop(name).board for name in names if name in self._places]
        for board in boards:
            board.stop()
        deadline = time.monotonic() + _JOIN_S
        for board in boards:
            board.join(deadline - time.monotonic())

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise InputError(
                f"the farm serves no board {name!r}",
                details="it serves: " + (", ".join(self._places) or "none"),
                hint=did_you_mean(name, self._places) or f"toolchain farm up {name}",
            )
        return self._places[name]

    # --- leases ---

    @contextmanager
    def lease(self, kind: str, names: Sequence[str], who: str, wait: float) -> Iterator[Message]:
        """Let a client have boards for the time of a block.

        Args:
            kind: Board type; empty for any.
            names: The boards; without names, all of the type that are free.
            who: The client.
            wait: Seconds that boards may take to become free.

        Yields:
            What the client is told.

        Raises:
            InputError: There is no such board.
            DeviceError: None is free, or one that was named is not.
        """
        with self._changed:
            places = self._awaited(kind, names, time.monotonic() + wait)
            keys = {place.board.served.name: private_key(place.board.served.name) for place in places}
            hold = Hold(who, "leased", time.time())
            for place in places:
                place.hold, place.failures, place.quarantined = hold, 0, False
                place.board.offer(keys[place.board.served.name], quiet=True)
        try:
            yield {"tracker": self.tracker.address, "boards": self._given(places, keys)}
        finally:
            self._give_back(places)

    def _awaited(self, kind: str, names: Sequence[str], deadline: float) -> list[_Place]:
        noticed = min(deadline, time.monotonic() + _NOTICE_S)
        while True:
            if names:
                wanted = [self._place(name) for name in names]
            else:
                wanted = [place for place in self._places.values() if kind in {"", place.board.served.board}]
            found = [place for place in wanted if place.is_free()]
            enough = len(found) == len(wanted) if names else found
            if enough and not any(place.is_about_to_be_free() for place in wanted):
                return found
            soon = any(place.may_be_free_soon() for place in wanted)
            left = (deadline if soon else noticed) - time.monotonic()
            if left <= 0 and enough:
                return found
            if left <= 0 or not wanted:
                raise _none_free(kind, names, [place for place in wanted if not place.is_free()])
            self._changed.wait(min(left, 0.5))

    def _given(self, places: Sequence[_Place], keys: dict[str, str]) -> list[Message]:
        """Wait until the servers have the keys; one that is lost or frozen just now gets its key when it is back."""
        deadline = time.monotonic() + _SETTLE_S
        with self._changed:
            while not all(place.board.settled or place.board.state == "lost" for place in places):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 0.5))
            if not any(place.board.settled for place in places):
                raise DeviceError("no board server answers", hint="toolchain farm status")
        served = [place.board.served for place in places]
        return [
            {"name": one.name, "board": one.board, "key": keys[one.name], "emulated": one.emulated} for one in served
        ]

    def _give_back(self, places: Sequence[_Place]) -> None:
        with self._changed:
            for place in places:
                place.hold, place.quarantined, place.given_back = None, False, time.monotonic()
                place.board.offer(place.board.served.key)
                place.board.cut()  # what a dead client left running must not keep the board
            self._changed.notify_all()

    def report(self, names: Sequence[str], message: Message) -> None:
        """Take what the client of a lease reports of its boards."""
        with self._changed:
            for what in ("trial", "state"):
                found = message.get(what)
                if not isinstance(found, dict) or found.get("board") not in names:
                    continue
                place = self._places.get(found["board"])
                if place is None:
                    continue
                if what == "trial":
                    place.trial = {**found, "time": time.time()}
                    place.celsius = found.get("celsius") or place.celsius
                else:
                    place.failures, place.quarantined = int(found["failures"]), found["state"] == "quarantined"
                    # A board that nobody measures on may be asked whether it is well.
                    place.board.rest(quiet=not place.quarantined)

    # --- locks ---

    def lock(self, name: str, who: str, seconds: float) -> Message:
        """Take a board from the tracker for some time.

        Raises:
            DeviceError: Somebody has it.
        """
        with self._changed:
            place = self._place(name)
            if place.hold or place.state() == "busy":
                raise _not_now(place)
            place.hold = Hold(who, "locked", time.time(), time.time() + seconds)
            place.board.offer(None)
            return {"board": name, "until": place.hold.until}

    def release(self, name: str) -> None:
        """End a lock; a board that is not locked stays as it is.

        Raises:
            DeviceError: The board is leased.
        """
        with self._changed:
            place = self._place(name)
            if place.hold and place.hold.until is None:
                raise DeviceError(f"{name} is {place.hold}", hint="the lease ends with that process")
            if place.hold:
                self._unlock(place)

    def expire(self) -> None:
        """End the locks whose time is over."""
        with self._changed:
            for place in self._places.values():
                if place.hold and place.hold.until and time.time() > place.hold.until:
                    _LOG.info("%s: the lock is over", place.board.served.name)
                    self._unlock(place)

    def _unlock(self, place: _Place) -> None:
        place.hold = None
        place.board.offer(place.board.served.key)
        self._changed.notify_all()

    # --- status ---

    def status(self) -> Message:
        """Tell about every board, and about servers that somebody else registered at the tracker."""
        with self._changed:
            places = list(self._places.values())
        celsius = _temperatures(places)
        boards = [_described(place, celsius.get(place.board.served.name)) for place in places]
        ours = {place.board.address for place in places}
        try:
            found, fault = _farm_tracker.registered(self.tracker.port), None
        except DeviceError as error:
            found, fault = (), fault_message(error)
        stock = [vars(one) for one in found if (one.host, one.port) not in ours]
        return {"tracker": self.tracker.address, "boards": boards, "stock": stock, "fault": fault}


def _temperatures(places: Sequence[_Place]) -> dict[str, float | None]:
    """Ask all idle boards at once."""
    found: dict[str, float | None] = {}

    def ask(board: KeptBoard) -> None:
        found[board.served.name] = board.celsius()

    threads = [threading.Thread(target=ask, args=(place.board,), daemon=True) for place in places if not place.hold]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6.0)
    return found


def _described(place: _Place, celsius: float | None) -> Message:
    board, hold = place.board, place.hold
    served, session = board.served, board.session_since
    found: dict[str, Any] = {
        "name": served.name,
        "board": served.board,
        "key": served.key,
        "host": served.host,
        "emulated": served.emulated,
        "state": place.state(),
        "address": board.address,
        "hold": {"who": hold.who, "kind": hold.kind, "since": hold.since, "until": hold.until} if hold else None,
        "session_since": session,
        "trial": place.trial,
        "celsius": celsius if celsius is not None else place.celsius,
        "failures": place.failures,
        "fault": fault_message(board.fault) if board.fault else None,
    }
    return found


def _not_now(place: _Place) -> DeviceError:
    name = place.board.served.name
    if place.hold:
        hint = f"toolchain farm release {name}" if place.hold.until else "the lease ends with that process"
        return DeviceError(f"{name} is {place.hold}", hint=hint)
    return DeviceError(f"{name} serves a client without a lease", hint="wait until its session has ended")


def _none_free(kind: str, names: Sequence[str], others: Sequence[_Place]) -> DeviceError:
    if not others:
        return DeviceError(f"the farm serves no {kind or 'board'}", hint="toolchain farm up")
    details = "\n".join(_why_not(place) for place in others)
    what = ", ".join(names) if names else f"no {kind or 'board'}"
    verb = ("are not" if len(names) > 1 else "is not") if names else "is"
    return DeviceError(f"{what} {verb} free", details=details, hint="toolchain farm status")


def _why_not(place: _Place) -> str:
    board = place.board
    if board.state != "ready":
        why = board.fault.message if board.fault else "it is being connected"
        return f"{board.served.name}: {why}"
    return _not_now(place).message
