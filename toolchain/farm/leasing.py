"""Leases of a farm's boards: who waits for them, who shares them, and how they end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from toolchain.errors import BusyError, DeviceError, InputError, ToolchainError, did_you_mean
from toolchain.farm.asks import Ask, InPlay, due
from toolchain.farm.holds import Slot, granted
from toolchain.farm.protocol import EXPIRE_S, Message, fault_message
from toolchain.farm.refusals import expired, given_to_others, none_free, not_now, taken_back
from toolchain.rpc.server import new_key

_LOG = logging.getLogger(__name__)

_SETTLE_S = 5.0
_NOTICE_S = 2.0  # a client that was killed just now may not be noticed yet
_LOOK_S = 0.5
_SAY_S = 5.0
_REST_S = 30.0  # to look costs the device time, which others may be measuring
_EXPIRED = "its client gave no sign of life"

Tell = Callable[[Message], None]


def _tell_nobody(message: Message) -> None:
    """For who is told nothing."""


class Leasing:
    """The leases of a farm.

    Args:
        slots: The farm's boards.
        changed: Is held for every change, and notified after it.
    """

    def __init__(self, slots: Mapping[str, Slot], changed: threading.Condition) -> None:
        self._slots = slots
        self._changed = changed
        self._asks: list[Ask] = []
        self._inside: list[Ask] = []  # who uses what a process has that they descend from

    # --- a lease from its beginning to its end ---

    @contextmanager
    def lease(
        self, ask: Ask, wait: float, above: Collection[int] = (), line: float = 0.0, tell: Tell = _tell_nobody
    ) -> Iterator[tuple[Message, ...]]:
        """Let a client have boards for the time of a block.

        Args:
            ask: What it wants.
            wait: Seconds that boards may take that are on their way: lost ones, or just given back.
            above: The processes that the client descends from. It may use what one of those has.
            line: Seconds that it waits for boards that others have, in the order of asking.
            tell: Is told for whom it waits.

        Yields:
            What the client is told of its first boards.

        Raises:
            InputError: There is no such board.
            BusyError: None is free, or one that was named is not.
            DeviceError: None can be reached, or one that was named cannot.
        """
        ask.patient = line > 0
        with self._changed:
            shared = self._of_ancestor(ask, above)
            if shared and shared[0].hold:
                ask.hold = shared[0].hold
        registered = self._inside if shared else self._asks
        try:
            with self._changed:
                registered.append(ask)
                slots = shared or self._awaited(ask, wait, line, tell)
            self._await_keys(ask, slots, max(wait, line), tell if line else _tell_nobody)
            yield self._begun(ask, shared)
        finally:
            with self._changed:
                slots = self._give_all_back(ask)
                registered.remove(ask)
            self.await_freed(slots)

    def _begun(self, ask: Ask, shared: Sequence[Slot]) -> tuple[Message, ...]:
        with self._changed:
            known = shared or [slot for slot in ask.boards if slot.board.settled or not ask.shares]
            if not known:
                raise taken_back()
            ask.served, ask.told = True, {slot.name for slot in known}
            return tuple(granted(slot) for slot in known)

    def _awaited(self, ask: Ask, wait: float, line: float, tell: Tell) -> list[Slot]:
        """Wait until boards are due to an ask and free, and give them to it."""
        began = time.monotonic()
        on_their_way = began + wait
        noticed = began + line if line else min(on_their_way, began + _NOTICE_S)
        say = _Saying(tell)
        while True:
            _check(ask)
            wanted = self._wanted(ask)
            mine = self._free_and_due(ask)
            now = time.monotonic()
            left = (max(on_their_way, noticed) if any(slot.may_be_free_soon() for slot in wanted) else noticed) - now
            leaving = now < on_their_way and any(slot.is_about_to_be_free() for slot in wanted)
            if mine and not (leaving and left > 0):
                ask.begin()
                for slot in mine:
                    self._give(ask, slot)
                return mine
            if left <= 0 or not wanted:
                raise self._not_yet(ask, wanted)
            self.share_out()
            if line:
                say(self._in_line(ask, wanted))
            self._changed.wait(min(left, _LOOK_S))

    def _give(self, ask: Ask, slot: Slot) -> None:
        ask.boards.append(slot)
        slot.give(ask.hold, new_key())

    def _not_yet(self, ask: Ask, wanted: Sequence[Slot]) -> ToolchainError:
        """Say why an ask has no boards."""
        others = [slot for slot in wanted if not slot.is_free()]
        if others or not wanted:
            return none_free(ask.kind, ask.names, others)
        before = next((one.client.who for one in self._line() if one is not ask), "others")
        return given_to_others(ask.kind, ask.names, before)

    def _in_line(self, ask: Ask, wanted: Sequence[Slot]) -> ToolchainError:
        """Return what one who waits is told: for whom, and behind whom."""
        fault = self._not_yet(ask, wanted)
        owner = fault.owner if isinstance(fault, BusyError) else ""
        rivals = [(slot.name, slot.board.served.board) for slot in wanted]
        line = [one for one in self._line() if any(one.wants(*rival) for rival in rivals)]
        whom = f": {owner}" if owner and owner not in fault.message else ""
        text = f"{fault.message}{whom}; place {line.index(ask) + 1} of {len(line)} in the queue"
        return BusyError(text, details=fault.details, hint=fault.hint, owner=owner)

    def _line(self) -> list[Ask]:
        return [ask for ask in self._asks if ask.waiting]

    def _of_ancestor(self, ask: Ask, above: Collection[int]) -> list[Slot]:
        """Find the boards that a process has which the client descends from, as under `farm lock NAME -- CMD`."""
        wanted = self._wanted(ask)
        found = [slot for slot in wanted if slot.hold and slot.key and slot.hold.client.pid in above]
        same = [slot for slot in found if slot.hold is found[0].hold]
        return same if not ask.names or len(same) == len(wanted) else []

    def _wanted(self, ask: Ask) -> list[Slot]:
        for name in ask.names:
            self.slot(name)
        return [slot for name, slot in self._slots.items() if ask.wants(name, slot.board.served.board)]

    def slot(self, name: str) -> Slot:
        """Return a board.

        Raises:
            InputError: There is none of that name.
        """
        if name not in self._slots:
            raise InputError(
                f"the farm does not serve board {name!r}",
                details="boards of the farm: " + (", ".join(self._slots) or "none"),
                hint=did_you_mean(name, self._slots) or f"toolchain farm up {name}",
            )
        return self._slots[name]

    def _await_keys(self, ask: Ask, slots: Sequence[Slot], wait: float, tell: Tell) -> None:
        """Wait until devices are locked and servers have the keys; those that others are at work on are given back.

        One that is lost or frozen just now gets its key when it is back.

        Raises:
            BusyError: Others are at work on all of them, or on one where all are wanted.
            DeviceError: No board server answers.
        """
        began = time.monotonic()
        deadline, settled_by = began + wait, began + _SETTLE_S
        say = _Saying(tell)
        with self._changed:
            while True:
                _check(ask)
                busy = [slot for slot in slots if slot.board.is_busy]
                settled = [slot for slot in slots if slot.board.settled]
                on_its_way = [slot for slot in slots if slot not in busy + settled and slot.board.state != "lost"]
                wait_for_busy = busy and (ask.names or not settled)
                left = max(deadline * bool(wait_for_busy), settled_by * bool(on_its_way)) - time.monotonic()
                if left <= 0:
                    break
                if wait_for_busy:
                    say(not_now(busy[0]))
                self._changed.wait(min(left, _LOOK_S))
                if wait_for_busy:  # its server gets the key once its lock is free
                    settled_by = max(settled_by, min(time.monotonic(), deadline) + _SETTLE_S)
            if busy and (ask.names or not settled):
                raise not_now(busy[0])
            if not settled:
                raise DeviceError("no board server answers", hint="toolchain farm status")
            for slot in busy:
                self._rest(ask, slot)

    def _rest(self, ask: Ask, slot: Slot) -> None:
        """Give a board back that others are at work on; it is tried again later."""
        if slot in ask.boards:
            self._give_back(ask, slot)
            slot.rests_until = time.monotonic() + _REST_S

    def await_freed(self, slots: Sequence[Slot]) -> None:
        """Wait until the locks of boards that were given back are free: a client may deploy to them next."""
        deadline = time.monotonic() + _SETTLE_S
        with self._changed:
            while not all(slot.hold or slot.board.settled or slot.board.state != "ready" for slot in slots):
                if time.monotonic() > deadline:
                    break
                self._changed.wait(_LOOK_S)

    def _give_all_back(self, ask: Ask) -> list[Slot]:
        found = list(ask.boards)
        for slot in found:
            self._give_back(ask, slot)
        if ask in self._asks and ask.ended != _EXPIRED:
            for slot in self._slots.values():
                slot.withdrawn = [one for one in slot.withdrawn if one.hold is not ask.hold]
        self._changed.notify_all()
        return found

    def _give_back(self, ask: Ask, slot: Slot) -> None:
        self._forget(ask, slot)
        if slot.hold is ask.hold:
            slot.take_back()

    def _forget(self, ask: Ask, slot: Slot) -> None:
        ask.boards.remove(slot)
        ask.told.discard(slot.name)
        ask.asked_back.discard(slot.name)

    # --- shares ---

    def _free_and_due(self, ask: Ask) -> list[Slot]:
        found = [self._slots[name] for name, one in due(self._asks, self._in_play()).items() if one is ask]
        free = [slot for slot in found if slot.hold is None]
        return free if not ask.names or len(free) == len(ask.names) else []

    def _in_play(self, *, rested: bool = False) -> dict[str, InPlay]:
        """Return the boards that may be given to somebody; where `rested`, without those that are to rest."""
        now, found = time.monotonic(), {}
        for name, slot in self._slots.items():
            holder = self._holder(slot)
            free = slot.is_free() and not (rested and now < slot.rests_until)
            if free or (holder is not None and holder.sharing):
                found[name] = InPlay(slot.board.served.board, holder)
        return found

    def _holder(self, slot: Slot) -> Ask | None:
        return next((ask for ask in self._asks if slot.hold is ask.hold), None) if slot.hold else None

    def share_out(self) -> None:
        """Give those who share what is due to them, and ask for what is due to others."""
        sharing = [ask for ask in self._asks if ask.sharing]
        if not sharing:
            return
        for name, ask in due(self._asks, self._in_play(rested=True)).items():
            slot = self._slots[name]
            holder = self._holder(slot)
            if holder is None and ask.sharing:
                self._give(ask, slot)
            elif holder is not None and holder is not ask:
                self._ask_back(holder, slot)
        for ask in sharing:
            for slot in list(ask.boards):
                self._follow(ask, slot)

    def _ask_back(self, ask: Ask, slot: Slot) -> None:
        if slot.name not in ask.told:
            self._give_back(ask, slot)
        elif slot.name not in ask.asked_back:
            ask.asked_back.add(slot.name)
            ask.outbox.put({"give": slot.name})

    def _follow(self, ask: Ask, slot: Slot) -> None:
        """Tell the client of one more board once it can be used; one that cannot goes back."""
        if slot.name in ask.told:
            return
        if slot.board.settled:
            ask.told.add(slot.name)
            ask.outbox.put({"joined": granted(slot)})
        elif slot.board.is_busy:
            self._rest(ask, slot)
        elif slot.board.state != "ready":
            self._give_back(ask, slot)

    # --- what clients say ---

    def hear(self, ask: Ask, message: Message) -> None:
        """Take what the client of a lease says; any word is a sign of life."""
        with self._changed:
            ask.heard = time.monotonic()
            for what, found in message.items():
                slot = self._slots.get(str(found.get("board"))) if isinstance(found, dict) else None
                if slot is not None and slot.hold is ask.hold:
                    self._take(ask, slot, what, found)

    def _take(self, ask: Ask, slot: Slot, what: str, found: Message) -> None:
        if what == "trial":
            slot.trial = {**found, "time": time.time()}
            slot.celsius = found.get("celsius") or slot.celsius
        elif what == "state":
            slot.failures, slot.quarantined = int(found["failures"]), found["state"] == "quarantined"
            # A board that nobody measures on may be asked whether it is well.
            slot.board.rest(quiet=not slot.quarantined)
        elif what == "given" and slot in ask.boards:
            if found.get("for_good"):
                ask.refused.add(slot.name)
            self._give_back(ask, slot)
            self.share_out()
            self._changed.notify_all()

    def over(self, ask: Ask, why: str) -> None:
        """Let a lease end."""
        with self._changed:
            ask.end(why)
            self._changed.notify_all()

    # --- what ends a lease from outside ---

    def expire(self) -> None:
        """End the leases whose clients give no sign of life, and look who is to have which board."""
        with self._changed:
            for ask in [one for one in self._asks + self._inside if one.silent and one.ended is None]:
                _LOG.info("%s gave no sign of life for %d s; its lease is over", ask.client.who, EXPIRE_S)
                why = expired()
                for slot in list(ask.boards):
                    self._forget(ask, slot)
                    slot.withdraw(why)
                ask.outbox.put({"over": fault_message(why)})
                ask.end(_EXPIRED)
                self._changed.notify_all()
            self.share_out()

    def withdraw(self, slot: Slot, why: BusyError, *, for_good: bool) -> None:
        """Take a board back from who has it, who is told why.

        Args:
            slot: The board.
            why: What its client is told.
            for_good: Whether it never gets it again in this lease.
        """
        ask = self._holder(slot)
        slot.withdraw(why)
        if ask is not None and slot in ask.boards:
            self._forget(ask, slot)
            if for_good:
                ask.refused.add(slot.name)
            ask.outbox.put({"lost": {"board": slot.name, "fault": fault_message(why)}})
        self._changed.notify_all()

    # --- what is told ---

    def heard_s(self, slot: Slot) -> float | None:
        """Return how many seconds ago who has a board gave a sign of life; None for who need not."""
        ask = self._holder(slot)
        return None if ask is None else round(time.monotonic() - ask.heard, 1)

    def queue(self) -> list[Message]:
        """Tell who waits, in the order of asking."""
        return [
            {
                "place": place,
                "who": ask.client.who,
                "board": ask.kind,
                "names": list(ask.names),
                "most": ask.most,
                "since": ask.since,
            }
            for place, ask in enumerate(self._line(), 1)
        ]


class _Saying:
    """Says every few seconds for whom somebody waits."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._next = tell, 0.0

    def __call__(self, fault: ToolchainError) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SAY_S
            self._tell({"wait": fault_message(fault)})


def _check(ask: Ask) -> None:
    """See that who waits is still there."""
    if ask.ended is not None:
        raise DeviceError(f"the client that requested boards has ended: {ask.ended}")
