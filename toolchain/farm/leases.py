"""Leases of the farm's boards, for those who measure on them; knows no TVM."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from toolchain import process, temporary
from toolchain.device.waiting import Patience
from toolchain.errors import BusyError, DeviceError, InputError, ToolchainError
from toolchain.farm import client
from toolchain.farm.client import Place, Tell, serving, whoami
from toolchain.farm.protocol import HEARTBEAT_S, Link, Message, fault_message, fault_of

__all__ = ["Follower", "Lease", "LeasedBoard", "Place", "lease", "private", "serving"]

_WAIT_S = 10.0
_GRACE_S = 30.0
_SLACK_S = 5.0
_END_S = 12.0


@dataclass(frozen=True)
class LeasedBoard:
    """A board of a lease.

    Attributes:
        name: Its name in devices.toml.
        board: Its board type.
        key: The key of its sessions for the time of the lease, also after it was lost and is back. It is a secret.
        emulated: Whether its times are an emulator's.
        within: What `toolchain.device.lock.WITHIN` is for those who may deploy to it meanwhile.
    """

    name: str
    board: str
    key: str = field(repr=False)
    emulated: bool
    within: str = field(default="", repr=False)


class Follower(Protocol):
    """Who hears how the boards of a lease change, in a thread of the lease's own, which must not be kept for long."""

    def joined(self, board: LeasedBoard) -> None:
        """There is one more board."""

    def wanted_back(self, name: str) -> None:
        """Others wait for a board: it shall be given back with `Lease.give` once it has done what it does."""

    def lost(self, name: str, why: ToolchainError) -> None:
        """There is one board less, and it is not to be reached any more."""


class Lease:
    """Boards that nobody else uses, until `close`, the end of a `with`, or the end of this process.

    While this process runs it gives signs of life; without any for `protocol.EXPIRE_S` seconds, as when it is stopped,
    the lease is over. It may be used by several threads.
    """

    def __init__(self, link: Link, given: Message, folder: Path | None) -> None:
        self._link = link
        self._folder = folder
        self._boards = {one["name"]: LeasedBoard(**one) for one in given["boards"]}
        self._lost: dict[str, Message] = {}
        self._over: Message | None = None
        self._follower: Follower | None = None
        self._untold: list[Callable[[Follower], None]] = []
        self._changing = threading.RLock()  # who hears of a board may give it back at once
        self._closing = False
        self._thread = threading.Thread(target=self._attend, name="lease", daemon=True)
        self._thread.start()

    @property
    def boards(self) -> tuple[LeasedBoard, ...]:
        """The boards that it has by now."""
        with self._changing:
            return tuple(self._boards.values())

    def follow(self, follower: Follower) -> None:
        """Let somebody hear how the boards change, and have changed so far."""
        with self._changing:
            self._follower = follower
            for told in self._untold:
                told(follower)

    def give(self, name: str, *, for_good: bool = False) -> None:
        """Give one board back.

        Args:
            name: The board.
            for_good: Whether it shall not come back into this lease.
        """
        with self._changing:
            self._boards.pop(name, None)
        self._say({"given": {"board": name, "for_good": for_good}})

    def _attend(self) -> None:
        """Give signs of life and hear what becomes of the boards, until the daemon ends the lease."""
        beat_at = 0.0
        while True:
            if (left := beat_at - time.monotonic()) <= 0:
                self._say({"alive": True})
                beat_at, left = time.monotonic() + HEARTBEAT_S, HEARTBEAT_S
            try:
                message = self._link.receive(left)
            except TimeoutError:
                continue
            if message is None:
                break
            self._hear(message)
        if not self._closing:
            self._end(self._over or fault_message(_farm_ended()))

    def _end(self, why: Message) -> None:
        self._over = why
        for name in [board.name for board in self.boards]:
            self._change(functools.partial(_tell_lost, name, why))

    def _hear(self, message: Message) -> None:
        if "joined" in message:
            board = LeasedBoard(**message["joined"])
            with self._changing:
                self._boards[board.name] = board
                self._lost.pop(board.name, None)
            self._change(lambda follower: follower.joined(board))
        elif "give" in message:
            self._change(lambda follower: follower.wanted_back(str(message["give"])))
        elif "lost" in message:
            name, why = str(message["lost"]["board"]), message["lost"]["fault"]
            with self._changing:
                self._boards.pop(name, None)
                self._lost[name] = why
            self._change(functools.partial(_tell_lost, name, why))
        elif "over" in message:
            self._over = message["over"]

    def _change(self, told: Callable[[Follower], None]) -> None:
        with self._changing:
            if self._follower is None:
                self._untold.append(told)
            else:
                told(self._follower)

    def check(self, name: str) -> None:
        """See that a board is still ours.

        Raises:
            BusyError: The lease is over, or the board was taken back; it says why.
            InputError: The lease has no such board.
        """
        with self._changing:
            why = self._over or self._lost.get(name)
            known = name in self._boards
        if why is not None:
            raise fault_of(why)
        if not known:
            raise InputError(f"the lease has no board {name!r}")

    def dial(self, name: str, timeout_s: float) -> socket.socket:
        """Return a stream to a board's server, which gives a session for the board's key.

        The stream ends at once if the server ends while it is reached; then this may be tried again.

        Args:
            name: The board.
            timeout_s: Seconds that this may take; a board that is lost may come back meanwhile.

        Raises:
            DeviceError: The board cannot be reached in time.
            BusyError: The lease of it is over: its owner has ended it, it expired, or the farm ended.
            InputError: The lease has no such board.
        """
        self.check(name)
        asked = {"do": "session", "board": name, "key": self._boards[name].key, "wait": timeout_s}
        with contextlib.ExitStack() as stack:
            try:
                link = client.connected(self._folder)
                stack.callback(link.close)
                client.answer(link, asked, timeout_s + _SLACK_S)
            except ToolchainError:
                self.check(name)  # what ended the lease meanwhile says more
                raise
            stack.pop_all()
        return link.raw()

    def report_trial(self, board: str, what: str, *, ok: bool, seconds: float, celsius: float | None = None) -> None:
        """Let `farm status` show a board's last trial.

        Args:
            board: The board's name.
            what: What was tried, in a few words.
            ok: Whether it was measured.
            seconds: How long it took.
            celsius: The board's temperature, if it is known.
        """
        self._say({"trial": {"board": board, "what": what, "ok": ok, "seconds": seconds, "celsius": celsius}})

    def report_state(self, board: str, state: Literal["ok", "quarantined"], failures: int) -> None:
        """Let `farm status` show that a board is left out for now, or used again.

        Args:
            board: The board's name.
            state: Whether it is used.
            failures: How many trials in a row failed on it through its own fault.
        """
        self._say({"state": {"board": board, "state": state, "failures": failures}})

    def _say(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # `alive` tells
            self._link.send(message)

    @property
    def alive(self) -> bool:
        """Whether the daemon still knows us; it does not after `farm down`, when it was killed, or we were stopped."""
        return self._over is None and self._link.alive

    def close(self) -> None:
        """Give the boards back, and wait until their locks are free, for what this process does next."""
        self._closing = True
        self._link.hush()
        self._thread.join(_END_S)
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _tell_lost(name: str, why: Message, follower: Follower) -> None:
    follower.lost(name, fault_of(why))


def lease(  # noqa: PLR0913 - these are independent
    board_type: str,
    names: Sequence[str] = (),
    *,
    who: str = "",
    folder: Path | None = None,
    wait: float = _WAIT_S,
    most: int = 0,
    shares: bool = False,
    patience: Patience | None = None,
) -> Lease:
    """Lease boards: those of a type that are free, or the named ones.

    Args:
        board_type: Board type; empty for any.
        names: Names of boards; all of them are leased, or none.
        who: What for, in a few words, such as `tune mobilenet`; others are told.
        folder: The daemon's folder, as `private` yields it; the farm's by default.
        wait: Seconds that boards may take that are on their way, as lost ones, or those that were just given back.
        most: How many boards at most; 0 for all.
        shares: Whether boards that become free later join the lease, and boards are given back where others wait; for
            who follows the lease, see `Lease.follow`.
        patience: How long the line of those who wait for boards is stood in, and who is told; not at all by default.

    Raises:
        DeviceError: The farm serves nothing, or no board is free; the details name who has them.
        InputError: The farm serves no board of a given name.
    """
    patience = patience or Patience()
    asked = {"do": "lease", "board": board_type, "names": list(names), "who": whoami(who), "wait": wait}
    asked |= {"most": most, "shares": shares, "line": patience.left}
    link = client.connected(folder)
    try:
        link.send(asked)
        return Lease(link, _answer(link, wait + patience.left + _GRACE_S, patience), folder)
    except OSError as fault:
        link.close()
        raise _silent() from fault
    except BaseException:
        link.close()
        raise


def _answer(link: Link, seconds: float, patience: Patience) -> Message:
    """Stand in the line for as long as it takes; give signs of life meanwhile, and note for whom was waited."""
    deadline = time.monotonic() + seconds
    since, before = time.monotonic(), None
    while (now := time.monotonic()) < deadline:
        try:
            found = link.receive(min(HEARTBEAT_S, deadline - now))
        except TimeoutError:
            found = {"alive": True}
        if before is not None:
            patience.note(before, time.monotonic() - since)
        since = time.monotonic()
        if found is None:
            raise _farm_ended()
        if "ok" in found:
            return dict(found["ok"])
        if "error" in found:
            raise fault_of(found["error"])
        if isinstance(fault := fault_of(found.get("wait", {})), BusyError):
            before = fault
            patience.tell(before)
        link.send({"alive": True})
    raise _silent()


def _silent() -> DeviceError:
    return DeviceError("the farm daemon does not answer", hint="toolchain farm down")


def _farm_ended() -> BusyError:
    """Return the error of who had boards of a farm that is gone; waiting for them does not help."""
    return BusyError(
        "the farm daemon ended, and with it the lease",
        details="`toolchain farm down` was run, or the daemon was killed",
        hint="run `toolchain farm up`, then the same command again",
        owner="nobody",
    )


@contextlib.contextmanager
def private(places: Sequence[Place], tell: Tell, patience: Patience | None = None) -> Iterator[Path]:
    """Serve devices to this process alone, as the farm does, for the time of a block.

    Everything ends with this process, even if that is killed.

    Args:
        places: The devices.
        tell: Who is told what happens.
        patience: How long others may be at work on them; not at all by default.

    Yields:
        The daemon's folder, for `lease`.

    Raises:
        ToolchainError: None of the devices can be served.
    """
    served = [client.described(place, tell) for place in places]
    with temporary.folder() as name:
        folder = Path(name)
        daemon = client.start_daemon(folder, tell, attached=True)
        try:
            client.serve(folder, served, tell)
            (patience or Patience()).get(lambda: _check_served(folder))
            yield folder
        finally:
            process.end(daemon, _END_S)
            daemon.stdin.close()


def _check_served(folder: Path) -> None:
    """See that a daemon serves one of its devices at least.

    Raises:
        ToolchainError: It serves none of them, and why.
    """
    found = client.status(folder)
    if found and all(one["fault"] for one in found["boards"]):
        raise client.first_fault(found)
