"""Leases of a farm's boards: who waits for them, who shares them, and how they end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from toolchain.errors import BusyError, DeviceError, InputError, ToolchainError, did_you_mean
from toolchain.farm.grants import Slot, grant_message
from toolchain.farm.lease_queue import AssignableBoard, LeaseRequest, allocate
from toolchain.farm.protocol import EXPIRE_S, Message, fault_message
from toolchain.farm.refusals import expired, none_free, not_now, reserved, taken_back
from toolchain.rpc.server import new_key

_LOG = logging.getLogger(__name__)

_SETTLE_S = 5.0
_NOTICE_S = 2.0  # a client that was killed just now may not be noticed yet
_POLL_S = 0.5
_REPORT_S = 5.0
_REST_S = 30.0  # a look at the device costs time there, where others may be measuring
_EXPIRED = "its client gave no sign of life"

Tell = Callable[[Message], None]


def _tell_nobody(_message: Message) -> None:
    pass


class Leasing:
    # `changed` is held for every change of the slots, and notified after it.
    def __init__(self, slots: Mapping[str, Slot], changed: threading.Condition) -> None:
        self._slots = slots
        self._changed = changed
        self._requests: list[LeaseRequest] = []
        self._inside: list[LeaseRequest] = []  # of clients that use the boards of a process they descend from

    @contextmanager
    def lease(
        self,
        request: LeaseRequest,
        wait: float,
        ancestors: Collection[int] = (),
        queue_s: float = 0.0,
        tell: Tell = _tell_nobody,
    ) -> Iterator[tuple[Message, ...]]:
        """Let a client have boards for the time of a block; yield what the client is sent about its first boards.

        Args:
            request: What it requests.
            wait: Seconds that boards may take that are on their way: lost ones, or just given back.
            ancestors: The processes that the client descends from. It may use what one of those has.
            queue_s: Seconds that it waits for boards that others have, in the order of the requests.
            tell: Gets the error that names whom the client waits for.

        Raises:
            InputError: There is no such board.
            BusyError: None is free, or one that was named is not.
            DeviceError: None can be reached, or one that was named cannot.
        """
        request.patient = queue_s > 0
        with self._changed:
            shared = self._boards_of_ancestor(request, ancestors)
            if shared and shared[0].grant:
                request.grant = shared[0].grant
        registered = self._inside if shared else self._requests
        try:
            with self._changed:
                registered.append(request)
                slots = shared or self._await_boards(request, wait, queue_s, tell)
            self._await_keys(request, slots, max(wait, queue_s), tell if queue_s else _tell_nobody)
            with self._changed:
                usable = shared or [slot for slot in request.boards if slot.board.settled or not request.shares]
                if not usable:
                    raise taken_back()
                request.served, request.announced = True, {slot.name for slot in usable}
                messages = tuple(grant_message(slot) for slot in usable)
            yield messages
        finally:
            with self._changed:
                slots = self._give_all_back(request)
                registered.remove(request)
            self.await_freed(slots)

    def _await_boards(self, request: LeaseRequest, wait: float, queue_s: float, tell: Tell) -> list[Slot]:
        """Wait until boards that are assigned to a request are free, and give them to it."""
        began = time.monotonic()
        arriving_until = began + wait
        waits_until = began + queue_s if queue_s else min(arriving_until, began + _NOTICE_S)
        report = _WaitReporter(tell)
        while True:
            _check(request)
            candidates = self._candidates(request)
            allocation = allocate(self._requests, self._assignable())
            assigned = [self._slots[name] for name, client in allocation.items() if client is request]
            assigned = [slot for slot in assigned if slot.grant is None]
            if request.names and len(assigned) < len(request.names):
                assigned = []  # all that it named, or none
            now = time.monotonic()
            arriving = any(slot.may_be_free_soon() for slot in candidates)
            remaining = (max(arriving_until, waits_until) if arriving else waits_until) - now
            # Boards that their last clients are just leaving are waited for, so that this lease gets them, too.
            leaving = now < arriving_until and any(slot.is_about_to_be_free() for slot in candidates)
            if assigned and not (leaving and remaining > 0):
                request.begin()
                for slot in assigned:
                    self._give(request, slot)
                return assigned
            if remaining <= 0 or not candidates:
                raise self._refusal(request, candidates)
            self.share_out()
            if queue_s:
                report(self._queue_notice(request, candidates))
            self._changed.wait(min(remaining, _POLL_S))

    def _give(self, request: LeaseRequest, slot: Slot) -> None:
        request.boards.append(slot)
        slot.give(request.grant, new_key())

    def _refusal(self, request: LeaseRequest, candidates: Sequence[Slot]) -> ToolchainError:
        """Return the error that says why a request has no boards."""
        others = [slot for slot in candidates if not slot.is_free()]
        if others or not candidates:
            return none_free(request.kind, request.names, others)
        first = next((other.client.who for other in self._waiting() if other is not request), "others")
        return reserved(request.kind, request.names, first)

    def _queue_notice(self, request: LeaseRequest, candidates: Sequence[Slot]) -> ToolchainError:
        """Return the error that names whom a client waits for, and its position in the queue."""
        fault = self._refusal(request, candidates)
        owner = fault.owner if isinstance(fault, BusyError) else ""
        boards = [(slot.name, slot.board.served.board) for slot in candidates]
        # Only those count that wait for some of the same boards.
        line = [other for other in self._waiting() if any(other.wants(*board) for board in boards)]
        suffix = f": {owner}" if owner and owner not in fault.message else ""
        text = f"{fault.message}{suffix}; place {line.index(request) + 1} of {len(line)} in the queue"
        return BusyError(text, details=fault.details, hint=fault.hint, owner=owner)

    def _waiting(self) -> list[LeaseRequest]:
        return [request for request in self._requests if request.waiting]

    def _boards_of_ancestor(self, request: LeaseRequest, ancestors: Collection[int]) -> list[Slot]:
        """Find the boards of a process that the client descends from, as under `farm lock NAME -- CMD`."""
        candidates = self._candidates(request)
        inherited = [slot for slot in candidates if slot.grant and slot.key and slot.grant.client.pid in ancestors]
        shared = [slot for slot in inherited if slot.grant is inherited[0].grant]
        return shared if not request.names or len(shared) == len(candidates) else []

    def _candidates(self, request: LeaseRequest) -> list[Slot]:
        for name in request.names:
            self.slot(name)
        return [slot for name, slot in self._slots.items() if request.wants(name, slot.board.served.board)]

    def slot(self, name: str) -> Slot:
        if name not in self._slots:
            raise InputError(
                f"the farm does not serve board {name!r}",
                details="boards of the farm: " + (", ".join(self._slots) or "none"),
                hint=did_you_mean(name, self._slots) or f"toolchain farm up {name}",
            )
        return self._slots[name]

    def _await_keys(self, request: LeaseRequest, slots: Sequence[Slot], wait: float, tell: Tell) -> None:
        """Wait until devices are locked and servers have the keys; boards that others are at work on are given back.

        A board that is lost or frozen just now gets its key when it is back.

        Raises:
            BusyError: Others are at work on all of them, or on one where all are requested.
            DeviceError: No board server answers.
        """
        began = time.monotonic()
        deadline, settled_by = began + wait, began + _SETTLE_S
        report = _WaitReporter(tell)
        with self._changed:
            while True:
                _check(request)
                busy = [slot for slot in slots if slot.board.is_busy]
                settled = [slot for slot in slots if slot.board.settled]
                arriving = [slot for slot in slots if slot not in busy + settled and slot.board.state != "lost"]
                wait_for_busy = busy and (request.names or not settled)
                remaining = max(deadline * bool(wait_for_busy), settled_by * bool(arriving)) - time.monotonic()
                if remaining <= 0:
                    break
                if wait_for_busy:
                    report(not_now(busy[0]))
                self._changed.wait(min(remaining, _POLL_S))
                if wait_for_busy:  # the server gets the key only after the lock, so its time begins then
                    settled_by = max(settled_by, min(time.monotonic(), deadline) + _SETTLE_S)
            if busy and (request.names or not settled):
                raise not_now(busy[0])
            if not settled:
                raise DeviceError("no board server answers", hint="toolchain farm status")
            for slot in busy:
                self._rest(request, slot)

    def _rest(self, request: LeaseRequest, slot: Slot) -> None:
        """Give back a board that others are at work on; it is tried again later."""
        if slot in request.boards:
            self._give_back(request, slot)
            slot.rests_until = time.monotonic() + _REST_S

    def await_freed(self, slots: Sequence[Slot]) -> None:
        """Wait until the locks of boards that were given back are free: a client may deploy to them next."""
        deadline = time.monotonic() + _SETTLE_S
        with self._changed:
            while not all(slot.grant or slot.board.settled or slot.board.state != "ready" for slot in slots):
                if time.monotonic() > deadline:
                    break
                self._changed.wait(_POLL_S)

    def _give_all_back(self, request: LeaseRequest) -> list[Slot]:
        boards = list(request.boards)
        for slot in boards:
            self._give_back(request, slot)
        if request in self._requests and request.end_reason != _EXPIRED:
            for slot in self._slots.values():
                slot.revoked = [key for key in slot.revoked if key.grant is not request.grant]
        self._changed.notify_all()
        return boards

    def _give_back(self, request: LeaseRequest, slot: Slot) -> None:
        self._forget(request, slot)
        if slot.grant is request.grant:
            slot.take_back()

    def _forget(self, request: LeaseRequest, slot: Slot) -> None:
        request.boards.remove(slot)
        request.announced.discard(slot.name)
        request.recalled.discard(slot.name)

    def _assignable(self, *, rested: bool = False) -> dict[str, AssignableBoard]:
        """Return the boards that may be assigned; where `rested`, without those that are to rest."""
        now, boards = time.monotonic(), {}
        for name, slot in self._slots.items():
            holder = self._holder(slot)
            free = slot.is_free() and not (rested and now < slot.rests_until)
            if free or (holder is not None and holder.sharing):
                boards[name] = AssignableBoard(slot.board.served.board, holder)
        return boards

    def _holder(self, slot: Slot) -> LeaseRequest | None:
        if slot.grant is None:
            return None
        return next((request for request in self._requests if request.grant is slot.grant), None)

    def share_out(self) -> None:
        """Give sharing clients the boards assigned to them, and recall boards assigned to others."""
        sharing = [request for request in self._requests if request.sharing]
        if not sharing:
            return
        for name, request in allocate(self._requests, self._assignable(rested=True)).items():
            slot = self._slots[name]
            holder = self._holder(slot)
            if holder is None and request.sharing:
                self._give(request, slot)
            elif holder is not None and holder is not request:
                self._recall(holder, slot)
        for request in sharing:
            for slot in list(request.boards):
                self._announce(request, slot)

    def _recall(self, request: LeaseRequest, slot: Slot) -> None:
        if slot.name not in request.announced:
            self._give_back(request, slot)
        elif slot.name not in request.recalled:
            request.recalled.add(slot.name)
            request.outbox.put({"give": slot.name})

    def _announce(self, request: LeaseRequest, slot: Slot) -> None:
        """Send the client one more board once it can be used; one that cannot goes back."""
        if slot.name in request.announced:
            return
        if slot.board.settled:
            request.announced.add(slot.name)
            request.outbox.put({"joined": grant_message(slot)})
        elif slot.board.is_busy:
            self._rest(request, slot)
        elif slot.board.state != "ready":
            self._give_back(request, slot)

    def hear(self, request: LeaseRequest, message: Message) -> None:
        """Take a message of a lease's client; any message is a sign of life."""
        with self._changed:
            request.last_seen = time.monotonic()
            for topic, body in message.items():
                slot = self._slots.get(str(body.get("board"))) if isinstance(body, dict) else None
                if slot is not None and slot.grant is request.grant:
                    self._handle(request, slot, topic, body)

    def _handle(self, request: LeaseRequest, slot: Slot, topic: str, body: Message) -> None:
        if topic == "trial":
            slot.trial = {**body, "time": time.time()}
            slot.celsius = body.get("celsius") or slot.celsius
        elif topic == "state":
            slot.failures, slot.quarantined = int(body["failures"]), body["state"] == "quarantined"
            # A quarantined board is not measured on, so the daemon may check its health.
            slot.board.rest(quiet=not slot.quarantined)
        elif topic == "given" and slot in request.boards:
            if body.get("for_good"):
                request.refused.add(slot.name)
            self._give_back(request, slot)
            self.share_out()
            self._changed.notify_all()

    def end(self, request: LeaseRequest, reason: str) -> None:
        with self._changed:
            request.end(reason)
            self._changed.notify_all()

    def expire(self) -> None:
        """End the leases whose clients give no sign of life, and share out the boards."""
        with self._changed:
            for request in [each for each in self._requests + self._inside if each.silent and each.end_reason is None]:
                _LOG.info("%s gave no sign of life for %d s; its lease is over", request.client.who, EXPIRE_S)
                fault = expired()
                for slot in list(request.boards):
                    self._forget(request, slot)
                    slot.withdraw(fault)
                request.outbox.put({"over": fault_message(fault)})
                request.end(_EXPIRED)
                self._changed.notify_all()
            self.share_out()

    def withdraw(self, slot: Slot, fault: BusyError, *, for_good: bool) -> None:
        """Take a board back and send its holder `fault`; `for_good` if this lease never gets it again."""
        request = self._holder(slot)
        slot.withdraw(fault)
        if request is not None and slot in request.boards:
            self._forget(request, slot)
            if for_good:
                request.refused.add(slot.name)
            request.outbox.put({"lost": {"board": slot.name, "fault": fault_message(fault)}})
        self._changed.notify_all()

    def heard_s(self, slot: Slot) -> float | None:
        """Return the seconds since the last sign of life of a board's holder; None for a lock, which needs none."""
        request = self._holder(slot)
        return None if request is None else round(time.monotonic() - request.last_seen, 1)

    def queue(self) -> list[Message]:
        """Report the waiting clients, in the order of their requests."""
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


class _WaitReporter:
    """Reports every few seconds whom a client waits for."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._next = tell, 0.0

    def __call__(self, fault: ToolchainError) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_S
            self._tell({"wait": fault_message(fault)})


def _check(request: LeaseRequest) -> None:
    if request.end_reason is not None:
        raise DeviceError(f"the client that requested boards has ended: {request.end_reason}")
