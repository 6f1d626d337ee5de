"""Who has which board: leases, locks, and what `farm status` shows of them."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolchain.errors import DeviceError
from toolchain.farm.holds import Client, Hold, Slot, check_key, described
from toolchain.farm.leasing import Leasing
from toolchain.farm.protocol import Message, Served
from toolchain.farm.refusals import not_now, released, served_no_longer
from toolchain.farm.served_board import KeptBoard

_LOG = logging.getLogger(__name__)

_SETTLE_S = 5.0
_JOIN_S = 7.0
_AGAIN_S = 0.2


@dataclass
class Pool:
    """The boards of a daemon.

    Attributes:
        shared: Whether other commands of its user may ask it, too, as `farm release` does.
        leases: The leases of its boards.
    """

    shared: bool = True
    leases: Leasing = field(init=False)
    _slots: dict[str, Slot] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.leases = Leasing(self._slots, self._changed)

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
            self._slots[served.name] = Slot(board, f"toolchain farm release {served.name}" if self.shared else "")
            board.start()

    def await_settled(self, names: Sequence[str], seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until boards are ready or have told why they are not; tell about each."""
        left, deadline = list(names), time.monotonic() + seconds
        with self._changed:
            while left and time.monotonic() < deadline:
                for name in left[:]:
                    board = self.leases.slot(name).board
                    if board.settled or board.fault:
                        left.remove(name)
                        tell(f"{name}: {board.fault.message if board.fault else 'serves'}")
                self._changed.wait(0.5)

    def remove(self, names: Sequence[str]) -> None:
        """End to serve boards, whoever has them, and wait until that is done."""
        with self._changed:
            gone = [self._slots.pop(name) for name in names if name in self._slots]
            for slot in gone:
                self.leases.withdraw(slot, served_no_longer(slot.name), for_good=False)
            boards = [slot.board for slot in gone]
        for board in boards:
            board.stop()
        deadline = time.monotonic() + _JOIN_S
        for board in boards:
            board.join(deadline - time.monotonic())

    # --- sessions ---

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
                slot = self.leases.slot(name)
                check_key(slot, key)
                left = deadline - time.monotonic()
                if slot.board.settled:
                    return slot.board
                if left <= 0 and slot.board.is_busy:  # its lock was lost; it may be had again later
                    raise DeviceError(f"the lock of {name} was lost", details=not_now(slot).message)
                if left <= 0:
                    return slot.board
                self._changed.wait(min(left, 0.5))

    # --- locks ---

    def lock(self, name: str, client: Client, seconds: float) -> Message:
        """Keep a board from everybody for some time; one that is lost just now is locked when it is back.

        Raises:
            BusyError: Somebody has it.
        """
        with self._changed:
            slot = self.leases.slot(name)
            if slot.is_taken():
                raise not_now(slot)
            now = time.time()
            hold = Hold(client, "locked", now, now + seconds)
            slot.give(hold, "")
            deadline = time.monotonic() + _SETTLE_S
            while not slot.board.settled and not slot.board.is_busy and slot.board.state == "ready":
                if time.monotonic() > deadline:
                    break
                self._changed.wait(0.5)
            if slot.board.is_busy:
                fault = not_now(slot)
                slot.take_back()
                raise fault
            return {"board": name, "until": hold.until}

    def release(self, name: str) -> Message | None:
        """End a lock or a lease, and the session of that; who had the lease does not get another.

        Returns:
            Who had the board; None if nobody had.
        """
        with self._changed:
            slot = self.leases.slot(name)
            found = self._released(slot)
        self.leases.await_freed([slot])
        return found

    def _released(self, slot: Slot) -> Message | None:
        hold = slot.hold
        if hold is None:
            return None
        _LOG.info("%s: %s until now; released", slot.board.served.name, hold)
        self.leases.withdraw(slot, released(slot.name), for_good=True)
        return hold.message()

    def expire(self) -> None:
        """End the locks whose time is over, and the leases whose clients are gone; share out what is free."""
        with self._changed:
            for slot in self._slots.values():
                if slot.hold and slot.hold.until and time.time() > slot.hold.until:
                    self._released(slot)
        self.leases.expire()

    # --- status ---

    def status(self) -> Message:
        """Tell about every board and of who waits for one; no secrets are told, and no device is asked."""
        with self._changed:
            boards = [described(slot, self.leases.heard_s(slot)) for slot in self._slots.values()]
            return {"boards": boards, "queue": self.leases.queue()}
