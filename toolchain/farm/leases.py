"""Leases of the farm's boards, for those who measure on them; knows no TVM."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from toolchain import process
from toolchain.device.waiting import Patience
from toolchain.errors import InputError
from toolchain.farm import client
from toolchain.farm.client import Place, Tell, serving, whoami
from toolchain.farm.protocol import Link, Message

__all__ = ["Lease", "LeasedBoard", "Place", "lease", "private", "serving"]

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


class Lease:
    """Boards that nobody else uses, until `close`, the end of a `with`, or the end of this process.

    It may be used by several threads.

    Attributes:
        boards: The boards.
    """

    def __init__(self, link: Link, given: Message, folder: Path | None) -> None:
        self._link = link
        self._folder = folder
        self.boards = tuple(LeasedBoard(**one) for one in given["boards"])

    def dial(self, name: str, timeout_s: float) -> socket.socket:
        """Return a stream to a board's server, which gives a session for the board's key.

        The stream ends at once if the server ends while it is reached; then this may be tried again.

        Args:
            name: The board.
            timeout_s: Seconds that this may take; a board that is lost may come back meanwhile.

        Raises:
            DeviceError: The board cannot be reached in time, or its owner has ended the lease.
            InputError: The lease has no such board.
        """
        key = next((one.key for one in self.boards if one.name == name), None)
        if key is None:
            raise InputError(f"the lease has no board {name!r}")
        link = client.connected(self._folder)
        try:
            asked = {"do": "session", "board": name, "key": key, "wait": timeout_s}
            client.answer(link, asked, timeout_s + _SLACK_S)
        except BaseException:
            link.close()
            raise
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
        self._report({"trial": {"board": board, "what": what, "ok": ok, "seconds": seconds, "celsius": celsius}})

    def report_state(self, board: str, state: Literal["ok", "quarantined"], failures: int) -> None:
        """Let `farm status` show that a board is left out for now, or used again.

        Args:
            board: The board's name.
            state: Whether it is used.
            failures: How many trials in a row failed on it through its own fault.
        """
        self._report({"state": {"board": board, "state": state, "failures": failures}})

    def _report(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # `alive` tells
            self._link.send(message)

    @property
    def alive(self) -> bool:
        """Whether the daemon still knows us; it does not after `farm down`, or when it was killed."""
        return self._link.alive

    def close(self) -> None:
        """Give the boards back, and wait until their locks are free, for what this process does next."""
        self._link.finish(_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lease(
    board_type: str,
    names: Sequence[str] = (),
    *,
    who: str = "",
    folder: Path | None = None,
    wait: float = _WAIT_S,
) -> Lease:
    """Lease boards: all those of a type that are free, or the named ones.

    Boards of the type that become free later do not join the lease.

    Args:
        board_type: Board type; empty for any.
        names: Names of boards; all of them are leased, or none.
        who: What for, in a few words, such as `tune mobilenet`; others are told.
        folder: The daemon's folder, as `private` yields it; the farm's by default.
        wait: Seconds that boards may take to become free.

    Raises:
        DeviceError: The farm serves nothing, or no board is free; the details name who has them.
        InputError: The farm serves no board of a given name.
    """
    link = client.connected(folder)
    try:
        asked = {"do": "lease", "board": board_type, "names": list(names), "who": whoami(who), "wait": wait}
        return Lease(link, client.answer(link, asked, wait + _GRACE_S), folder)
    except BaseException:
        link.close()
        raise


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
    with tempfile.TemporaryDirectory(prefix="toolchain-serving-") as name:
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
