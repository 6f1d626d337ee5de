"""Who has a board of the farm, under which key, and what others are told of that."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolchain.device.lock import Owner, new_token
from toolchain.errors import BusyError, DeviceError, ToolchainError
from toolchain.farm.board_lock import Claim
from toolchain.farm.protocol import Message, fault_message
from toolchain.farm.served_board import KeptBoard


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
class Grant:
    """The boards that a client got.

    Attributes:
        hold: Why nobody else gets them.
        keys: For each board the key of its sessions.
        boards: What the client is told.
    """

    hold: Hold
    keys: Mapping[str, str] = field(repr=False)
    boards: tuple[Message, ...] = field(repr=False)


@dataclass
class Slot:
    """A board, who has it, and what its clients reported."""

    board: KeptBoard
    hold: Hold | None = None
    key: str = field(default="", repr=False)
    taken_back: list[str] = field(default_factory=list, repr=False)
    trial: Message | None = None
    celsius: float | None = None
    failures: int = 0
    quarantined: bool = False

    def state(self) -> str:
        """Name its state in one word."""
        if self.board.state != "ready":
            return "busy" if self.board.is_busy else self.board.state
        if self.hold:
            return "quarantined" if self.quarantined else self.hold.kind
        return "busy" if self.board.session_since else "free"

    def is_free(self) -> bool:
        """Tell whether it may be given away."""
        return self.state() == "free" and self.board.settled

    def may_be_free_soon(self) -> bool:
        """Tell whether it is worth to wait for it."""
        return self.is_about_to_be_free() or self.board.state != "ready"

    def is_about_to_be_free(self) -> bool:
        """Tell whether its last client has just left it."""
        return self.hold is None and self.board.state == "ready" and not self.is_free()

    def give(self, hold: Hold, key: str, end: str) -> None:
        """Let a client have sessions with it under a key, or none without a key, and nobody else.

        Args:
            hold: Who has it now.
            key: The key; empty for none.
            end: The command that takes it back, for others who find the device locked.
        """
        self.hold, self.key, self.failures, self.quarantined = hold, key, 0, False
        self.board.offer(Claim(hold.owner(end), key or None, hold.within), quiet=bool(key))

    def take_back(self) -> None:
        """End what its client has, and what that left running."""
        self.hold, self.key, self.quarantined = None, "", False
        self.board.offer(Claim())
        self.board.cut()


def described(slot: Slot, celsius: float | None) -> Message:
    """Return what `farm status` tells of a board."""
    board, hold = slot.board, slot.hold
    served, session = board.served, board.session_since
    found: dict[str, Any] = {
        "name": served.name,
        "board": served.board,
        "host": served.host,
        "adb_server": served.adb_server,
        "emulated": served.emulated,
        "state": slot.state(),
        "hold": hold.message() if hold else None,
        "session_since": session,
        "trial": slot.trial,
        "celsius": celsius if celsius is not None else slot.celsius,
        "failures": slot.failures,
        "fault": fault_message(board.fault) if board.fault else None,
    }
    return found


def granted(slot: Slot, keys: Mapping[str, str]) -> Message:
    """Return what the client of a lease is told of a board."""
    served = slot.board.served
    within = slot.hold.within if slot.hold else ""
    told = {"name": served.name, "board": served.board, "emulated": served.emulated}
    return {**told, "key": keys[served.name], "within": within}


def check_key(slot: Slot, key: str) -> None:
    """Refuse a key that is not that of the board's lease; how long that takes tells nothing about the right one."""
    name = slot.board.served.name
    if slot.key and hmac.compare_digest(slot.key.encode(), key.encode()):
        return
    if any(hmac.compare_digest(one.encode(), key.encode()) for one in slot.taken_back):
        raise BusyError(
            f"the lease of {name} was ended by its owner",
            details="with `toolchain farm release`",
            hint="lease the board again: `toolchain farm status` shows who has it",
        )
    raise DeviceError(f"{name} is not leased under this key", hint="toolchain farm status")


def not_now(slot: Slot) -> ToolchainError:
    """Return the error for a board that somebody has."""
    name = slot.board.served.name
    if slot.board.is_busy and slot.board.fault:
        return slot.board.fault
    if slot.hold:
        return BusyError(f"{name} is {slot.hold}", hint=f"toolchain farm release {name}", owner=slot.hold.client.who)
    return BusyError(f"the last session on {name} has not ended yet", hint="toolchain farm status")
