"""The boards of a daemon: their leases, locks, sessions and status."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolchain.errors import DeviceError
from toolchain.farm.grants import Client, Grant, Slot, check_key, status_message
from toolchain.farm.lease_queue import LeaseQueue
from toolchain.farm.leasing import Leasing
from toolchain.farm.protocol import Message, ServedDevice
from toolchain.farm.refusals import no_longer_served, not_now, released
from toolchain.farm.served_board import ServedBoard

_LOG = logging.getLogger(__name__)

_SETTLE_S = 5.0
_JOIN_S = 7.0
_AGAIN_S = 0.2


@dataclass
class Pool:
    """The boards of a daemon; `shared` if other commands of its user may use it too, such as `farm release`."""

    shared: bool = True
    queue: LeaseQueue = field(init=False)
    leases: Leasing = field(init=False)
    _slots: dict[str, Slot] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.queue = LeaseQueue(self._slots)
        self.leases = Leasing(self.queue, self._changed)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def names(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(self._slots)

    def add(self, served: ServedDevice) -> None:
        """Serve a device, unless it is already served in the same way.

        Raises:
            DeviceError: It is served in another way, and a client has it.
        """
        with self._changed:
            slot = self._slots.get(served.name)
            if slot and slot.board.served == served:
                return
            if slot and slot.grant:
                raise not_now(slot)
            if slot:
                slot.board.stop()
            board = ServedBoard(served, self._notify)
            self._slots[served.name] = Slot(board, f"toolchain farm release {served.name}" if self.shared else "")
            board.start()

    def await_settled(self, names: Sequence[str], seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until each board is ready or has a fault."""
        pending, deadline = list(names), time.monotonic() + seconds
        with self._changed:
            while pending and time.monotonic() < deadline:
                for name in pending[:]:
                    board = self.queue.slot(name).board
                    if board.settled or board.fault:
                        pending.remove(name)
                        tell(f"{name}: {board.fault.message if board.fault else 'serves'}")
                self._changed.wait(0.5)

    def remove(self, names: Sequence[str]) -> None:
        """Stop serving boards, even those of clients, and wait until they have stopped."""
        with self._changed:
            removed = [self._slots.pop(name) for name in names if name in self._slots]
            for slot in removed:
                self.leases.withdraw(slot, no_longer_served(slot.name), for_good=False)
            boards = [slot.board for slot in removed]
        for board in boards:
            board.stop()
        deadline = time.monotonic() + _JOIN_S
        for board in boards:
            board.join(deadline - time.monotonic())

    def session(self, name: str, key: str, wait: float) -> tuple[ServedBoard, socket.socket]:
        """Return a board and a stream to its server, for the holder of the key of its lease.

        A board that is lost may come back within `wait` seconds.

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

    def _await_board(self, name: str, key: str, deadline: float) -> ServedBoard:
        with self._changed:
            while True:
                slot = self.queue.slot(name)
                check_key(slot, key)
                remaining = deadline - time.monotonic()
                if slot.board.settled:
                    return slot.board
                if remaining <= 0 and slot.board.is_busy:  # its lock was lost; the farm keeps trying to get it again
                    raise DeviceError(f"the lock of {name} was lost", details=not_now(slot).message)
                if remaining <= 0:
                    return slot.board
                self._changed.wait(min(remaining, 0.5))

    def lock(self, name: str, client: Client, seconds: float) -> Message:
        """Lock a board for some time; a board that is lost at the moment is locked when it is back.

        Raises:
            BusyError: A client has it.
        """
        with self._changed:
            slot = self.queue.slot(name)
            if slot.is_taken():
                raise not_now(slot)
            now = time.time()
            grant = Grant(client, "locked", now, now + seconds)
            slot.give(grant, "")
            deadline = time.monotonic() + _SETTLE_S
            while not slot.board.settled and not slot.board.is_busy and slot.board.state == "ready":
                if time.monotonic() > deadline:
                    break
                self._changed.wait(0.5)
            if slot.board.is_busy:  # the error names who holds the device's lock, which is forgotten with the grant
                fault = not_now(slot)
                slot.take_back()
                raise fault
            return {"board": name, "until": grant.until}

    def release(self, name: str) -> Message | None:
        """End a lock or a lease and its session; return the former grant. That lease does not get the board again."""
        with self._changed:
            slot = self.queue.slot(name)
            holder = self._end_grant(slot)
        self.leases.await_freed([slot])
        return holder

    def _end_grant(self, slot: Slot) -> Message | None:
        grant = slot.grant
        if grant is None:
            return None
        _LOG.info("%s: %s until now; released", slot.board.served.name, grant)
        self.leases.withdraw(slot, released(slot.name), for_good=True)
        return grant.message()

    def expire(self) -> None:
        """End expired locks and the leases of silent clients, and share out the free boards."""
        with self._changed:
            for slot in self._slots.values():
                if slot.grant and slot.grant.until and time.time() > slot.grant.until:
                    self._end_grant(slot)
        self.leases.expire()

    def status(self) -> Message:
        """Describe every board and the queue, without secrets, and without access to a device."""
        with self._changed:
            boards = [status_message(slot, self.leases.heard_s(slot)) for slot in self._slots.values()]
            return {"boards": boards, "queue": self.queue.report()}
