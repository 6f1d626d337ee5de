"""Who asks the farm for boards, in which order, and which boards are due to whom."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolchain.farm.holds import Client, Hold, Slot
from toolchain.farm.protocol import EXPIRE_S, Message


@dataclass(eq=False)
class Ask:
    """What a client wants, and what it has of it by now.

    Attributes:
        client: The client.
        kind: Board type; empty for any.
        names: The boards, all of them or none; empty for any of the type.
        most: How many boards at most; 0 for all.
        shares: Whether it takes boards whenever there are some, and gives some back where others wait.
        patient: Whether it stands in the line until others give boards back, and does not go without what is free.
        since: When it asked, in seconds since 1970.
        hold: Why nobody else gets its boards.
        served: Whether its client was told of its first boards.
        boards: The boards that it has.
        told: Names of those that its client knows of.
        asked_back: Names of those that its client was asked to give back.
        refused: Names of those that it is never given again.
        heard: When its client gave the last sign of life, by a clock that nobody sets.
        ended: Why it is over; None while it is not.
        outbox: What is to be said to its client; None ends that.
    """

    client: Client
    kind: str
    names: tuple[str, ...] = ()
    most: int = 0
    shares: bool = False
    patient: bool = False
    since: float = field(default_factory=time.time)
    hold: Hold = field(init=False)
    served: bool = False
    boards: list[Slot] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    asked_back: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    heard: float = field(default_factory=time.monotonic)
    ended: str | None = None
    outbox: queue.SimpleQueue[Message | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.names = tuple(dict.fromkeys(self.names))
        self.begin()

    def begin(self) -> None:
        """Let it have boards from now on."""
        self.hold = Hold(self.client, "leased", time.time())

    @property
    def waiting(self) -> bool:
        """Whether it has no boards yet."""
        return self.ended is None and not self.served and not self.boards

    @property
    def sharing(self) -> bool:
        """Whether it may be given more boards, and asked for some."""
        return self.ended is None and self.served and self.shares

    @property
    def silent(self) -> bool:
        """Whether its client gave no sign of life for too long."""
        return time.monotonic() - self.heard > EXPIRE_S

    def wants(self, name: str, kind: str) -> bool:
        """Tell whether a board is one of those that it asks for."""
        return name not in self.refused and (name in self.names if self.names else self.kind in {"", kind})

    def end(self, why: str) -> None:
        """Let it be over."""
        self.ended = self.ended or why
        self.outbox.put(None)


@dataclass(frozen=True)
class InPlay:
    """A board that may be given to somebody: it is free, or somebody has it who shares.

    Attributes:
        kind: Its board type.
        holder: Who has it; None if it is free.
    """

    kind: str
    holder: Ask | None = None


def due(asks: Sequence[Ask], boards: Mapping[str, InPlay]) -> dict[str, Ask]:
    """Say to whom boards are due.

    Who shares and has boards keeps one. Then everybody who has none gets one, or those that are named, in the order of
    asking; and what is left is dealt out one by one, in the same order, until everybody has as many as they want. What
    others have is due to nobody who would not wait for it.

    Args:
        asks: All that are not over, the oldest first.
        boards: The boards in play by name.

    Returns:
        By the name of a board who is to have it; those that nobody is to have are left out.
    """
    return _Deal(asks, boards).dealt()


class _Deal:
    def __init__(self, asks: Sequence[Ask], boards: Mapping[str, InPlay]) -> None:
        self._waiting = [ask for ask in asks if ask.waiting]
        self._sharing = [ask for ask in asks if ask.sharing]
        self._open = [ask for ask in asks if not ask.names and (ask.waiting or ask.sharing)]
        self._boards = boards
        self._found: dict[str, Ask] = {}

    def dealt(self) -> dict[str, Ask]:
        named = {name for ask in self._waiting for name in ask.names}
        for ask in self._sharing:
            own = [name for name, board in self._boards.items() if board.holder is ask]
            self._give(ask, sorted(own, key=named.__contains__)[:1])
        for ask in self._waiting:
            self._give(ask, self._all_named(ask) if ask.names else self._next(ask))
        while sum(self._give(ask, self._next(ask)) for ask in self._open):
            pass  # one more round
        return self._found

    def _give(self, ask: Ask, names: Iterable[str]) -> bool:
        given = dict.fromkeys(names, ask)
        self._found |= given
        return bool(given)

    def _all_named(self, ask: Ask) -> Sequence[str]:
        free = [name for name in ask.names if self._may_be_given(name, ask)]
        return free if len(free) == len(ask.names) else []

    def _next(self, ask: Ask) -> Sequence[str]:
        """Return one more board for somebody: the first of its own or of the free ones, or the last of others'."""
        if ask.most and sum(one is ask for one in self._found.values()) >= ask.most:
            return []
        left = [
            (self._distance(ask, board, place), name)
            for place, (name, board) in enumerate(self._boards.items())
            if self._may_be_given(name, ask) and ask.wants(name, board.kind)
        ]
        return [min(left)[1]] if left else []

    def _may_be_given(self, name: str, ask: Ask) -> bool:
        board = self._boards.get(name)
        if board is None or name in self._found:
            return False
        return board.holder in {None, ask} or ask.served or ask.patient

    def _distance(self, ask: Ask, board: InPlay, place: int) -> tuple[int, int]:
        if board.holder is ask:
            return 0, place
        return (1, place) if board.holder is None else (2, -place)
