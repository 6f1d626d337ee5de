"""Whether a device supports kernels in half precision: its runner asks the driver, before anything is built."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from toolchain.bundle.manifest import Manifest
from toolchain.device import fit, processor
from toolchain.device.lock import Owner
from toolchain.device.shipment import Shipment, Tell, install, send
from toolchain.device.store import Store
from toolchain.errors import DeviceError
from toolchain.native.programs import RUNNER, Program
from toolchain.shell import Shell

_ANSWER_S = 60.0  # a driver that is loaded for the first time looks for its devices


@dataclass(frozen=True)
class Halves:
    """The driver's support of half precision.

    Attributes:
        name: Name of the accelerator.
        float16_lacks: The extension that kernels in half precision need and it lacks; empty if it has everything.
        half_sums_lacks: The same for kernels that also add in half precision.
    """

    name: str
    float16_lacks: str
    half_sums_lacks: str


@dataclass(frozen=True)
class RequiredPrecision:
    """The precision that a network needs.

    Attributes:
        float16: Whether kernels compute in half precision.
        half_sums: Whether they also add in it.
    """

    float16: bool
    half_sums: bool

    @classmethod
    def of(cls, manifest: Manifest) -> RequiredPrecision:
        """Return what a bundle needs."""
        arguments = manifest.command.split()
        sums = "--half-sums" in arguments
        return cls(sums or manifest.half is not None or "--float16" in arguments, sums)


def ask(program: Program, shell: Shell, store: Store, kind: str, progress: Tell | None = None) -> Halves:
    """Ask a device for its support of half precision; installs the runner first.

    Args:
        program: The runner.
        shell: The device.
        store: Its store.
        kind: The target kind of the code generator, such as `opencl`.
        progress: Told the progress.

    Raises:
        MismatchError: The runner does not start there.
        DeviceError: The device is lost, busy or full, or has no usable accelerator of that kind.
    """
    facts = store.facts()
    fit.check_runs(program, facts)
    shipment = Shipment(
        blobs={program.sha256: program.path},
        folders={"runners": (program.sha256, {RUNNER: program.sha256})},
        programs=(program.sha256,),
    )
    with store.lock(Owner.here("ask about half precision")):
        send(shipment, store, facts, progress)
        folder = install(shipment, store)["runners"]
        result = shell.run(shlex.join([f"{folder}/{RUNNER}", "--halves", kind]), timeout=_ANSWER_S, check=False)
    if result.returncode != 0:
        raise DeviceError(
            f"{shell.name} has no usable {kind} device",
            details=result.stderr.strip()[-1000:],
            hint="install its vendor's driver, or use the board type for its CPU",
        )
    try:
        answer = json.loads(result.stdout)
        texts = [processor.text(answer[key]) for key in ("name", "float16_lacks", "half_sums_lacks")]
    except (LookupError, RecursionError, TypeError, ValueError) as fault:
        raise DeviceError(
            f"the runner on {shell.name} sent an invalid answer about half precision", details=f"{fault!s:.200}"
        ) from fault
    return Halves(*texts)


def check(support: Halves, required: RequiredPrecision, name: str) -> None:
    """Refuse a device without the half precision that a network needs.

    Raises:
        DeviceError: It lacks some of it.
    """
    in_board_file = "in [target] of the board file"
    if required.float16 and support.float16_lacks:
        raise DeviceError(
            f"{name} does not compute in half precision: {support.name} has no {support.float16_lacks}",
            hint=f"build without --float16 and --half-sums, or with `float16 = false` {in_board_file}",
        )
    if required.half_sums and support.half_sums_lacks:
        raise DeviceError(
            f"{name} does not sum up in half precision: {support.name} has no {support.half_sums_lacks}, "
            "so it takes numbers below 2^-14 for zero",
            hint=f"build with --float16 instead of --half-sums, or with `half_sums = false` {in_board_file}",
        )
