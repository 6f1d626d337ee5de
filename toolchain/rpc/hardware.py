"""What a board says of its own hardware over RPC, held against its board file."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from toolchain import documents, rpc
from toolchain.board import Board
from toolchain.errors import DeviceError, VerificationError
from toolchain.rpc import CallError, Session, child, visits, words
from toolchain.rpc.places import Place

_FUNCTION = "edge_toolchain.hardware"
_CPU = "llvm"
_SENSIBLE = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 65536}
_OPEN_S, _ANSWER_S = 30.0, 15.0
_PATIENCE_S, _AGAIN_S = 20.0, 0.5


@dataclass(frozen=True)
class Accelerator:
    """What a board's accelerator says of itself.

    Attributes:
        name: Its name.
        units: Compute units.
        max_threads_per_block: Work-items of a work-group at most.
        max_shared_memory_per_block: Bytes of local memory of a work-group.
        driver: Version of its driver.
        float16: Whether it computes in half precision.
    """

    name: str
    units: int
    max_threads_per_block: int
    max_shared_memory_per_block: int
    driver: str = ""
    float16: bool = False

    def sensible(self) -> dict[str, int]:
        """Return the limits to schedule for.

        Devices that run work-items one after the other allow thousands of them, and local memory in ordinary memory;
        more than usual of either only makes kernels worse.
        """
        return {name: min(getattr(self, name), most) for name, most in _SENSIBLE.items()}

    def __str__(self) -> str:
        limits = f"{self.max_threads_per_block} threads and {self.max_shared_memory_per_block // 1024} KiB per block"
        return f"{self.name}, {self.units} units, {limits}" + (", float16" if self.float16 else "")


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
        accelerator: What computes, if that is not the CPU.
        fault: Why there is none that can be used.
    """

    machine: str
    cpus: Annotated[int, Field(ge=1)]
    cpu: str = ""
    features: tuple[str, ...] = ()
    cache_kib: Mapping[str, int] = field(default_factory=dict)
    memory_kib: int = 0
    accelerator: Accelerator | None = None
    fault: str = ""

    def __str__(self) -> str:
        caches = ", ".join(f"{name} {size} KiB" for name, size in self.cache_kib.items())
        accelerator = str(self.accelerator or "")
        return ", ".join(part for part in (f"{self.cpus} CPUs", self.cpu, caches, accelerator) if part)


_READER: TypeAdapter[Hardware] = TypeAdapter(Hardware)
_ACCELERATOR: TypeAdapter[Accelerator] = TypeAdapter(Accelerator)


def read(place: Place, kind: str = _CPU) -> Hardware | None:
    """Ask a board what it is.

    Args:
        place: The board.
        kind: TVM's name of what computes there.

    Returns:
        None if its server is TVM's own, which does not know.

    Raises:
        DeviceError: The board does not answer.
        VerificationError: Its server is of another version, or it says something else than hardware.
    """
    session = place.open(_OPEN_S, _OPEN_S, threading.Event())
    with rpc.deadline(session, _ANSWER_S), session:
        text = _asked(session, place.name)
        if text is None:
            return None
        accelerator, fault = (None, "") if kind == _CPU else _accelerator(session, kind)
    try:
        return replace(_READER.validate_json(text), accelerator=accelerator, fault=fault)
    except ValidationError as wrong:
        raise VerificationError(f"{place.name} sent an invalid description of its hardware", details=text) from wrong


def _asked(session: Session, name: str) -> str | None:
    try:
        found = session.run(child.text, _FUNCTION)
    except CallError as fault:
        raise DeviceError(f"{name} does not describe its hardware", details=words(fault)) from fault
    return None if found is None else str(found)


def _accelerator(session: Session, kind: str) -> tuple[Accelerator | None, str]:
    """Return what computes; or else why nothing of that kind does."""
    try:
        found = session.run(visits.accelerator, kind)
    except CallError as fault:
        return None, words(fault)
    try:
        return _ACCELERATOR.validate_python(found), ""
    except ValidationError as wrong:
        return None, f"its description is not valid: {documents.words(wrong)}"


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
        DeviceError: It has no accelerator that can be used, and should.
        VerificationError: It is another machine, or its CPU lacks what kernels for this board type use.
    """
    if found.fault:
        raise DeviceError(
            f"{name} has no usable {board.target.kind} device",
            details=found.fault,
            hint="install its vendor's driver, or use the board type for its CPU",
        )
    if found.machine != board.machine:
        raise VerificationError(
            f"{name} is {found.machine}, but board {board.name} is {board.machine}",
            hint="pass the board type of this device with --board: `toolchain boards` lists the types",
        )
    missing = [flag for flag in board.cpu_features if flag not in found.features]
    if missing and not emulated:
        raise VerificationError(
            f"the CPU of {name} does not support {', '.join(missing)}",
            details=f"the CPU is a {found.cpu or found.machine}",
            hint=f"correct cpu_features and target in boards/{board.name}.toml",
        )
    notes = _notes_on_accelerator(board, found.accelerator, emulated=emulated) if found.accelerator else []
    if board.cores and board.cores != found.cpus:
        notes.append(f"{name} has {found.cpus} CPUs, but kernels are scheduled for the {board.cores} of its board file")
    return tuple(notes)


def _notes_on_accelerator(board: Board, found: Accelerator, *, emulated: bool) -> list[str]:
    """Hold the limits of a board file's target against the device's; those of an emulator are not worth a note.

    Raises:
        VerificationError: Kernels would ask for more than the device has.
    """
    if board.target.float16 and not found.float16:
        raise VerificationError(
            f"{found.name} does not compute in half precision", details=str(found), hint="leave --float16 out"
        )
    asked = {name: getattr(board.target, name) for name in _SENSIBLE}
    beyond = [f"{name} = {found.sensible()[name]}" for name, value in asked.items() if value > getattr(found, name)]
    if beyond:
        raise VerificationError(
            f"boards/{board.name}.toml requires more than {found.name} has",
            details=str(found),
            hint=f"in [target], write {' and '.join(beyond)}",
        )
    return [
        f"{found.name} has {name} = {found.sensible()[name]}, but kernels are scheduled for {value}"
        for name, value in asked.items()
        if 0 < value < found.sensible()[name] and not emulated
    ]


def examine(board: Board, place: Place, patience_s: float = _PATIENCE_S) -> tuple[Hardware | None, tuple[str, ...]]:
    """Read a board's hardware and check it.

    Args:
        board: The board type, resolved.
        place: The board.
        patience_s: Seconds that it, or its tracker, may be away: both come back by themselves.

    Raises:
        DeviceError: The board does not answer, or its accelerator cannot be used.
        VerificationError: It is not what its board file says.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            found = read(place, board.target.kind)
            break
        except DeviceError:
            if time.monotonic() >= end:
                raise
            time.sleep(_AGAIN_S)
    return found, () if found is None else check(board, found, place.name, emulated=place.emulated)
