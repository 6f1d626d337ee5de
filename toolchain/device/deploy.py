"""Bring a bundle to a device: push what is missing, verify, run it once, compare, and only then switch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toolchain import temporary
from toolchain.bundle import Bundle
from toolchain.device import application, fidelity, runner, trust, verification
from toolchain.device.application import Started
from toolchain.device.connected import ConnectedDevice
from toolchain.device.fidelity import Fidelity
from toolchain.device.installed import DeviceRelease
from toolchain.device.runner import Run
from toolchain.device.shipment import Transfer
from toolchain.device.stages import Stages
from toolchain.device.store import DeviceFacts
from toolchain.device.trust import Verified
from toolchain.native.programs import Program
from toolchain.tensors import Difference


@dataclass(frozen=True)
class Settings:
    """How to check and to measure.

    Attributes:
        budget_s: Seconds to measure.
        threads: Threads of the model; 0 means the board file's number.
        tolerance: Limit for the outputs' relative difference; None for that of each output.
        pinned: Whether each thread has a CPU of its own.
        labels: File of class names for a top-5 table.
        samples: How many inputs a deploy compares with the reference.
        library: Whether a deploy brings the library that applications are linked with.
        unchecked: Whether a deploy takes a bundle without its reference, too; the device then says so.
        energy: Whether a benchmark measures energy as well.
    """

    budget_s: float = 10.0
    threads: int = 0
    tolerance: float | None = None
    pinned: bool = True
    labels: Path | None = None
    samples: int = 1
    library: bool = False
    unchecked: bool = False
    energy: bool = False


@dataclass(frozen=True)
class Deployment:
    """A finished deploy.

    Attributes:
        digest: The bundle's digest, now the device's current release.
        changed: False if the device already ran it.
        facts: What the device is.
        transfer: What was sent.
        difference: Outputs on the device against the reference; None if the package carried no reference.
        reference: What computed the reference.
        run: The smoke run.
        application: How the device's application started; None where none is known.
        fidelity: What more samples showed; None where one was enough.
        verified: What the device found of the release's signatures; None where it asks for none.
    """

    digest: str
    changed: bool
    facts: DeviceFacts
    transfer: Transfer
    difference: Difference | None
    reference: str
    run: Run
    application: Started | None = None
    fidelity: Fidelity | None = None
    verified: Verified | None = None


def deploy(
    bundle: Bundle,
    program: Program,
    device: ConnectedDevice,
    settings: Settings,
    stages: Stages,
    library: Program | None = None,
) -> Deployment:
    """Deploy a bundle; the caller holds the lock of the device's store.

    The device's application is restarted on the new release, which goes if it is not healthy on it.

    Args:
        bundle: What to deploy.
        program: The runner for the device.
        device: The device.
        settings: How outputs are checked.
        stages: Called with progress; gets the time of each stage.
        library: What applications are linked with, to be found as `lib/` in the store.

    Raises:
        InputError: The bundle's reference carries fewer samples than are to be compared.
        VerificationError: The bundle has no reference; the device does not fit, stored or computed something else, or
            its application is not healthy. It keeps the release that it had.
        DeviceError: The device is lost, busy or full, or the model does not run on it.
    """
    samples = verification.samples_of(bundle, unchecked=settings.unchecked)
    reference_outputs = fidelity.random_reference(bundle, settings.samples)
    with stages.timed("deploy"):
        release = DeviceRelease.of_bundle(bundle, program, device, settings.threads)
        if device.entry.run:
            application.check_tools(device.store)
    with temporary.folder() as work:
        with stages.timed("deploy"):
            installed = release.install(samples.inputs, Path(work), stages.tell, library)
        with stages.timed("smoke"):
            run = installed.run(runner.SMOKE)
            difference = verification.check_outputs(run, samples, bundle.manifest, settings.tolerance)
        with stages.timed("samples" if reference_outputs else "smoke"):
            compared = (
                fidelity.check(release, reference_outputs, settings.tolerance, stages.tell)
                if reference_outputs
                else None
            )
        with stages.timed("application" if device.entry.run else "deploy"):
            device.store.mark(bundle.digest, unchecked=difference is None)
            changed, started = _activate(release, library, stages)
        with stages.timed("deploy"):
            verified = trust.note_minimum(device.store, installed.verified, installed.folders["runners"])
            device.store.prune(device.board.keep)
    return Deployment(
        digest=bundle.digest,
        changed=changed,
        facts=release.facts,
        transfer=Transfer.of(installed.sent, device.shell),
        difference=difference,
        reference=samples.runtime,
        run=run,
        application=started,
        fidelity=compared,
        verified=verified,
    )


def _activate(release: DeviceRelease, library: Program | None, stages: Stages) -> tuple[bool, Started | None]:
    """Return whether the release is another one than before, and how the application started on it."""
    store, run_table = release.device.store, release.device.entry.run
    if library:
        store.offer(library.sha256)
    if run_table is None:
        return store.activate(release.digest), None
    return application.activate(store, release.digest, run_table, stages.tell)
