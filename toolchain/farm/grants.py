"""The grants of the farm's boards: who has a board, under which key, and its status."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass, field
from typing import Literal

from toolchain.device.lock import Owner, new_token
from toolchain.errors import BusyError, DeviceError
from toolchain.farm.protocol import Message, fault_message
from toolchain.farm.served_board import Claim, ServedBoard

_MAX_REVOKED = 32  # a client that never returns for a session must not make this grow


@dataclass(frozen=True)
class Client:
    """A process that requests boards, and its name for others."""

    who: str
    pid: int = 0


@dataclass(frozen=True, eq=False)
class Grant:
    """A client's right to a board, until a time, or until its connection ends."""

    client: Client
    kind: Literal["leased", "locked"]
    since: float
    until: float | None = None
    within: str = field(default_factory=new_token, repr=False)

    def owner(self, end: str) -> Owner:
        """Return the owner of the device's lock; `end` is the command that ends it."""
        who, _, purpose = self.client.who.partition(": ")
        return Owner(who, purpose or f"toolchain farm lock{self._until()}", end)

    def _until(self) -> str:
        return f" until {time.strftime('%H:%M', time.localtime(self.until))}" if self.until else ""

    def __str__(self) -> str:
        return f"{self.kind} by {self.client.who}{self._until()}"

    def message(self) -> Message:
        return {"who": self.client.who, "kind": self.kind, "since": self.since, "until": self.until}


@dataclass(frozen=True)
class RevokedKey:
    """A key that is not valid any more, although its client has not returned the board."""

    key: str = field(repr=False)
    grant: Grant
    reason: BusyError  # the error that its client gets


@dataclass
class Slot:
    """A board, its grant, and the reports of its clients."""

    board: ServedBoard
    end: str = ""  # command that releases it, for others who find the device locked; empty if there is none
    grant: Grant | None = None
    key: str = field(default="", repr=False)
    revoked: list[RevokedKey] = field(default_factory=list, repr=False)
    rests_until: float = 0.0  # by `time.monotonic`; it is not assigned before, because other users were using it
    trial: Message | None = None
    celsius: float | None = None
    failures: int = 0
    quarantined: bool = False

    @property
    def name(self) -> str:
        return self.board.served.name

    def state(self) -> str:
        if self.board.state != "ready":
            return "busy" if self.board.is_busy else self.board.state
        if self.grant:
            return "quarantined" if self.quarantined else self.grant.kind
        return "busy" if self.board.session_since or self.board.occupied else "free"

    def is_free(self) -> bool:
        """Whether it may be assigned; whether other users are using the device shows only when its lock is taken."""
        board = self.board
        return board.state == "ready" and not self.grant and not board.session_since and board.settled

    def is_taken(self) -> bool:
        """Whether a client has it, or is known to use it."""
        board = self.board
        return bool(self.grant or board.session_since or (board.state != "ready" and board.is_busy))

    def may_be_free_soon(self) -> bool:
        """Whether it is worth waiting for."""
        return self.is_about_to_be_free() or self.board.state != "ready"

    def is_about_to_be_free(self) -> bool:
        """Whether its last client has just left it."""
        return self.grant is None and self.board.state == "ready" and not self.is_free()

    def give(self, grant: Grant, key: str) -> None:
        """Give it to a client, whose sessions need the key; without a key there are no sessions."""
        self.grant, self.key, self.failures, self.quarantined = grant, key, 0, False
        self.board.offer(Claim(grant.owner(self.end), key or None, grant.within), quiet=bool(key))

    def take_back(self) -> None:
        """End its client's sessions and their processes."""
        self.grant, self.key, self.quarantined = None, "", False
        self.board.offer(Claim())
        self.board.cut()

    def withdraw(self, reason: BusyError) -> None:
        """Take it back before its client returns it; the client gets `reason` when it comes for a session."""
        if self.grant and self.key:
            self.revoked = [*self.revoked[1 - _MAX_REVOKED :], RevokedKey(self.key, self.grant, reason)]
        self.take_back()


def status_message(slot: Slot, heard_s: float | None) -> Message:
    """Return what `farm status` reports about a board; `heard_s`: seconds since its client's sign of life."""
    board, grant = slot.board, slot.grant
    served, session = board.served, board.session_since
    fault = board.fault or (None if grant else board.occupied)
    return {
        "name": served.name,
        "board": served.board,
        "host": served.host,
        "adb_server": served.adb_server,
        "emulated": served.emulated,
        "state": slot.state(),
        "served": board.state == "ready",
        "hold": {**grant.message(), "heard_s": heard_s} if grant else None,
        "session_since": session,
        "trial": slot.trial,
        "celsius": board.celsius if board.celsius is not None and not grant else slot.celsius,
        "failures": slot.failures,
        "fault": fault_message(fault) if fault else None,
    }


def grant_message(slot: Slot) -> Message:
    """Return the fields of a board that the client of its lease gets."""
    served = slot.board.served
    within = slot.grant.within if slot.grant else ""
    names = {"name": served.name, "board": served.board, "emulated": served.emulated}
    return {**names, "key": slot.key, "within": within}


def check_key(slot: Slot, key: str) -> None:
    # In constant time: the duration of a refusal must not depend on the right key.
    if slot.key and hmac.compare_digest(slot.key.encode(), key.encode()):
        return
    for revoked in slot.revoked:
        if hmac.compare_digest(revoked.key.encode(), key.encode()):
            raise revoked.reason
    raise DeviceError(f"{slot.name} is not leased under this key", hint="toolchain farm status")
