"""Who has a board of the farm, under which key, and what others are told of that."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from toolchain.device.lock import Owner, new_token
from toolchain.errors import BusyError, DeviceError
from toolchain.farm.board_lock import Claim
from toolchain.farm.protocol import Message, fault_message
from toolchain.farm.served_board import KeptBoard

_MOST_WITHDRAWN = 32


@dataclass(frozen=True)
class Client:
    """Who asks for boards.

    Attributes:
        who: A name for others.
        pid: Its process.
    """

    who: str
    pid: int = 0


@dataclass(frozen=True, eq=False)
class Hold:
    """Who has a board, and until when; without an end, until its connection ends."""

    client: Client
    kind: Literal["leased", "locked"]
    since: float
    until: float | None = None
    within: str = field(default_factory=new_token, repr=False)

    def owner(self, end: str) -> Owner:
        """Return in whose name the lock on the device is held.

        Args:
            end: The command that ends this.
        """
        who, _, what = self.client.who.partition(": ")
        return Owner(who, what or f"toolchain farm lock{self._end()}", end)

    def _end(self) -> str:
        return f" until {time.strftime('%H:%M', time.localtime(self.until))}" if self.until else ""

    def __str__(self) -> str:
        return f"{self.kind} by {self.client.who}{self._end()}"

    def message(self) -> Message:
        """Return it as JSON."""
        return {"who": self.client.who, "kind": self.kind, "since": self.since, "until": self.until}


@dataclass(frozen=True)
class Withdrawn:
    """A key that counts no more though its client has not given the board back.

    Attributes:
        key: The key.
        hold: Whose it was.
        why: What its client is told.
    """

    key: str = field(repr=False)
    hold: Hold
    why: BusyError


@dataclass
class Slot:
    """A board, who has it, and what its clients reported.

    Attributes:
        end: The command that takes it back, for others who find the device locked; empty if there is none.
        rests_until: Until when nobody is given it, by a clock that nobody sets: others were at work on it just now.
    """

    board: KeptBoard
    end: str = ""
    hold: Hold | None = None
    key: str = field(default="", repr=False)
    withdrawn: list[Withdrawn] = field(default_factory=list, repr=False)
    rests_until: float = 0.0
    trial: Message | None = None
    celsius: float | None = None
    failures: int = 0
    quarantined: bool = False

    @property
    def name(self) -> str:
        """The board's name."""
        return self.board.served.name

    def state(self) -> str:
        """Name its state in one word."""
        if self.board.state != "ready":
            return "busy" if self.board.is_busy else self.board.state
        if self.hold:
            return "quarantined" if self.quarantined else self.hold.kind
        return "busy" if self.board.session_since or self.board.occupied else "free"

    def is_free(self) -> bool:
        """Tell whether it may be given away; whether others are at work on it shows when its lock is taken."""
        board = self.board
        return board.state == "ready" and not self.hold and not board.session_since and board.settled

    def is_taken(self) -> bool:
        """Tell whether somebody is known to have it, or to be at work on it."""
        board = self.board
        return bool(self.hold or board.session_since or (board.state != "ready" and board.is_busy))

    def may_be_free_soon(self) -> bool:
        """Tell whether it is worth to wait for it."""
        return self.is_about_to_be_free() or self.board.state != "ready"

    def is_about_to_be_free(self) -> bool:
        """Tell whether its last client has just left it."""
        return self.hold is None and self.board.state == "ready" and not self.is_free()

    def give(self, hold: Hold, key: str) -> None:
        """Let a client have sessions with it under a key, or none without a key, and nobody else."""
        self.hold, self.key, self.failures, self.quarantined = hold, key, 0, False
        self.board.offer(Claim(hold.owner(self.end), key or None, hold.within), quiet=bool(key))

    def take_back(self) -> None:
        """End what its client has, and what that left running."""
        self.hold, self.key, self.quarantined = None, "", False
        self.board.offer(Claim())
        self.board.cut()

    def withdraw(self, why: BusyError) -> None:
        """Take it back before its client has given it back, who is told why when it comes for a session."""
        if self.hold and self.key:
            self.withdrawn = [*self.withdrawn[1 - _MOST_WITHDRAWN :], Withdrawn(self.key, self.hold, why)]
        self.take_back()


def described(slot: Slot, heard_s: float | None) -> Message:
    """Return what `farm status` tells of a board.

    Args:
        slot: The board.
        heard_s: How many seconds ago its client gave a sign of life; None if it need not.
    """
    board, hold = slot.board, slot.hold
    served, session = board.served, board.session_since
    fault = board.fault or (None if hold else board.occupied)
    found: dict[str, Any] = {
        "name": served.name,
        "board": served.board,
        "host": served.host,
        "adb_server": served.adb_server,
        "emulated": served.emulated,
        "state": slot.state(),
        "served": board.state == "ready",
        "hold": {**hold.message(), "heard_s": heard_s} if hold else None,
        "session_since": session,
        "trial": slot.trial,
        "celsius": board.celsius if board.celsius is not None and not hold else slot.celsius,
        "failures": slot.failures,
        "fault": fault_message(fault) if fault else None,
    }
    return found


def granted(slot: Slot) -> Message:
    """Return what the client of a lease is told of a board."""
    served = slot.board.served
    within = slot.hold.within if slot.hold else ""
    told = {"name": served.name, "board": served.board, "emulated": served.emulated}
    return {**told, "key": slot.key, "within": within}


def check_key(slot: Slot, key: str) -> None:
    """Refuse a key that is not that of the board's lease; how long that takes tells nothing about the right one."""
    if slot.key and hmac.compare_digest(slot.key.encode(), key.encode()):
        return
    for one in slot.withdrawn:
        if hmac.compare_digest(one.key.encode(), key.encode()):
            raise one.why
    raise DeviceError(f"{slot.name} is not leased under this key", hint="toolchain farm status")
