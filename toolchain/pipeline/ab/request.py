"""From the names of releases to a locked device that is ready to run them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from toolchain import temporary
from toolchain.board import Board
from toolchain.device.connected import ConnectedDevice
from toolchain.device.lock import Owner
from toolchain.native.programs import Program
from toolchain.pipeline import device_programs, preflight
from toolchain.pipeline.ab.sides import Side, SideOpener, TensorKind, check_pair, on_device
from toolchain.progress import Progress, Stages
from toolchain.registry import Access


@dataclass(frozen=True)
class Request:
    """One release to run, or two in turns, as a user names them."""

    names: Sequence[str]
    board: Board
    connect: Callable[[], AbstractContextManager[ConnectedDevice]]
    progress: Progress
    access: Access | None = None  # how a registry is reached; None refuses addresses
    same: Sequence[TensorKind] = ("inputs", "outputs")  # which tensors two of them must have in common

    def check(self, sides: Sequence[Side]) -> None:
        """Refuse sides that cannot be run or compared.

        Raises:
            InputError, VerificationError: As `check_pair`.
        """
        if len(sides) > 1:
            new, base = sides
            check_pair(new, base, self.board, self.same)
        else:
            for side in sides:
                side.check_board(self.board)

    def resolve(self, local: Sequence[Side | None], device: ConnectedDevice) -> list[Side]:
        """Return the sides that were opened here, and the others from the device; all of them are checked.

        Raises:
            InputError: The device has no such release, or several; or as `check`.
            VerificationError: As `check`.
        """
        sides = [side or on_device(name, device) for side, name in zip(local, self.names, strict=True)]
        self.check(sides)
        return sides


@dataclass(frozen=True)
class LockedSides:
    """Releases that were checked, and the locked device that is to run them with a program."""

    sides: Sequence[Side]
    device: ConnectedDevice
    program: Program


@contextlib.contextmanager
def lock_sides(request: Request, purpose: str) -> Iterator[LockedSides]:
    """Open and check the sides, connect to the device, prepare its runner, and lock it for a block.

    Raises:
        InputError: A name is wrong, or the sides cannot be compared.
        VerificationError: A side is damaged, or was built for another board.
        ToolchainError: As the checks before a benchmark; or the device is lost or busy.
    """
    names = request.names
    with temporary.folder() as folder:
        opener = SideOpener(folder, request.access, request.progress)
        local = [opener.open_local(name, other) for name, other in zip(names, reversed(names), strict=True)]
        # What is here is checked before the device is contacted.
        request.check([side for side in local if side])
        with request.connect() as device:
            preflight.before_bench(request.board, device)
            request.resolve(local, device)  # before the runner, which may take minutes to build
            program = device_programs.runner(request.board, Stages(request.progress))
            with device.store.lock(Owner.here(purpose)):
                # Again under the lock: a deploy that held it may have changed `current`, or removed a release.
                yield LockedSides(request.resolve(local, device), device, program)
