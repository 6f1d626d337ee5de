"""The queue of the clients that request boards of the farm, and the assignment of boards to them."""

from __future__ import annotations

import queue
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolchain.errors import BusyError, InputError, ToolchainError, did_you_mean
from toolchain.farm.grants import Client, Grant, Slot
from toolchain.farm.protocol import EXPIRE_S, Message
from toolchain.farm.refusals import none_free, reserved


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
    """Assign boards to clients; return the client for each board's name, without the boards that stay free.

    A sharing client keeps one of its boards. Then each waiting client gets one board, or all that it named, in the
    order of their requests. The remaining boards are assigned one at a time, in the same order, up to each client's
    limit. A board that another client has is assigned only to clients that would wait for it.

    Args:
        requests: All requests that have not ended, the oldest first.
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
            # If possible, it keeps a board that no waiting client has named.
            self._assign(request, sorted(current, key=reserved.__contains__)[:1])
        for request in self._waiting:
            if not request.names:
                self._assign(request, self._next(request))
            elif all(self._may_assign(name, request) for name in request.names):
                self._assign(request, request.names)
        # One board for each client in a round, until a round assigns nothing.
        while sum(self._assign(request, self._next(request)) for request in self._open):
            pass
        return self._assigned

    def _assign(self, request: LeaseRequest, names: Iterable[str]) -> bool:
        assigned = dict.fromkeys(names, request)
        self._assigned |= assigned
        return bool(assigned)

    def _next(self, request: LeaseRequest) -> Sequence[str]:
        """Return one more board for a client: its own first, then free ones, then those of others, the last first."""
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


class LeaseQueue:
    """The boards of a daemon, and the requests of its clients, the oldest first.

    It has no lock of its own: callers hold the pool's condition.
    """

    def __init__(self, slots: Mapping[str, Slot]) -> None:
        self.slots = slots
        self.requests: list[LeaseRequest] = []

    def slot(self, name: str) -> Slot:
        if name not in self.slots:
            raise InputError(
                f"the farm does not serve board {name!r}",
                details="boards of the farm: " + (", ".join(self.slots) or "none"),
                hint=did_you_mean(name, self.slots) or f"toolchain farm up {name}",
            )
        return self.slots[name]

    def candidates(self, request: LeaseRequest) -> list[Slot]:
        """Return the boards that a client could get at some time, or raise an InputError for an unknown name."""
        for name in request.names:
            self.slot(name)
        return [slot for name, slot in self.slots.items() if request.wants(name, slot.board.served.board)]

    def boards_of_ancestor(self, request: LeaseRequest, ancestors: Collection[int]) -> list[Slot]:
        """Return the boards of a process that the client descends from, as under `farm lock NAME -- CMD`."""
        candidates = self.candidates(request)
        inherited = [slot for slot in candidates if slot.grant and slot.key and slot.grant.client.pid in ancestors]
        shared = [slot for slot in inherited if slot.grant is inherited[0].grant]
        return shared if not request.names or len(shared) == len(candidates) else []

    def holder(self, slot: Slot) -> LeaseRequest | None:
        if slot.grant is None:
            return None
        return next((request for request in self.requests if request.grant is slot.grant), None)

    def allocate(self, *, rested: bool = False) -> dict[str, LeaseRequest]:
        """Assign the boards that are free or shared; with `rested`, without those whose rest is not over."""
        now, boards = time.monotonic(), {}
        for name, slot in self.slots.items():
            holder = self.holder(slot)
            is_free = slot.is_free() and not (rested and now < slot.rests_until)
            if is_free or (holder is not None and holder.sharing):
                boards[name] = AssignableBoard(slot.board.served.board, holder)
        return allocate(self.requests, boards)

    def free_boards(self, request: LeaseRequest) -> list[Slot]:
        """Return the boards that are assigned to a request and free now; none if only some of its named ones are."""
        assigned = [self.slots[name] for name, client in self.allocate().items() if client is request]
        free = [slot for slot in assigned if slot.grant is None]
        return [] if len(free) < len(request.names) else free

    def refusal(self, request: LeaseRequest, candidates: Sequence[Slot]) -> ToolchainError:
        """Return the error that explains why a request has no boards."""
        others = [slot for slot in candidates if not slot.is_free()]
        if others or not candidates:
            return none_free(request.kind, request.names, others)
        first = next((other.client.who for other in self._waiting() if other is not request), "others")
        return reserved(request.kind, request.names, first)

    def wait_notice(self, request: LeaseRequest, candidates: Sequence[Slot]) -> ToolchainError:
        """Return the error that names whom a client waits for, and its position in the queue."""
        fault = self.refusal(request, candidates)
        owner = fault.owner if isinstance(fault, BusyError) else ""
        boards = [(slot.name, slot.board.served.board) for slot in candidates]
        # Only those count that wait for some of the same boards.
        rivals = [other for other in self._waiting() if any(other.wants(*board) for board in boards)]
        suffix = f": {owner}" if owner and owner not in fault.message else ""
        text = f"{fault.message}{suffix}; place {rivals.index(request) + 1} of {len(rivals)} in the queue"
        return BusyError(text, details=fault.details, hint=fault.hint, owner=owner)

    def report(self) -> list[Message]:
        """Describe the waiting clients in order, for `farm status`."""
        return [
            {
                "place": position,
                "who": request.client.who,
                "board": request.kind,
                "names": list(request.names),
                "most": request.limit,
                "since": request.since,
            }
            for position, request in enumerate(self._waiting(), 1)
        ]

    def _waiting(self) -> list[LeaseRequest]:
        return [request for request in self.requests if request.waiting]
