"""The clients that request boards of the farm, in order, and which board goes to whom."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolchain.farm.grants import Client, Grant, Slot
from toolchain.farm.protocol import EXPIRE_S, Message


@dataclass(eq=False)
class LeaseRequest:
    """A client's request for boards, and the boards that it has."""

    client: Client
    kind: str  # board type; empty for any
    names: tuple[str, ...] = ()  # all of these boards or none; empty for any of the type
    limit: int = 0  # boards at most; 0 for all
    shares: bool = False  # whether it takes boards whenever some are free, and returns some when others wait
    patient: bool = False  # whether it queues until others return boards
    since: float = field(default_factory=time.time)  # seconds since 1970
    grant: Grant = field(init=False)
    served: bool = False  # whether its client was sent its first boards
    boards: list[Slot] = field(default_factory=list)
    announced: set[str] = field(default_factory=set)  # boards that its client was sent
    recalled: set[str] = field(default_factory=set)  # boards that its client was requested to return
    refused: set[str] = field(default_factory=set)  # boards that it never gets again
    last_seen: float = field(default_factory=time.monotonic)
    end_reason: str | None = None  # None while it is not over
    outbox: queue.SimpleQueue[Message | None] = field(default_factory=queue.SimpleQueue)  # to its client; None ends it

    def __post_init__(self) -> None:
        self.names = tuple(dict.fromkeys(self.names))
        self.begin()

    def begin(self) -> None:
        """Start the time of its grant: when it gets its boards, not when it joined the queue."""
        self.grant = Grant(self.client, "leased", time.time())

    @property
    def waiting(self) -> bool:
        return self.end_reason is None and not self.served and not self.boards

    @property
    def sharing(self) -> bool:
        """Whether it may get more boards, and be requested to return some."""
        return self.end_reason is None and self.served and self.shares

    @property
    def silent(self) -> bool:
        return time.monotonic() - self.last_seen > EXPIRE_S

    def wants(self, name: str, kind: str) -> bool:
        return name not in self.refused and (name in self.names if self.names else self.kind in {"", kind})

    def end(self, reason: str) -> None:
        self.end_reason = self.end_reason or reason
        self.outbox.put(None)


@dataclass(frozen=True)
class AssignableBoard:
    """A board that is free, or whose holder shares; None for a free one."""

    kind: str
    holder: LeaseRequest | None = None


def allocate(requests: Sequence[LeaseRequest], boards: Mapping[str, AssignableBoard]) -> dict[str, LeaseRequest]:
    """Decide who gets which board, by the name of the board; boards that nobody gets are left out.

    A sharing client keeps one of its boards. Then each waiting client gets one board, or all that it named, in the
    order of their requests. The rest is dealt out one by one, in the same order, until each has as many as it
    requested. Boards of others only go to clients that would wait for them.

    Args:
        requests: All that are not over, the oldest first.
        boards: By name.
    """
    return _Allocation(requests, boards).run()


class _Allocation:
    def __init__(self, requests: Sequence[LeaseRequest], boards: Mapping[str, AssignableBoard]) -> None:
        self._waiting = [request for request in requests if request.waiting]
        self._sharing = [request for request in requests if request.sharing]
        self._open = [request for request in requests if not request.names and (request.waiting or request.sharing)]
        self._boards = boards
        self._assigned: dict[str, LeaseRequest] = {}

    def run(self) -> dict[str, LeaseRequest]:
        reserved = {name for request in self._waiting for name in request.names}
        for request in self._sharing:
            current = [name for name, board in self._boards.items() if board.holder is request]
            # It keeps one that nobody waits for by name, if it has such a board.
            self._assign(request, sorted(current, key=reserved.__contains__)[:1])
        for request in self._waiting:
            if not request.names:
                self._assign(request, self._next(request))
            elif all(self._may_assign(name, request) for name in request.names):
                self._assign(request, request.names)
        while sum(self._assign(request, self._next(request)) for request in self._open):
            pass  # one more round
        return self._assigned

    def _assign(self, request: LeaseRequest, names: Iterable[str]) -> bool:
        assigned = dict.fromkeys(names, request)
        self._assigned |= assigned
        return bool(assigned)

    def _next(self, request: LeaseRequest) -> Sequence[str]:
        """Return one more board for a client: the first of its own or of the free ones, or the last of others'."""
        if request.limit and sum(holder is request for holder in self._assigned.values()) >= request.limit:
            return []
        candidates = []
        for index, (name, board) in enumerate(self._boards.items()):
            if self._may_assign(name, request) and request.wants(name, board.kind):
                is_others = board.holder not in {None, request}
                candidates.append(((is_others, board.holder is None, -index if is_others else index), name))
        return [min(candidates)[1]] if candidates else []

    def _may_assign(self, name: str, request: LeaseRequest) -> bool:
        board = self._boards.get(name)
        if board is None or name in self._assigned:
            return False
        return board.holder in {None, request} or request.served or request.patient
