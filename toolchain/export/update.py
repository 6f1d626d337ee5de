"""What an update contains: the blobs of a deploy, the expected outputs, and what the device must have for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain import files, temporary
from toolchain.board import Board
from toolchain.bundle import Bundle, save_expected
from toolchain.device import fit, verification
from toolchain.device.shipment import Shipment
from toolchain.native import elf
from toolchain.native.programs import Program

if TYPE_CHECKING:
    from toolchain.devices import Application

_EXPECTED = "expected.safetensors"


@dataclass(frozen=True)
class Update:
    bundle: Bundle
    board: Board
    program: Program  # the runner
    shipment: Shipment  # the same as that of a deploy
    expected: tuple[Path, str] | None  # path and digest of the expected outputs; None without a reference
    application: Application | None = None  # is restarted on the device, and must be well; None to only switch

    @property
    def glibc(self) -> str:
        """The lowest glibc version that both the runner and the library load on; empty if they need none."""
        needed = [version for version in (self.program.glibc, self.bundle.manifest.glibc) if version]
        return max(needed, key=elf.version_key, default="")

    @property
    def contents(self) -> Mapping[str, Path]:
        """Path of every file of the update, by digest, in the order of the digests."""
        more = {self.expected[1]: self.expected[0]} if self.expected else {}
        return dict(sorted({**self.shipment.blobs, **more}.items()))


@contextlib.contextmanager
def prepare(
    bundle: Bundle, board: Board, program: Program, application: Application | None = None, *, unchecked: bool = False
) -> Iterator[Update]:
    """Gather an update; files that are not in the bundle are in a temporary folder for the time of the block.

    Raises:
        VerificationError: The reference is missing (unless `unchecked`) or does not fit the model, or the runner has
            another version of TVM than the bundle.
    """
    fit.check_versions(bundle.manifest, program.versions)
    samples = verification.samples_of(bundle, unchecked=unchecked)
    with temporary.folder() as folder:
        work = Path(folder)
        shipment = Shipment.of_run(program, samples.inputs, work).with_release(bundle, work)
        expected = None
        if samples.expected is not None:
            save_expected(work / _EXPECTED, samples.expected, samples.tolerance, samples.rankings)
            expected = (work / _EXPECTED, files.sha256_file(work / _EXPECTED))
        yield Update(bundle, board, program, shipment, expected, application)
