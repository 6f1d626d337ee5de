"""From the names of releases to a locked device that is ready to run them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from toolchain import temporary
from toolchain.board import Board
from toolchain.device.connected import ConnectedDevice
from toolchain.device.lock import Owner
from toolchain.errors import InputError
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
    variant: str = ""  # of a release with several sets of shapes

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
        sides = [
            side or on_device(name, device).of_variant(self.variant)
            for side, name in zip(local, self.names, strict=True)
        ]
        if self.variant and not any(side.variant for side in sides):
            raise InputError(
                f"there is no variant {self.variant!r}: {' and '.join(side.label for side in sides)} "
                f"{'was' if len(sides) == 1 else 'were'} built for one set of shapes",
                hint="leave --variant out",
            )
        self.check(sides)
        return sides

    def open_local(self, folder: Path) -> list[Side | None]:
        """Open the sides whose files are here or in a registry, with their variant; None for those of the device.

        Raises:
            InputError, VerificationError, RegistryError: As `SideOpener.open_local`; or there is no such variant.
        """
        opener = SideOpener(folder, self.access, self.progress)
        others = list(reversed(self.names)) if len(self.names) > 1 else [""]
        opened = [opener.open_local(name, other) for name, other in zip(self.names, others, strict=True)]
        return [side and side.of_variant(self.variant) for side in opened]


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
    with temporary.folder() as folder:
        local = request.open_local(folder)
        # What is here is checked before the device is contacted.
        request.check([side for side in local if side])
        with request.connect() as device:
            preflight.before_bench(request.board, device)
            request.resolve(local, device)  # before the runner, which may take minutes to build
            program = device_programs.runner(device.triple, Stages(request.progress))
            with device.store.lock(Owner.here(purpose)):
                # Again under the lock: a deploy that held it may have changed `current`, or removed a release.
                yield LockedSides(request.resolve(local, device), device, program)
