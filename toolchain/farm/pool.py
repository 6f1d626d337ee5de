"""Who has which board: leases, locks, and what `farm status` shows of them."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from toolchain.errors import BusyError, DeviceError, InputError, ToolchainError, did_you_mean
from toolchain.farm.holds import Client, Grant, Hold, Slot, check_key, described, granted, not_now
from toolchain.farm.protocol import Message, Served
from toolchain.farm.served_board import KeptBoard
from toolchain.rpc.server import new_key

_LOG = logging.getLogger(__name__)

_SETTLE_S = 5.0
_JOIN_S = 7.0
_AGAIN_S = 0.2
_NOTICE_S = 2.0  # a client that was killed just now may not be noticed yet


@dataclass
class Pool:
    """The boards of a daemon.

    Attributes:
        shared: Whether other commands of its user may ask it, too, as `farm release` does.
    """

    shared: bool = True
    _slots: dict[str, Slot] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- the boards ---

    def names(self) -> tuple[str, ...]:
        """Name the boards."""
        with self._changed:
            return tuple(self._slots)

    def add(self, served: Served) -> None:
        """Serve a device; one that is served in the same way stays as it is.

        Raises:
            DeviceError: It is served in another way, and somebody has it.
        """
        with self._changed:
            slot = self._slots.get(served.name)
            if slot and slot.board.served == served:
                return
            if slot and slot.hold:
                raise not_now(slot)
            if slot:
                slot.board.stop()
            board = KeptBoard(served, self._notify)
            self._slots[served.name] = Slot(board)
            board.start()

    def await_settled(self, names: Sequence[str], seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until boards are ready or have told why they are not; tell about each."""
        left, deadline = list(names), time.monotonic() + seconds
        with self._changed:
            while left and time.monotonic() < deadline:
                for name in left[:]:
                    board = self._slot(name).board
                    if board.settled or board.fault:
                        left.remove(name)
                        tell(f"{name}: {board.fault.message if board.fault else 'serves'}")
                self._changed.wait(0.5)

    def remove(self, names: Sequence[str]) -> None:
        """End to serve boards, whoever has them, and wait until that is done."""
        with self._changed:
            boards = [self._slots.pop(name).board for name in names if name in self._slots]
        for board in boards:
            board.stop()
        deadline = time.monotonic() + _JOIN_S
        for board in boards:
            board.join(deadline - time.monotonic())

    def _slot(self, name: str) -> Slot:
        if name not in self._slots:
            raise InputError(
                f"the farm serves no board {name!r}",
                details="it serves: " + (", ".join(self._slots) or "none"),
                hint=did_you_mean(name, self._slots) or f"toolchain farm up {name}",
            )
        return self._slots[name]

    # --- leases ---

    @contextmanager
    def lease(
        self, kind: str, names: Sequence[str], client: Client, wait: float, above: Collection[int] = ()
    ) -> Iterator[Grant]:
        """Let a client have boards for the time of a block.

        Args:
            kind: Board type; empty for any.
            names: The boards; without names, all of the type that are free.
            client: The client.
            wait: Seconds that boards may take to become free.
            above: The processes that the client descends from. It may use what one of those has.

        Raises:
            InputError: There is no such board.
            BusyError: None is free, or one that was named is not.
            DeviceError: None can be reached, or one that was named cannot.
        """
        deadline = time.monotonic() + wait
        with self._changed:
            slots = self._of_ancestor(kind, names, above)
            hold = slots[0].hold if slots else None
            own = hold is None
            if hold is None:
                slots = self._awaited(kind, names, deadline)
                hold = Hold(client, "leased", time.time())
                for slot in slots:
                    slot.give(hold, new_key(), self._end(slot))
            keys = {slot.board.served.name: slot.key for slot in slots}
        try:
            busy = self._await_keys(slots, deadline, all_of_them=bool(names))
            if own:
                self._give_back(busy, hold, keys)
            slots = [slot for slot in slots if slot not in busy]
            keys = {slot.board.served.name: keys[slot.board.served.name] for slot in slots}
            yield Grant(hold, keys, tuple(granted(slot, keys) for slot in slots))
        finally:
            if own:
                self._give_back(slots, hold, keys)
                self._await_freed(slots)

    def _end(self, slot: Slot) -> str:
        return f"toolchain farm release {slot.board.served.name}" if self.shared else ""

    def _awaited(self, kind: str, names: Sequence[str], deadline: float) -> list[Slot]:
        noticed = min(deadline, time.monotonic() + _NOTICE_S)
        while True:
            wanted = self._wanted(kind, names)
            found = [slot for slot in wanted if slot.is_free()]
            enough = len(found) == len(wanted) if names else found
            if enough and not any(slot.is_about_to_be_free() for slot in wanted):
                return found
            soon = any(slot.may_be_free_soon() for slot in wanted)
            left = (deadline if soon else noticed) - time.monotonic()
            if left <= 0 and enough:
                return found
            if left <= 0 or not wanted:
                raise _none_free(kind, names, [slot for slot in wanted if not slot.is_free()])
            self._changed.wait(min(left, 0.5))

    def _of_ancestor(self, kind: str, names: Sequence[str], above: Collection[int]) -> list[Slot]:
        """Find the boards that a process has which the client descends from, as under `farm lock NAME -- CMD`."""
        wanted = self._wanted(kind, names)
        found = [slot for slot in wanted if slot.hold and slot.key and slot.hold.client.pid in above]
        same = [slot for slot in found if slot.hold is found[0].hold]
        return same if not names or len(same) == len(wanted) else []

    def _wanted(self, kind: str, names: Sequence[str]) -> list[Slot]:
        if names:
            return [self._slot(name) for name in names]
        return [slot for slot in self._slots.values() if kind in {"", slot.board.served.board}]

    def _await_keys(self, slots: Sequence[Slot], deadline: float, *, all_of_them: bool) -> list[Slot]:
        """Wait until the devices are locked and the servers have the keys; return those that others are at work on.

        One that is lost or frozen just now gets its key when it is back.

        Raises:
            BusyError: Others are at work on all of them, or on one where all are wanted.
            DeviceError: No board server answers.
        """
        settled_by = time.monotonic() + _SETTLE_S
        with self._changed:
            while True:
                busy = [slot for slot in slots if slot.board.is_busy]
                settled = [slot for slot in slots if slot.board.settled]
                on_its_way = [slot for slot in slots if slot not in busy + settled and slot.board.state != "lost"]
                wait_for_busy = busy and (all_of_them or not settled)
                left = max(deadline * bool(wait_for_busy), settled_by * bool(on_its_way)) - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 0.5))
                if wait_for_busy:  # its server gets the key once its lock is free
                    settled_by = max(settled_by, min(time.monotonic(), deadline) + _SETTLE_S)
            if busy and (all_of_them or not settled):
                raise not_now(busy[0])
            if not settled:
                raise DeviceError("no board server answers", hint="toolchain farm status")
            return busy

    def _await_freed(self, slots: Sequence[Slot]) -> None:
        """Wait until the locks of boards that were given back are free: a client may deploy to them next."""
        deadline = time.monotonic() + _SETTLE_S
        with self._changed:
            while not all(slot.hold or slot.board.settled or slot.board.state != "ready" for slot in slots):
                if time.monotonic() > deadline:
                    break
                self._changed.wait(0.5)

    def _give_back(self, slots: Sequence[Slot], hold: Hold, keys: Mapping[str, str]) -> None:
        with self._changed:
            for slot in slots:
                if slot.hold is hold:
                    slot.take_back()
                elif (key := keys[slot.board.served.name]) in slot.taken_back:
                    slot.taken_back.remove(key)
            self._changed.notify_all()

    def session(self, name: str, key: str, wait: float) -> tuple[KeptBoard, socket.socket]:
        """Return a board and a stream to its server, for who has the key of its lease.

        Args:
            name: The board.
            key: The key.
            wait: Seconds for all of this, in which a board that is lost may come back.

        Raises:
            InputError: There is no such board.
            DeviceError: The board is not leased under that key, or cannot be reached in time.
        """
        deadline = time.monotonic() + wait
        while True:
            board = self._await_board(name, key, deadline)
            try:
                return board, board.dial(max(0.1, deadline - time.monotonic()))
            except DeviceError:  # it was lost just now
                if time.monotonic() + _AGAIN_S > deadline:
                    raise
                time.sleep(_AGAIN_S)

    def _await_board(self, name: str, key: str, deadline: float) -> KeptBoard:
        with self._changed:
            while True:
                slot = self._slot(name)
                check_key(slot, key)
                left = deadline - time.monotonic()
                if slot.board.settled:
                    return slot.board
                if left <= 0 and slot.board.is_busy:  # its lock was lost; it may be had again later
                    raise DeviceError(f"the lock of {name} was lost", details=not_now(slot).message)
                if left <= 0:
                    return slot.board
                self._changed.wait(min(left, 0.5))

    def report(self, grant: Grant, message: Message) -> None:
        """Take what the client of a lease reports of its boards."""
        with self._changed:
            for what, found in message.items():
                slot = self._slots.get(str(found.get("board"))) if isinstance(found, dict) else None
                if slot is None or slot.hold is not grant.hold:
                    continue
                if what == "trial":
                    slot.trial = {**found, "time": time.time()}
                    slot.celsius = found.get("celsius") or slot.celsius
                elif what == "state":
                    slot.failures, slot.quarantined = int(found["failures"]), found["state"] == "quarantined"
                    # A board that nobody measures on may be asked whether it is well.
                    slot.board.rest(quiet=not slot.quarantined)

    # --- locks ---

    def lock(self, name: str, client: Client, seconds: float) -> Message:
        """Keep a board from everybody for some time; one that is lost just now is locked when it is back.

        Raises:
            BusyError: Somebody has it.
        """
        with self._changed:
            slot = self._slot(name)
            if slot.hold or slot.state() == "busy":
                raise not_now(slot)
            now = time.time()
            hold = Hold(client, "locked", now, now + seconds)
            slot.give(hold, "", self._end(slot))
            deadline = time.monotonic() + _SETTLE_S
            while not slot.board.settled and not slot.board.is_busy and slot.board.state == "ready":
                if time.monotonic() > deadline:
                    break
                self._changed.wait(0.5)
            if slot.board.is_busy:
                fault = not_now(slot)
                self._give_back([slot], hold, {name: ""})
                raise fault
            return {"board": name, "until": hold.until}

    def release(self, name: str) -> Message | None:
        """End a lock or a lease, and the session of that; who had the lease does not get another.

        Returns:
            Who had the board; None if nobody had.
        """
        with self._changed:
            slot = self._slot(name)
            found = self._released(slot)
            self._await_freed([slot])
            return found

    def _released(self, slot: Slot) -> Message | None:
        hold = slot.hold
        if hold is None:
            return None
        _LOG.info("%s: %s until now; released", slot.board.served.name, hold)
        if slot.key:
            slot.taken_back.append(slot.key)
        slot.take_back()
        self._changed.notify_all()
        return hold.message()

    def expire(self) -> None:
        """End the locks whose time is over."""
        with self._changed:
            for slot in self._slots.values():
                if slot.hold and slot.hold.until and time.time() > slot.hold.until:
                    self._released(slot)

    # --- status ---

    def status(self) -> Message:
        """Tell about every board; no secrets are told."""
        with self._changed:
            slots = list(self._slots.values())
        celsius = _temperatures(slots)
        return {"boards": [described(slot, celsius.get(slot.board.served.name)) for slot in slots]}


def _temperatures(slots: Sequence[Slot]) -> dict[str, float | None]:
    """Ask all idle boards at once."""
    found: dict[str, float | None] = {}

    def ask(board: KeptBoard) -> None:
        found[board.served.name] = board.celsius()

    threads = [threading.Thread(target=ask, args=(slot.board,), daemon=True) for slot in slots if not slot.hold]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6.0)
    return found


def _none_free(kind: str, names: Sequence[str], others: Sequence[Slot]) -> ToolchainError:
    if len(others) == 1 and others[0].board.is_busy:
        return not_now(others[0])
    if not others:
        return DeviceError(f"the farm serves no {kind or 'board'}", hint="toolchain farm up")
    details = "\n".join(_why_not(slot) for slot in others)
    what = ", ".join(names) if names else f"no {kind or 'board'}"
    verb = ("are not" if len(names) > 1 else "is not") if names else "is"
    message, hint = f"{what} {verb} free", "toolchain farm status"
    if any(slot.hold or slot.board.is_busy for slot in others):
        owners = [owner for slot in others if (owner := _owner(slot))]
        return BusyError(message, details=details, hint=hint, owner="; ".join(dict.fromkeys(owners)))
    return DeviceError(message, details=details, hint=hint)


def _owner(slot: Slot) -> str:
    """Name who has a board: a client of the farm, or somebody who is at work on the device itself."""
    if slot.hold:
        return slot.hold.client.who
    return slot.board.fault.owner if slot.board.is_busy and isinstance(slot.board.fault, BusyError) else ""


def _why_not(slot: Slot) -> str:
    board = slot.board
    if board.state != "ready" or board.is_busy:
        why = board.fault.message if board.fault else "it is being connected"
        return f"{board.served.name}: {why}"
    return not_now(slot).message
