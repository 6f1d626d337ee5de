"""What an update holds: the blobs of a deploy, the outputs that are expected, and what a device must be for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain import files, temporary
from toolchain.board import Board
from toolchain.bundle import Bundle, save_expected
from toolchain.device import deploy
from toolchain.device.shipment import Shipment
from toolchain.native import elf
from toolchain.native.programs import Program

if TYPE_CHECKING:
    from toolchain.devices import Application

_EXPECTED = "expected.safetensors"


@dataclass(frozen=True)
class Update:
    """What an update holds."""

    bundle: Bundle  # the bundle that becomes the device's current release
    board: Board  # the board type it was built for, which says where the store is and what stays in it
    program: Program  # the runner
    shipment: Shipment  # the blobs, and the folders that are made of them; the same as those of a deploy
    # path and digest of what the outputs of the trial run are compared with; None without a reference
    expected: tuple[Path, str] | None
    # what runs releases on the devices that the update is for; None if an update only switches
    application: Application | None = None

    @property
    def glibc(self) -> str:
        """The lowest glibc version that both the runner and the library load on; empty if they need none."""
        needed = [version for version in (self.program.glibc, self.bundle.manifest.glibc) if version]
        return max(needed, key=elf.version_key, default="")

    @property
    def contents(self) -> Mapping[str, Path]:
        """Path on this machine of all that the update holds, by digest, in the order of the digests."""
        more = {self.expected[1]: self.expected[0]} if self.expected else {}
        return dict(sorted({**self.shipment.blobs, **more}.items()))


@contextlib.contextmanager
def prepared(
    bundle: Bundle, board: Board, program: Program, application: Application | None = None, *, unchecked: bool = False
) -> Iterator[Update]:
    """Gather an update; what is not in the bundle is in a temporary folder for the time of the block.

    Args:
        bundle: What becomes the current release.
        board: The board type it was built for.
        program: The runner.
        application: What runs it on the devices that the update is for; it is restarted, and has to be well.
        unchecked: Whether a bundle without its reference is taken, too.

    Raises:
        VerificationError: The reference is missing or does not fit the model, or the runner is made of another TVM
            than the bundle.
    """
    deploy.check_versions(bundle.manifest, program.versions)
    samples = deploy.samples_of(bundle, unchecked=unchecked)
    with temporary.folder() as folder:
        work = Path(folder)
        shipment = Shipment.of_run(program, samples.inputs, work).with_release(bundle, work)
        expected = None
        if samples.expected is not None:
            save_expected(work / _EXPECTED, samples.expected, samples.tolerance, samples.rankings)
            expected = (work / _EXPECTED, files.sha256_file(work / _EXPECTED))
        yield Update(bundle, board, program, shipment, expected, application)
