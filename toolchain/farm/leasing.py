"""Leases of a farm's boards: they begin, share boards with others, and end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from toolchain.errors import BusyError, DeviceError, ToolchainError
from toolchain.farm.grants import Slot, grant_message
from toolchain.farm.lease_queue import LeaseQueue, LeaseRequest
from toolchain.farm.protocol import EXPIRE_S, Message, fault_message
from toolchain.farm.refusals import expired, not_now, taken_back
from toolchain.rpc.server import new_key

_LOG = logging.getLogger(__name__)

_SETTLE_S = 5.0
_NOTICE_S = 2.0  # it takes a moment until the end of a killed client is noticed
_POLL_S = 0.5
_REPORT_S = 5.0
_REST_S = 30.0  # checking a device takes time there, where others may be measuring
_EXPIRED = "its client gave no sign of life"

Tell = Callable[[Message], None]


def _ignore(_message: Message) -> None: ...


class Leasing:
    # `changed` is held for every change of the slots, and notified after it.
    def __init__(self, queue: LeaseQueue, changed: threading.Condition) -> None:
        self._queue = queue
        self._changed = changed
        self._inside: list[LeaseRequest] = []  # clients that use the boards of a process they descend from

    @contextmanager
    def lease(
        self,
        request: LeaseRequest,
        wait: float,
        ancestors: Collection[int] = (),
        queue_s: float = 0.0,
        tell: Tell = _ignore,
    ) -> Iterator[tuple[Message, ...]]:
        """Lease boards to a client during a block; yield the messages about its first boards.

        Args:
            request: The client's request.
            wait: Seconds to wait for boards that are lost or were just given back.
            ancestors: The client's ancestor processes; it may use the boards of one of them.
            queue_s: Seconds to wait in the queue for boards that others have.
            tell: Gets the error that names whom the client waits for.

        Raises:
            InputError: There is no such board.
            BusyError: No board is free, or a named one is not.
            DeviceError: No board can be reached, or a named one cannot.
        """
        request.patient = queue_s > 0
        with self._changed:
            shared = self._queue.boards_of_ancestor(request, ancestors)
            if shared and shared[0].grant:
                request.grant = shared[0].grant
        registered = self._inside if shared else self._queue.requests
        try:
            with self._changed:
                registered.append(request)
                slots = shared or self._await_boards(request, wait, queue_s, tell)
            self._await_keys(request, slots, max(wait, queue_s), tell if queue_s else _ignore)
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
            candidates = self._queue.candidates(request)
            assigned = self._queue.free_boards(request)
            now = time.monotonic()
            arriving = any(slot.may_be_free_soon() for slot in candidates)
            remaining = (max(arriving_until, waits_until) if arriving else waits_until) - now
            # Wait for boards that their last clients are just leaving, so that this lease gets them, too.
            leaving = now < arriving_until and any(slot.is_about_to_be_free() for slot in candidates)
            if assigned and not (leaving and remaining > 0):
                request.begin()
                for slot in assigned:
                    self._give(request, slot)
                return assigned
            if remaining <= 0 or not candidates:
                raise self._queue.refusal(request, candidates)
            self.share_out()
            if queue_s:
                report(self._queue.wait_notice(request, candidates))
            self._changed.wait(min(remaining, _POLL_S))

    def _give(self, request: LeaseRequest, slot: Slot) -> None:
        request.boards.append(slot)
        slot.give(request.grant, new_key())

    def _await_keys(self, request: LeaseRequest, slots: Sequence[Slot], wait: float, tell: Tell) -> None:
        """Wait until devices are locked and servers have the keys; boards that other users are using are given back.

        A board that is lost or frozen at the moment gets its key when it is back.

        Raises:
            BusyError: Other users are using all of them, or one where all are requested.
            DeviceError: No board server answers.
        """
        began = time.monotonic()
        deadline, settled_by = began + wait, began + _SETTLE_S
        report = _WaitReporter(tell)
        with self._changed:
            while True:
                _check(request)
                busy = [slot for slot in slots if slot.board.is_busy]
                ready = [slot for slot in slots if slot.board.settled]
                arriving = [slot for slot in slots if slot not in busy + ready and slot.board.state != "lost"]
                # Where any boards will do, those that are busy or lost are not worth waiting for once another is ready.
                wait_for_busy = busy and (request.names or not ready)
                wait_long = wait_for_busy or not ready
                remaining = max(deadline * bool(wait_long), settled_by * bool(arriving)) - time.monotonic()
                if remaining <= 0:
                    break
                if wait_for_busy:
                    report(not_now(busy[0]))
                self._changed.wait(min(remaining, _POLL_S))
                if wait_for_busy:  # the server gets the key only after the lock, so its time begins then
                    settled_by = max(settled_by, min(time.monotonic(), deadline) + _SETTLE_S)
            if wait_for_busy:
                raise not_now(busy[0])
            if not ready:
                raise DeviceError("no board server answers", hint="toolchain farm status")
            for slot in busy:
                self._rest(request, slot)

    def _rest(self, request: LeaseRequest, slot: Slot) -> None:
        """Give back a board that other users are using; it is tried again later."""
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
        # The client of an expired lease may still come for a session, and then gets the reason.
        if request in self._queue.requests and request.end_reason != _EXPIRED:
            for slot in self._queue.slots.values():
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

    def share_out(self) -> None:
        """Give sharing clients the boards assigned to them, and recall boards assigned to others."""
        sharing = [request for request in self._queue.requests if request.sharing]
        if not sharing:
            return
        for name, request in self._queue.allocate(rested=True).items():
            slot = self._queue.slots[name]
            holder = self._queue.holder(slot)
            if holder is None:
                if request.sharing:
                    self._give(request, slot)
            elif holder is request:
                continue
            elif name not in holder.announced:  # its client does not know of it yet
                self._give_back(holder, slot)
            elif name not in holder.recalled:
                holder.recalled.add(name)
                holder.outbox.put({"give": name})
        for request in sharing:
            for slot in list(request.boards):
                self._announce(request, slot)

    def _announce(self, request: LeaseRequest, slot: Slot) -> None:
        """Send a client a new board once it can be used; give it back if it cannot."""
        if slot.name in request.announced:
            return
        if slot.board.settled:
            request.announced.add(slot.name)
            request.outbox.put({"joined": grant_message(slot)})
        elif slot.board.is_busy:
            self._rest(request, slot)
        elif slot.board.state != "ready":
            self._give_back(request, slot)

    def handle(self, request: LeaseRequest, message: Message) -> None:
        """Handle a message of a lease's client; any message is a sign of life."""
        with self._changed:
            request.last_seen = time.monotonic()
            for topic, body in message.items():
                slot = self._queue.slots.get(str(body.get("board"))) if isinstance(body, dict) else None
                if slot is not None and slot.grant is request.grant:
                    self._handle_topic(request, slot, topic, body)

    def _handle_topic(self, request: LeaseRequest, slot: Slot, topic: str, body: Message) -> None:
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
            requests = [*self._queue.requests, *self._inside]
            for request in [request for request in requests if request.silent and request.end_reason is None]:
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
        """Take a board back and send its holder `fault`; with `for_good` this lease never gets it again."""
        request = self._queue.holder(slot)
        slot.withdraw(fault)
        if request is not None and slot in request.boards:
            self._forget(request, slot)
            if for_good:
                request.refused.add(slot.name)
            request.outbox.put({"lost": {"board": slot.name, "fault": fault_message(fault)}})
        self._changed.notify_all()

    def heard_s(self, slot: Slot) -> float | None:
        """Return the seconds since the last sign of life of a board's holder; None for a lock, which needs none."""
        request = self._queue.holder(slot)
        return None if request is None else round(time.monotonic() - request.last_seen, 1)


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
