"""A board's own description of its hardware, read over RPC and compared with its board file."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from toolchain import rpc, validation
from toolchain.board import Board
from toolchain.errors import DeviceError, VerificationError
from toolchain.rpc import CallError, child, error_text
from toolchain.rpc.places import Place

_FUNCTION = "edge_toolchain.hardware"
_CPU = "llvm"
_USEFUL_LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 65536}
_OPEN_S, _ANSWER_S = 30.0, 15.0
_PATIENCE_S, _AGAIN_S = 20.0, 0.5


@dataclass(frozen=True)
class Accelerator:
    """A board's accelerator, as it describes itself."""

    name: str
    units: int  # compute units
    max_threads_per_block: int  # work-items of a work-group at most
    max_shared_memory_per_block: int  # bytes of local memory of a work-group
    driver: str = ""
    float16: bool = False  # whether it computes in half precision

    def useful_limits(self) -> dict[str, int]:
        """Return the limits to schedule for.

        Devices that run work-items one after the other allow thousands of them, and local memory in ordinary memory;
        more than usual of either only makes kernels worse.
        """
        return {name: min(getattr(self, name), maximum) for name, maximum in _USEFUL_LIMITS.items()}

    def __str__(self) -> str:
        limits = f"{self.max_threads_per_block} threads and {self.max_shared_memory_per_block // 1024} KiB per block"
        return f"{self.name}, {self.units} units, {limits}" + (", float16" if self.float16 else "")


@dataclass(frozen=True)
class Hardware:
    machine: str  # `uname -m`
    cpus: Annotated[int, Field(ge=1)]  # that a program may use
    cpu: str = ""  # name; empty where the kernel gives none
    features: tuple[str, ...] = ()  # flags of /proc/cpuinfo
    cache_kib: Mapping[str, int] = field(default_factory=dict)  # of the first CPU, by level: `l1d`, `l2`, `l3`
    memory_kib: int = 0
    accelerator: Accelerator | None = None  # what computes, if that is not the CPU
    fault: str = ""  # why no accelerator can be used

    def __str__(self) -> str:
        caches = ", ".join(f"{name} {size} KiB" for name, size in self.cache_kib.items())
        accelerator = str(self.accelerator or "")
        return ", ".join(text for text in (f"{self.cpus} CPUs", self.cpu, caches, accelerator) if text)


_READER: TypeAdapter[Hardware] = TypeAdapter(Hardware)
_ACCELERATOR: TypeAdapter[Accelerator] = TypeAdapter(Accelerator)


def read(place: Place, kind: str = _CPU) -> Hardware | None:
    """Read a board's hardware; None if its server is TVM's own, which does not know it.

    `kind` is TVM's name of what computes there.

    Raises:
        DeviceError: The board does not answer.
        VerificationError: Its server is of another version, or it sends no valid description.
    """
    session = place.open(_OPEN_S, _OPEN_S, threading.Event())
    with rpc.deadline(session, _ANSWER_S), session:
        try:
            text = session.run(child.text, _FUNCTION)
        except CallError as error:
            raise DeviceError(f"{place.name} does not describe its hardware", details=error_text(error)) from error
        if text is None:
            return None
        accelerator, fault = None, ""
        if kind != _CPU:
            try:
                accelerator = _ACCELERATOR.validate_python(session.run(child.accelerator, kind))
            except CallError as error:
                fault = error_text(error)
            except ValidationError as wrong:
                fault = f"its description is not valid: {validation.words(wrong)}"
    try:
        return replace(_READER.validate_json(str(text)), accelerator=accelerator, fault=fault)
    except ValidationError as wrong:
        raise VerificationError(
            f"{place.name} sent an invalid description of its hardware", details=str(text)
        ) from wrong


def check(board: Board, hardware: Hardware, name: str, *, emulated: bool) -> tuple[str, ...]:
    """Compare a board's hardware with its board file; return the differences that do no harm.

    An emulator has this machine's CPUs and flags.

    Raises:
        DeviceError: It lacks a usable accelerator that its board file requires.
        VerificationError: It is another machine, or its CPU lacks what kernels for this board type use.
    """
    if hardware.fault:
        raise DeviceError(
            f"{name} has no usable {board.target.kind} device",
            details=hardware.fault,
            hint="install its vendor's driver, or use the board type for its CPU",
        )
    if hardware.machine != board.machine:
        raise VerificationError(
            f"{name} is {hardware.machine}, but board {board.name} is {board.machine}",
            hint="pass the board type of this device with --board: `toolchain board list` lists the types",
        )
    missing = [flag for flag in board.cpu_features if flag not in hardware.features]
    if missing and not emulated:
        raise VerificationError(
            f"the CPU of {name} does not support {', '.join(missing)}",
            details=f"the CPU is a {hardware.cpu or hardware.machine}",
            hint=f"correct cpu_features and target in boards/{board.name}.toml",
        )
    notes = _check_accelerator(board, hardware.accelerator, emulated=emulated) if hardware.accelerator else []
    if board.cpus and board.cpus != hardware.cpus:
        notes.append(
            f"{name} has {hardware.cpus} CPUs, but kernels are scheduled for the {board.cores} of its board file"
        )
    return tuple(notes)


def _check_accelerator(board: Board, accelerator: Accelerator, *, emulated: bool) -> list[str]:
    """Compare the limits of a board file's target with the device's; return notes, but none on an emulator's."""
    if board.target.float16 and not accelerator.float16:
        raise VerificationError(
            f"{accelerator.name} does not compute in half precision",
            details=str(accelerator),
            hint="leave --float16 out",
        )
    limits = {name: getattr(board.target, name) for name in _USEFUL_LIMITS}
    beyond = [
        f"{name} = {accelerator.useful_limits()[name]}"
        for name, value in limits.items()
        if value > getattr(accelerator, name)
    ]
    if beyond:
        raise VerificationError(
            f"boards/{board.name}.toml requires more than {accelerator.name} has",
            details=str(accelerator),
            hint=f"in [target], write {' and '.join(beyond)}",
        )
    return [
        f"{accelerator.name} has {name} = {accelerator.useful_limits()[name]}, but kernels are scheduled for {value}"
        for name, value in limits.items()
        if 0 < value < accelerator.useful_limits()[name] and not emulated
    ]


def examine(board: Board, place: Place, patience_s: float = _PATIENCE_S) -> tuple[Hardware | None, tuple[str, ...]]:
    """Read a board's hardware and check it; see `read` and `check`.

    The board, or its tracker, may be away for `patience_s`: both come back by themselves.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            hardware = read(place, board.target.kind)
            break
        except DeviceError:
            if time.monotonic() >= end:
                raise
            time.sleep(_AGAIN_S)
    return hardware, () if hardware is None else check(board, hardware, place.name, emulated=place.emulated)
