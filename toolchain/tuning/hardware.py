"""What a board says of its own hardware over RPC, held against its board file."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from toolchain import remote
from toolchain.board import Board
from toolchain.errors import DeviceError, VerificationError
from toolchain.tuning._measure_session import visiting
from toolchain.tuning.measure import Place

_FUNCTION = "edge_toolchain.hardware"
_OPEN_S, _ANSWER_S = 30.0, 15.0
_PATIENCE_S, _AGAIN_S = 20.0, 0.5


@dataclass(frozen=True)
class Hardware:
    """What a board is.

    Attributes:
        machine: What `uname -m` says.
        cpus: CPUs that a program may use.
        cpu: Name of the CPU; empty where the kernel gives none.
        features: Flags of /proc/cpuinfo.
        cache_kib: KiB of the first CPU's caches, by level: `l1d`, `l2`, `l3`.
        memory_kib: KiB of memory.
    """

    machine: str
    cpus: Annotated[int, Field(ge=1)]
    cpu: str = ""
    features: tuple[str, ...] = ()
    cache_kib: Mapping[str, int] = field(default_factory=dict)
    memory_kib: int = 0

    def __str__(self) -> str:
        caches = ", ".join(f"{name} {size} KiB" for name, size in self.cache_kib.items())
        return ", ".join(part for part in (f"{self.cpus} CPUs", self.cpu, caches) if part)


_READER: TypeAdapter[Hardware] = TypeAdapter(Hardware)


def read(place: Place) -> Hardware | None:
    """Ask a board what it is.

    Returns:
        None if its server is TVM's own, which does not know.

    Raises:
        DeviceError: The board does not answer.
        VerificationError: Its server is of another version, or it says something else than hardware.
    """
    session = place.open(_OPEN_S, _OPEN_S, threading.Event())
    with remote.deadline(session, _ANSWER_S), visiting(session) as visit:
        function = visit.function(_FUNCTION)
        text = str(function()) if function is not None else ""
    if not text:
        return None
    try:
        return _READER.validate_json(text)
    except ValidationError as fault:
        raise VerificationError(f"{place.name} says of its hardware what nobody understands", details=text) from fault


def check(board: Board, found: Hardware, name: str, *, emulated: bool) -> tuple[str, ...]:
    """Hold a board's hardware against its board file.

    Args:
        board: The board type, resolved.
        found: What the board says.
        name: The board's name.
        emulated: Whether it is an emulator, which has this machine's CPUs and flags.

    Returns:
        What differs and does no harm.

    Raises:
        VerificationError: It is another machine, or its CPU lacks what kernels for this board type use.
    """
    if found.machine != board.machine:
        raise VerificationError(
            f"{name} is {found.machine}, and board {board.name} is {board.machine}",
            hint="name the board type of this device: `toolchain boards` lists them",
        )
    missing = [flag for flag in board.cpu_features if flag not in found.features]
    if missing and not emulated:
        raise VerificationError(
            f"the CPU of {name} has no {', '.join(missing)}",
            details=f"it is a {found.cpu or found.machine}",
            hint=f"correct cpu_features and target in boards/{board.name}.toml",
        )
    if board.cores and board.cores != found.cpus:
        return (f"{name} has {found.cpus} CPUs, and kernels are scheduled for {board.cores}, as its board file says",)
    return ()


def examine(board: Board, place: Place, patience_s: float = _PATIENCE_S) -> tuple[Hardware | None, tuple[str, ...]]:
    """Read a board's hardware and check it.

    Args:
        board: The board type, resolved.
        place: The board.
        patience_s: Seconds that it, or its tracker, may be away: both come back by themselves.

    Raises:
        DeviceError: The board does not answer.
        VerificationError: It is not what its board file says.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            found = read(place)
            break
        except DeviceError:
            if time.monotonic() >= end:
                raise
            time.sleep(_AGAIN_S)
    return found, () if found is None else check(board, found, place.name, emulated=place.emulated)
