"""Leases of the farm's boards, for those who measure on them; knows no TVM."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from toolchain import _farm_serving, process
from toolchain._farm_protocol import Link, Message
from toolchain._farm_serving import Place, Tell, serving, whoami

__all__ = ["Lease", "LeasedBoard", "Place", "lease", "private", "serving"]

_WAIT_S = 10.0
_GRACE_S = 30.0
_END_S = 12.0


@dataclass(frozen=True)
class LeasedBoard:
    """A board of a lease.

    Attributes:
        name: Its name in devices.toml.
        board: Its board type.
        key: The key that it alone has at the tracker, for the time of the lease, also after it was lost and is back.
        emulated: Whether its times are an emulator's.
    """

    name: str
    board: str
    key: str
    emulated: bool


class Lease:
    """Boards that nobody else uses, until `close`, the end of a `with`, or the end of this process.

    It may be used by several threads.

    Attributes:
        tracker: Address and port of the tracker, where each board is requested under its own key.
        boards: The boards.
    """

    def __init__(self, link: Link, given: Message) -> None:
        self._link = link
        host, port = given["tracker"]
        self.tracker: tuple[str, int] = (str(host), int(port))
        self.boards = tuple(LeasedBoard(**one) for one in given["boards"])

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
        """Whether the boards are still ours; they are not after `farm down`, or when the keeper was killed."""
        return self._link.alive

    def close(self) -> None:
        """Give the boards back."""
        self._link.close()

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
        folder: The keeper's folder, as `private` yields it; the farm's by default.
        wait: Seconds that boards may take to become free.

    Raises:
        DeviceError: The farm serves nothing, or no board is free; the details name who has them.
        InputError: The farm serves no board of a given name.
    """
    link = _farm_serving.connected(folder)
    try:
        asked = {"do": "lease", "board": board_type, "names": list(names), "who": whoami(who), "wait": wait}
        return Lease(link, _farm_serving.answer(link, asked, wait + _GRACE_S))
    except BaseException:
        link.close()
        raise


@contextlib.contextmanager
def private(places: Sequence[Place], tell: Tell) -> Iterator[Path]:
    """Serve devices to this process alone, as the farm does, for the time of a block.

    Everything ends with this process, even if that is killed.

    Args:
        places: The devices.
        tell: Who is told what happens.

    Yields:
        The keeper's folder, for `lease`.

    Raises:
        ToolchainError: None of the devices can be served.
    """
    served = [_farm_serving.described(place, tell) for place in places]
    with tempfile.TemporaryDirectory(prefix="toolchain-serving-") as name:
        folder = Path(name)
        keeper = _farm_serving.start_keeper(folder, tell, attached=True)
        try:
            found = _farm_serving.serve(folder, served, tell)
            if all(one["fault"] for one in found["boards"]):
                raise _farm_serving.first_fault(found)
            yield folder
        finally:
            process.end(keeper, _END_S)
            keeper.stdin.close()
