"""Leases of the farm's boards, for their clients. Imports no TVM."""

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
from toolchain.farm.client import FarmDevice, Tell, is_running, whoami
from toolchain.farm.protocol import HEARTBEAT_S, Link, Message, fault_message, parse_fault

__all__ = ["WAIT_S", "FarmDevice", "Follower", "Lease", "LeasedBoard", "is_running", "lease", "private"]

WAIT_S = 10.0
_GRACE_S = 30.0
_SLACK_S = 5.0
_END_S = 12.0


@dataclass(frozen=True)
class LeasedBoard:
    """A board of a lease."""

    name: str  # in devices.toml
    board: str  # board type
    key: str = field(repr=False)  # secret; it stays the same if the board is lost and comes back
    emulated: bool  # whether its times are an emulator's
    within: str = field(default="", repr=False)  # `toolchain.device.lock.WITHIN` for deploys during the lease


class Follower(Protocol):
    """Gets the changes of a lease's boards, in the lease's own thread, which it must not block."""

    def joined(self, board: LeasedBoard) -> None:
        """The lease has one more board."""

    def recalled(self, name: str) -> None:
        """Others wait for a board: return it with `Lease.give` after its current work."""

    def lost(self, name: str, why: ToolchainError) -> None:
        """The lease has one board less, which cannot be reached any more."""


class Lease:
    """Exclusive use of boards until `close`, the end of a `with`, or the end of this process.

    A thread sends signs of life. After `protocol.EXPIRE_S` seconds without any, as when this process is stopped, the
    lease is over. Several threads may use it.
    """

    def __init__(self, link: Link, answer: Message, folder: Path | None) -> None:
        self._link = link
        self._folder = folder
        self._boards = {board["name"]: LeasedBoard(**board) for board in answer["boards"]}
        self._lost: dict[str, Message] = {}
        self._end_fault: Message | None = None
        self._follower: Follower | None = None
        self._pending: list[Callable[[Follower], None]] = []  # changes before there was a follower
        self._changing = threading.RLock()  # a follower may give a board back at once
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    @property
    def boards(self) -> tuple[LeasedBoard, ...]:
        with self._changing:
            return tuple(self._boards.values())

    def follow(self, follower: Follower) -> None:
        """Notify `follower` of all changes of the boards, also of earlier ones."""
        with self._changing:
            self._follower = follower
            for notify in self._pending:
                notify(follower)

    def give(self, name: str, *, for_good: bool = False) -> None:
        """Give one board back; with `for_good` it does not join this lease again."""
        with self._changing:
            self._boards.pop(name, None)
        self._send({"given": {"board": name, "for_good": for_good}})

    def _run(self) -> None:
        """Send signs of life and handle the daemon's messages, until it ends the lease."""
        beat_at = 0.0
        while True:
            if (remaining := beat_at - time.monotonic()) <= 0:
                self._send({"alive": True})
                beat_at, remaining = time.monotonic() + HEARTBEAT_S, HEARTBEAT_S
            try:
                message = self._link.receive(remaining)
            except TimeoutError:
                continue
            if message is None:
                break
            self._handle(message)
        if not self._closing:
            self._end_fault = self._end_fault or fault_message(_farm_ended())
            for board in self.boards:
                self._change(functools.partial(_tell_lost, board.name, self._end_fault))

    def _handle(self, message: Message) -> None:
        if "joined" in message:
            board = LeasedBoard(**message["joined"])
            with self._changing:
                self._boards[board.name] = board
                self._lost.pop(board.name, None)
            self._change(lambda follower: follower.joined(board))
        elif "give" in message:
            self._change(lambda follower: follower.recalled(str(message["give"])))
        elif "lost" in message:
            name, fault = str(message["lost"]["board"]), message["lost"]["fault"]
            with self._changing:
                self._boards.pop(name, None)
                self._lost[name] = fault
            self._change(functools.partial(_tell_lost, name, fault))
        elif "over" in message:
            self._end_fault = message["over"]

    def _change(self, notify: Callable[[Follower], None]) -> None:
        with self._changing:
            if self._follower is None:
                self._pending.append(notify)
            else:
                notify(self._follower)

    def check(self, name: str) -> None:
        """Raise if a board is no longer ours.

        Raises:
            BusyError: The lease is over, or the board was taken back; the error has the reason.
            InputError: The lease has no such board.
        """
        with self._changing:
            fault = self._end_fault or self._lost.get(name)
            is_ours = name in self._boards
        if fault is not None:
            raise parse_fault(fault)
        if not is_ours:
            raise InputError(f"the lease has no board {name!r}")

    def dial(self, name: str, timeout_s: float) -> socket.socket:
        """Return a stream to a board's server, which opens a session for the board's key.

        The stream ends at once if the server ends meanwhile; then the caller may try again. A board that is lost may
        come back within `timeout_s`.

        Raises:
            DeviceError: The board cannot be reached in time.
            BusyError: The lease is over: its owner ended it, it expired, or the farm ended.
            InputError: The lease has no such board.
        """
        self.check(name)
        request = {"do": "session", "board": name, "key": self._boards[name].key, "wait": timeout_s}
        with contextlib.ExitStack() as stack:
            try:
                link = client.open_link(self._folder)
                stack.callback(link.close)
                client.ask(link, request, timeout_s + _SLACK_S)
            except ToolchainError:
                self.check(name)  # the end of the lease is the better explanation
                raise
            stack.pop_all()
        return link.raw()

    def report_trial(self, board: str, trial: str, *, ok: bool, seconds: float, celsius: float | None = None) -> None:
        """Report a board's last trial for `farm status`: its name, and `ok` if it was measured."""
        self._send({"trial": {"board": board, "what": trial, "ok": ok, "seconds": seconds, "celsius": celsius}})

    def report_state(self, board: str, state: Literal["ok", "quarantined"], failures: int) -> None:
        """Report that a board is quarantined, or used again; `failures` in a row."""
        self._send({"state": {"board": board, "state": state, "failures": failures}})

    def _send(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # `alive` reports it
            self._link.send(message)

    @property
    def alive(self) -> bool:
        """Whether the daemon still has this lease."""
        return self._end_fault is None and self._link.alive

    def close(self) -> None:
        """Give the boards back, and wait until their locks are free: this process may deploy to them next."""
        self._closing = True
        self._link.end_sending()
        self._thread.join(_END_S)
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _tell_lost(name: str, fault: Message, follower: Follower) -> None:
    follower.lost(name, parse_fault(fault))


def lease(  # noqa: PLR0913 - these are independent
    board_type: str,
    names: Sequence[str] = (),
    *,
    who: str = "",
    folder: Path | None = None,
    wait: float = WAIT_S,
    limit: int = 0,
    shares: bool = False,
    patience: Patience | None = None,
) -> Lease:
    """Lease boards: all free ones of a type, or all of the named ones.

    Args:
        board_type: Empty for any.
        names: Names of boards.
        who: The purpose, such as `tune mobilenet`, which others see.
        folder: The daemon's folder, as `private` yields it; the farm's by default.
        wait: Seconds to wait for boards that are lost or were just given back.
        limit: How many boards at most; 0 for all.
        shares: Whether boards that become free later join the lease, and boards are given back if others wait for
            them; requires `Lease.follow`.
        patience: How long to queue for boards; not at all by default.

    Raises:
        DeviceError: The farm serves nothing, or no board is free; the details name their clients.
        InputError: The farm serves no board of a given name.
    """
    patience = patience or Patience()
    message = {"do": "lease", "board": board_type, "names": list(names), "who": whoami(who), "wait": wait}
    message |= {"most": limit, "shares": shares, "line": patience.left}
    link = client.open_link(folder)
    try:
        link.send(message)
        return Lease(link, _await_grant(link, wait + patience.left + _GRACE_S, patience), folder)
    except OSError as fault:
        link.close()
        raise _no_answer() from fault
    except BaseException:
        link.close()
        raise


def _await_grant(link: Link, seconds: float, patience: Patience) -> Message:
    """Wait in the queue with signs of life, and record the waiting time for each holder."""
    deadline = time.monotonic() + seconds
    since, holder = time.monotonic(), None
    while (now := time.monotonic()) < deadline:
        try:
            answer = link.receive(min(HEARTBEAT_S, deadline - now))
        except TimeoutError:
            answer = {"alive": True}
        if holder is not None:
            patience.note(holder, time.monotonic() - since)
        since = time.monotonic()
        if answer is None:
            raise _farm_ended()
        if "ok" in answer:
            return dict(answer["ok"])
        if "error" in answer:
            raise parse_fault(answer["error"])
        if isinstance(fault := parse_fault(answer.get("wait", {})), BusyError):
            holder = fault
            patience.tell(holder)
        link.send({"alive": True})
    raise _no_answer()


def _no_answer() -> DeviceError:
    return DeviceError("the farm daemon does not answer", hint="toolchain farm down")


def _farm_ended() -> BusyError:
    # A BusyError, like other ends of a lease. Its owner is "nobody": waiting would not help.
    return BusyError(
        "the farm daemon ended, and with it the lease",
        details="`toolchain farm down` was run, or the daemon was killed",
        hint="run `toolchain farm up`, then the same command again",
        owner="nobody",
    )


@contextlib.contextmanager
def private(devices: Sequence[FarmDevice], tell: Tell, patience: Patience | None = None) -> Iterator[Path]:
    """Serve devices to this process only, during a block; yield the daemon's folder.

    The daemon ends with this process, even if that is killed.

    Raises:
        ToolchainError: No device can be served.
    """
    served = [client.to_serve(device, tell) for device in devices]

    def check() -> None:
        report = client.status(folder)
        if report and all(board["fault"] for board in report["boards"]):
            raise client.first_fault(report)

    with temporary.folder() as name:
        folder = Path(name)
        daemon = client.start_daemon(folder, tell, attached=True)
        try:
            client.serve(folder, served, tell)
            (patience or Patience()).get(check)
            yield folder
        finally:
            process.end(daemon, _END_S)
            daemon.stdin.close()
